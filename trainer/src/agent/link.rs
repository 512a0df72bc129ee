//! The rank's end of the link to its agent: a socket that the agent passes as standard input. One thread
//! reads what the agent says, one beats, and the training code calls in without any asynchronous runtime.

use super::frame::{Decoder, encode};
use super::news::{self, Seen};
use crate::group::{Asked, Group, GroupError, Joined, Next};
use gradsync_formats::identity::{Generation, JobUid, MemberId};
use gradsync_rendezvous::wire::{
    BEAT_INTERVAL, FromRank, MemberMessage, MemberReport, Progress, Refusal, ToRank,
};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Longest time that writing one message may take: the agent reads at once, so a full socket means that it
/// hangs.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest wait for one change of state before the deadline is looked at again.
const LONGEST_WAIT: Duration = Duration::from_secs(3600);

/// What to do when the agent is gone, with the reason. Called once, on the thread that notices first.
pub type OnLost = Box<dyn FnOnce(&str) + Send>;

/// A rank's connection to its agent.
pub struct RankLink {
    job: JobUid,
    member: MemberId,
    shared: Arc<Shared>,
    reports: u64,
}

struct Shared {
    job: JobUid,
    writer: Mutex<UnixStream>,
    state: Mutex<State>,
    changed: Condvar,
    on_lost: Mutex<Option<OnLost>>,
}

#[derive(Default)]
struct State {
    joined: Option<Result<Joined, Refusal>>,
    seen: Seen,
    answers: BTreeMap<u64, Result<(), Refusal>>,
    /// Reports on whose answers nobody waits any more.
    unawaited: BTreeSet<u64>,
    step_counter: u64,
    progress: Option<Progress>,
    /// Set once the link is of no use any more.
    lost: Option<String>,
    closing: bool,
}

impl RankLink {
    /// Speaks over `stream` for `member` of `job`.
    ///
    /// # Errors
    /// When the socket cannot be set up or a thread cannot be started.
    pub fn start(
        job: JobUid,
        member: MemberId,
        stream: UnixStream,
        on_lost: OnLost,
    ) -> std::io::Result<RankLink> {
        let reader = stream.try_clone()?;
        stream.set_write_timeout(Some(WRITE_TIMEOUT))?;
        let shared = Arc::new(Shared {
            job: job.clone(),
            writer: Mutex::new(stream),
            state: Mutex::default(),
            changed: Condvar::new(),
            on_lost: Mutex::new(Some(on_lost)),
        });
        let reading = Arc::clone(&shared);
        std::thread::Builder::new()
            .name("link-reader".into())
            .spawn(move || {
                let reason = reading.read(reader);
                reading.lose(&reason);
            })?;
        let beating = Arc::clone(&shared);
        std::thread::Builder::new()
            .name("link-beat".into())
            .spawn(move || beating.beat())?;
        Ok(RankLink {
            job,
            member,
            shared,
            reports: 0,
        })
    }

    /// Waits until `take` finds what it looks for.
    fn wait<T>(
        &self,
        waited_for: &'static str,
        deadline: Instant,
        mut take: impl FnMut(&mut State) -> Option<T>,
    ) -> Result<T, GroupError> {
        let start = Instant::now();
        let mut state = self.shared.lock();
        loop {
            if let Some(found) = take(&mut state) {
                return Ok(found);
            }
            if let Some(reason) = &state.lost {
                return Err(GroupError::AgentGone(reason.clone()));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(GroupError::Deadline {
                    waited_for,
                    seconds: start.elapsed().as_secs(),
                });
            }
            state = self
                .shared
                .changed
                .wait_timeout(state, left.min(LONGEST_WAIT))
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }
}

impl Group for RankLink {
    fn job(&self) -> &JobUid {
        &self.job
    }

    fn member(&self) -> &MemberId {
        &self.member
    }

    fn join(&mut self, report: MemberReport, deadline: Instant) -> Result<Joined, GroupError> {
        {
            let mut state = self.shared.lock();
            if state.seen.are_final() {
                return Err(GroupError::Overtaken);
            }
            // News from before the join may ask for this very join; the agent tells the present ones again
            // after its answer.
            state.joined = None;
            state.seen = Seen::default();
        }
        self.shared.send(&FromRank::Join {
            report: Box::new(report),
        })?;
        self.wait("the answer to a join", deadline, |state| {
            match state.joined.take() {
                Some(answer) => Some(answer.map_err(|refusal| GroupError::Refused(Box::new(refusal)))),
                // Without the service, a request to stop must not wait for its answer.
                None => state.seen.are_final().then_some(Err(GroupError::Overtaken)),
            }
        })?
    }

    fn next(&mut self, left: Generation, deadline: Instant) -> Result<Next, GroupError> {
        self.wait("a plan", deadline, |state| news::next(&state.seen, left))?
            .map_err(|error| GroupError::AgentGone(error.to_string()))
    }

    fn asked(&mut self, generation: Generation) -> Asked {
        let state = self.shared.lock();
        match &state.lost {
            Some(reason) => Asked::AgentGone(reason.clone()),
            None => news::asked(&state.seen, generation),
        }
    }

    fn report(&mut self, message: MemberMessage, deadline: Instant) -> Result<(), GroupError> {
        self.reports += 1;
        let number = self.reports;
        self.shared.send(&FromRank::Report { number, message })?;
        let answer = self.wait("the answer to a report", deadline, |state| {
            state.answers.remove(&number)
        });
        if answer.is_err() {
            let mut state = self.shared.lock();
            if state.answers.remove(&number).is_none() {
                state.unawaited.insert(number);
            }
        }
        answer?.map_err(|refusal| GroupError::Refused(Box::new(refusal)))
    }

    fn tell(&mut self, message: MemberMessage) -> Result<(), GroupError> {
        self.reports += 1;
        let number = self.reports;
        self.shared.lock().unawaited.insert(number);
        self.shared.send(&FromRank::Report { number, message })
    }

    fn alive(&mut self, progress: Option<Progress>) {
        let mut state = self.shared.lock();
        state.step_counter += 1;
        if progress.is_some() {
            state.progress = progress;
        }
    }
}

impl Drop for RankLink {
    fn drop(&mut self) {
        self.shared.lock().closing = true;
        self.shared.changed.notify_all();
        // Wakes the reading thread; the agent sees the end of the link.
        let writer = self.shared.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = writer.shutdown(std::net::Shutdown::Both);
    }
}

impl State {
    fn answered(&mut self, number: u64, answer: Result<(), Refusal>) {
        if !self.unawaited.remove(&number) {
            self.answers.insert(number, answer);
        } else if let Err(refusal) = answer {
            tracing::warn!(%refusal, "a report was not taken in");
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn send(&self, message: &FromRank) -> Result<(), GroupError> {
        let line = encode(&self.job, message).map_err(|e| GroupError::AgentGone(e.to_string()))?;
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let written = writer.write_all(&line);
        drop(writer);
        written.map_err(|error| {
            self.lose(&error.to_string());
            GroupError::AgentGone(error.to_string())
        })
    }

    /// Notes that the link is of no use, and tells so unless that is known already or intended.
    fn lose(&self, reason: &str) {
        let mut state = self.lock();
        let first = state.lost.is_none() && !state.closing;
        state.lost.get_or_insert_with(|| reason.to_owned());
        drop(state);
        self.changed.notify_all();
        let mut waiting = self.on_lost.lock().unwrap_or_else(PoisonError::into_inner);
        let on_lost = waiting.take_if(|_| first);
        drop(waiting);
        if let Some(on_lost) = on_lost {
            on_lost(reason);
        }
    }

    /// Reads until the link ends; says why it did.
    fn read(&self, mut stream: UnixStream) -> String {
        let mut decoder = Decoder::new(self.job.clone());
        let mut bytes = vec![0; 64 << 10];
        loop {
            match stream.read(&mut bytes) {
                Ok(0) => return "it has ended or closed the link".to_owned(),
                Ok(count) => decoder.push(&bytes[..count]),
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(e) => return e.to_string(),
            }
            loop {
                match decoder.next_message() {
                    Ok(Some(message)) => self.take(message),
                    Ok(None) => break,
                    Err(e) => return e.to_string(),
                }
            }
        }
    }

    fn take(&self, message: ToRank) {
        let mut state = self.lock();
        match message {
            ToRank::Joined {
                run_config,
                run_config_digest,
                floor,
            } => {
                state.joined = Some(Ok(Joined {
                    run_config: *run_config,
                    run_config_digest,
                    floor,
                }));
            }
            ToRank::News { plan, news } => state.seen.take(plan, news),
            ToRank::Accepted { number } => state.answered(number, Ok(())),
            ToRank::Refused { number, refusal } => match number {
                Some(number) => state.answered(number, Err(refusal)),
                None => state.joined = Some(Err(refusal)),
            },
        }
        drop(state);
        self.changed.notify_all();
    }

    /// Beats until the link ends. The thread counter proves that the process lives even while the step
    /// loop is in a long operation.
    fn beat(&self) {
        let mut thread_counter = 0;
        let mut sent_progress = None;
        loop {
            let (step_counter, progress) = {
                let state = self.lock();
                if state.lost.is_some() || state.closing {
                    return;
                }
                (state.step_counter, state.progress.clone())
            };
            thread_counter += 1;
            let beat = FromRank::Beat {
                step_counter,
                thread_counter,
                progress: progress.clone().filter(|p| Some(p) != sent_progress.as_ref()),
            };
            sent_progress = progress;
            // What cannot be sent is the end of the link, which was told.
            if self.send(&beat).is_err() {
                return;
            }
            // Woken early by other changes: the beat keeps its interval.
            let next = Instant::now() + BEAT_INTERVAL;
            let mut state = self.lock();
            while state.lost.is_none() && !state.closing {
                let left = next.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    break;
                }
                state = self
                    .changed
                    .wait_timeout(state, left)
                    .unwrap_or_else(PoisonError::into_inner)
                    .0;
            }
        }
    }
}

#[cfg(test)]
mod tests;
