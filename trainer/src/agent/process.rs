//! One rank process: how it is started, how its link is read, how its end is told.

use super::frame::{Decoder, encode};
use super::run::Happening;
use gradsync_formats::environment as names;
use gradsync_formats::identity::{Incarnation, JobUid};
use gradsync_rendezvous::wire::{ExitStatus, ToRank};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::net::unix::OwnedReadHalf;
use tokio::process::{Child, Command};
use tokio::sync::mpsc;

use super::supervisor::Event;

/// Messages that may wait for a rank that does not read. A rank reads on a thread of its own, so a full
/// queue means that it hangs.
const QUEUE: usize = 256;
/// How long the link is read on after the end of the process.
const LINGER: Duration = Duration::from_millis(500);

/// How all ranks of this agent are started.
#[derive(Clone, Debug)]
pub struct RankProgram {
    /// The program: the same as the agent's.
    pub program: PathBuf,
    /// Its arguments.
    pub arguments: Vec<String>,
    /// The job.
    pub job: JobUid,
    /// The pod's slot.
    pub slot: u32,
    /// Directory of the logs; None: output is passed through.
    pub logs: Option<PathBuf>,
    /// Threads of one operator in one rank.
    pub intra_op_threads: u32,
}

/// A running rank. Dropping it kills the process.
pub struct RankProcess {
    to_rank: mpsc::Sender<ToRank>,
    kill: mpsc::Sender<()>,
}

impl RankProcess {
    /// Queues a message; false when the rank does not read its link any more.
    pub fn tell(&self, message: ToRank) -> bool {
        self.to_rank.try_send(message).is_ok()
    }

    /// Kills the process; its end is told as any other.
    pub fn kill(&self) {
        // A full queue means that it is being killed already.
        let _ = self.kill.try_send(());
    }
}

impl RankProgram {
    /// The log file of a rank.
    #[must_use]
    pub fn log_file(&self, local: u32) -> Option<PathBuf> {
        self.logs
            .as_ref()
            .map(|d| d.join(format!("worker-{}-{local}.log", self.slot)))
    }

    /// Starts rank `local` as process `incarnation`, the `number`-th before it not counted. What happens to
    /// it is sent to `happenings`; the last is its end.
    ///
    /// # Errors
    /// When the process cannot be started.
    pub fn start(
        &self,
        local: u32,
        number: u32,
        incarnation: Incarnation,
        happenings: mpsc::Sender<Happening>,
    ) -> io::Result<RankProcess> {
        let (ours, theirs) = std::os::unix::net::UnixStream::pair()?;
        ours.set_nonblocking(true)?;
        let stream = UnixStream::from_std(ours)?;
        let (out, err) = self.output(local)?;
        let mut command = Command::new(&self.program);
        let threads = self.intra_op_threads.to_string();
        command
            .args(&self.arguments)
            .env(names::LOCAL_RANK, local.to_string())
            .env(names::INCARNATION, incarnation.to_string())
            .env(names::RESTART, number.to_string())
            .env(names::PARENT_PID, std::process::id().to_string())
            .env(names::INTRA_OP_THREADS, &threads)
            // Libraries below libtorch read these at load; libtorch itself is told again by the rank.
            .env("OMP_NUM_THREADS", &threads)
            .env("MKL_NUM_THREADS", &threads)
            .env_remove(names::POD_SECRET)
            .env_remove(names::SERVICE)
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(out)
            .stderr(err)
            .kill_on_drop(true);
        let child = command.spawn()?;
        // The command holds the rank's end of the link; as long as it is open here, its end is not seen.
        drop(command);
        let (to_rank, mut queue) = mpsc::channel::<ToRank>(QUEUE);
        let (kill, killed) = mpsc::channel(1);
        let (reader, mut writer) = stream.into_split();
        let job = self.job.clone();
        tokio::spawn(async move {
            while let Some(message) = queue.recv().await {
                let Ok(line) = encode(&job, &message) else {
                    continue;
                };
                // A rank that has ended does not need the message; its end is told by the other task.
                if writer.write_all(&line).await.is_err() {
                    return;
                }
            }
        });
        tokio::spawn(watch(child, reader, killed, self.job.clone(), local, happenings));
        Ok(RankProcess { to_rank, kill })
    }

    fn output(&self, local: u32) -> io::Result<(Stdio, Stdio)> {
        match self.log_file(local) {
            None => Ok((Stdio::inherit(), Stdio::inherit())),
            Some(path) => {
                let file = OpenOptions::new().create(true).append(true).open(path)?;
                Ok((Stdio::from(file.try_clone()?), Stdio::from(file)))
            }
        }
    }
}

/// Reads the link and waits for the process; tells what comes over the one, then the end of the other.
async fn watch(
    mut child: Child,
    mut reader: OwnedReadHalf,
    mut killed: mpsc::Receiver<()>,
    job: JobUid,
    local: u32,
    happenings: mpsc::Sender<Happening>,
) {
    let mut decoder = Decoder::new(job);
    let mut bytes = vec![0; 64 << 10];
    let mut linked = true;
    let mut ended = None;
    while linked || ended.is_none() {
        tokio::select! {
            // What was said before the end is taken in before the end.
            biased;
            read = reader.read(&mut bytes), if linked => {
                let count = read.unwrap_or(0);
                linked = count > 0;
                decoder.push(&bytes[..count]);
                while linked {
                    let event = match decoder.next_message() {
                        Ok(Some(message)) => Event::FromRank { local, message },
                        Ok(None) => break,
                        Err(error) => {
                            linked = false;
                            Event::Nonsense { local, problem: error.to_string() }
                        }
                    };
                    if happenings.send(Happening::Event(event)).await.is_err() {
                        return;
                    }
                }
            }
            Some(()) = killed.recv(), if ended.is_none() => {
                // The process may have ended in the meantime; either way its end comes next.
                let _ = child.start_kill();
            }
            status = child.wait(), if ended.is_none() => ended = Some(status),
            // A child of the rank may have inherited the link and keep it open.
            () = tokio::time::sleep(LINGER), if ended.is_some() => linked = false,
        }
    }
    let status = match ended {
        Some(Ok(status)) => ExitStatus {
            code: status.code(),
            signal: status.signal(),
            oom_killed: false,
            error: None,
        },
        Some(Err(error)) => ExitStatus {
            error: Some(format!("wait for the process: {error}")),
            ..ExitStatus::default()
        },
        None => ExitStatus::default(),
    };
    // The agent that does not listen any more is ending itself.
    let _ = happenings
        .send(Happening::Event(Event::Exited { local, status }))
        .await;
}

/// The last line of a rank's log that tells an error, for an end without a message over the link: a panic's
/// message or a line that begins with `error`.
#[must_use]
pub fn last_error_in(log: &Path, from: u64) -> Option<String> {
    use std::io::{Read as _, Seek as _, SeekFrom};
    const TAIL: u64 = 16 << 10;
    let mut file = File::open(log).ok()?;
    let length = file.metadata().ok()?.len();
    file.seek(SeekFrom::Start(from.max(length.saturating_sub(TAIL))))
        .ok()?;
    let mut text = vec![];
    file.take(TAIL).read_to_end(&mut text).ok()?;
    error_line(&String::from_utf8_lossy(&text))
}

fn error_line(text: &str) -> Option<String> {
    let lines: Vec<&str> = text.lines().collect();
    lines.iter().enumerate().rev().find_map(|(i, line)| {
        let line = line.trim();
        if line.starts_with("thread '") && line.contains("panicked at") {
            // The message stands on the line after.
            let message = lines.get(i + 1).map_or("", |l| l.trim());
            return Some(format!("{line} {message}"));
        }
        let lower = line.get(..6)?.to_ascii_lowercase();
        lower.starts_with("error").then(|| line.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_error_of_a_log_is_found() {
        let panic = "loading\nthread 'main' (7) panicked at src/x.rs:1:2:\nno such thing\nnote: run with RUST_BACKTRACE\n";
        assert_eq!(
            error_line(panic).unwrap(),
            "thread 'main' (7) panicked at src/x.rs:1:2: no such thing"
        );
        assert_eq!(
            error_line("a\nerror: first\nError: second\nb\n").unwrap(),
            "Error: second"
        );
        assert_eq!(error_line("all is well\n"), None);
    }
}
