//! What a rank process does first: it ties its life to its agent's and takes up the link.

use super::environment::RankEnvironment;
use super::link::RankLink;
use super::{at_once, exit_code};
use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};
use std::fs::{File, TryLockError};
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Why a rank cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The agent died before this process could ask to die with it.
    #[error("start as a child of process {expected}: that process has ended")]
    ParentGone {
        /// The agent's process id.
        expected: i32,
    },
    /// Something that the system refused.
    #[error("{action}: {source}")]
    System {
        /// What was tried.
        action: &'static str,
        /// Why not.
        source: std::io::Error,
    },
}

/// Ends this process with its parent: when the parent dies the kernel kills this process too. `parent` is
/// the process id that the parent gave, None where the parent is not to be watched.
///
/// # Errors
/// When the parent has died already, or the system refuses.
pub fn tie_to_parent(parent: Option<i32>) -> Result<(), StartError> {
    let Some(expected) = parent else {
        return Ok(());
    };
    set_parent_process_death_signal(Some(Signal::KILL)).map_err(|e| StartError::System {
        action: "ask to be ended with the parent process",
        source: e.into(),
    })?;
    // Checked after asking: a parent that died in between is seen here, one that dies later kills us.
    if getppid().map(Pid::as_raw_pid) == Some(expected) {
        Ok(())
    } else {
        Err(StartError::ParentGone { expected })
    }
}

/// Holds a shared lock on `file` for as long as this process lives, as a sign to whoever wants to know
/// whether all have ended.
///
/// # Errors
/// When somebody holds it exclusively, who takes this process for ended, or the system refuses.
pub fn hold_alive_lock(file: Option<&Path>) -> Result<(), StartError> {
    let Some(file) = file else { return Ok(()) };
    let system = |source| StartError::System {
        action: "lock the file that tells that this process lives",
        source,
    };
    let file = File::open(file).map_err(system)?;
    match file.try_lock_shared() {
        Ok(()) => {
            // Never closed: the kernel releases the lock with the process.
            std::mem::forget(file);
            Ok(())
        }
        Err(TryLockError::WouldBlock) => Err(system(std::io::Error::other(
            "another launcher uses the output directory",
        ))),
        Err(TryLockError::Error(e)) => Err(system(e)),
    }
}

/// Takes up the link to the agent that started this process.
///
/// # Errors
/// When the agent is gone already or standard input is not the link.
pub fn connect(environment: &RankEnvironment) -> Result<RankLink, StartError> {
    tie_to_parent(environment.parent_pid)?;
    hold_alive_lock(environment.alive_lock.as_deref())?;
    // Ctrl-C in a terminal reaches every process of its group; the agent decides what it means.
    // A file beyond the size limit is then an error of the write, which names it, rather than the end.
    for signal in [
        signal_hook::consts::SIGINT,
        signal_hook::consts::SIGHUP,
        libc::SIGXFSZ,
    ] {
        signal_hook::flag::register(signal, Arc::new(AtomicBool::new(false))).map_err(|source| {
            StartError::System {
                action: "set up signals",
                source,
            }
        })?;
    }
    let system = |source| StartError::System {
        action: "take up the link to the agent from standard input",
        source,
    };
    let stream = std::io::stdin().as_fd().try_clone_to_owned().map_err(system)?;
    let stream = UnixStream::from(stream);
    stream.local_addr().map_err(system)?;
    let name = environment.member.to_string();
    RankLink::start(
        environment.job_uid.clone(),
        environment.member.clone(),
        stream,
        Box::new(move |reason| {
            // Nobody is left to report to, and unwinding through native threads could hang: end at once.
            eprintln!("error: {name} ends because its agent is gone: {reason}");
            at_once::exit(exit_code::PARENT_GONE);
        }),
    )
    .map_err(system)
}
