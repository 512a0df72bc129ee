//! What the agent does about everything that its ranks, the rendezvous service and the system tell it. Pure:
//! events in, actions out; processes, sockets, the clock and randomness are the adapter's ([`super::run`]).

mod event;
mod rank;

pub use event::{Action, Event};

use super::after_exit::{AfterExit, Exit, after_exit};
use super::exit_code;
use gradsync_formats::identity::{Generation, Incarnation, MemberId, PodUid};
use gradsync_rendezvous::wire::{
    Ask, BEAT_INTERVAL, Beat, ExitReport, ExitStatus, FromRank, JoinReply, JoinRequest, LeaveCause,
    MemberMessage, MemberNews, PodNews, RankBeat, Refusal, ReportRequest, RestartReport, StopCause, ToRank,
};
use rank::{Life, Rank, Running, tell_news};
use std::time::Duration;

/// A rank whose thread counter stands still for this long does not live any more, whatever the kernel says:
/// it is killed, so that its end is certain.
pub const SILENCE_LIMIT: Duration = Duration::from_secs(10);
/// What a fresh process gets until its first sign of life: loading libraries from a cold disk takes long.
pub const FIRST_SIGN_LIMIT: Duration = Duration::from_secs(300);
/// Ticks come every [`BEAT_INTERVAL`]: a longer pause is the agent's own, in which it could hear nobody.
const LONGEST_TICK: Duration = BEAT_INTERVAL.saturating_mul(2);
/// What the other ranks get to end by themselves once the pod is given up.
pub const GIVE_UP_GRACE: Duration = Duration::from_secs(5);

/// The state of one agent.
#[derive(Debug)]
pub struct Supervisor {
    slot: u32,
    pod: PodUid,
    ranks: Vec<Rank>,
    /// The time of the last tick.
    ticked: Duration,
    /// For how long this agent itself has been at work: silence is measured in it.
    worked: Duration,
    stop: Option<StopCause>,
    given_up: Option<(u8, String)>,
    over: bool,
}

impl Supervisor {
    /// The agent of pod `pod` in slot `slot` with `count` ranks, and the first actions.
    #[must_use]
    pub fn new(slot: u32, pod: PodUid, count: u32) -> (Supervisor, Vec<Action>) {
        let ranks = (0..count)
            .map(|_| Rank {
                life: Life::Waiting,
                started: 0,
                fruitless: 0,
                predecessor: None,
            })
            .collect();
        let supervisor = Supervisor {
            slot,
            pod,
            ranks,
            ticked: Duration::ZERO,
            worked: Duration::ZERO,
            stop: None,
            given_up: None,
            over: false,
        };
        let actions = (0..count)
            .map(|local| Action::Start { local, number: 0 })
            .collect();
        (supervisor, actions)
    }

    /// The beat for the service; None while no rank has joined.
    pub fn beat(&mut self) -> Option<Beat> {
        let ranks: Vec<RankBeat> = self
            .ranks
            .iter_mut()
            .filter_map(|rank| match &mut rank.life {
                Life::Running(running) if running.joined => Some(RankBeat {
                    incarnation: running.incarnation,
                    step_counter: running.step_counter,
                    thread_counter: running.thread_counter,
                    progress: running.progress.take(),
                }),
                _ => None,
            })
            .collect();
        (!ranks.is_empty()).then(|| Beat {
            pod: self.pod.clone(),
            ranks,
        })
    }

    /// Takes in an event and says what is to be done, in this order.
    pub fn handle(&mut self, event: Event) -> Vec<Action> {
        if self.over {
            return vec![];
        }
        let mut actions = vec![];
        match event {
            Event::StartDue { local } => self.start_due(local, &mut actions),
            Event::Started { local, incarnation } => self.started(local, incarnation, &mut actions),
            Event::FromRank { local, message } => self.hear_rank(local, message, &mut actions),
            Event::Nonsense { local, problem } => {
                if let Some(running) = self.running(local) {
                    running.error.get_or_insert(problem.clone());
                }
                self.kill(local, problem, &mut actions);
            }
            Event::Exited { local, status } => self.exited(local, status, &mut actions),
            Event::Joined { incarnation, answer } => self.joined(incarnation, *answer, &mut actions),
            Event::Reported {
                incarnation,
                number,
                answer,
            } => {
                if let Some((local, _)) = self.by_incarnation(incarnation) {
                    let message = match answer {
                        Ok(()) => ToRank::Accepted { number },
                        Err(refusal) => ToRank::Refused {
                            number: Some(number),
                            refusal,
                        },
                    };
                    actions.push(Action::Tell { local, message });
                }
            }
            Event::NotTakenBack { incarnation, refusal } => {
                self.not_taken_back(incarnation, *refusal, &mut actions);
            }
            Event::News(news) => self.news(*news, &mut actions),
            Event::StopSignal { name, grace } => self.stop_signal(&name, grace, &mut actions),
            Event::KillDue => self.kill_all("it did not end in time", &mut actions),
            Event::Tick { now } => self.tick(now, &mut actions),
        }
        self.end_if_through(&mut actions);
        actions
    }

    fn running(&mut self, local: u32) -> Option<&mut Running> {
        match &mut self.ranks.get_mut(local as usize)?.life {
            Life::Running(running) => Some(running),
            Life::Waiting | Life::Ended(_) => None,
        }
    }

    fn by_incarnation(&mut self, incarnation: Incarnation) -> Option<(u32, &mut Running)> {
        (0u32..)
            .zip(&mut self.ranks)
            .find_map(|(local, rank)| match &mut rank.life {
                Life::Running(running) if running.incarnation == incarnation => Some((local, &mut **running)),
                _ => None,
            })
    }

    fn member(&self, local: u32, incarnation: Incarnation) -> MemberId {
        MemberId {
            slot: self.slot,
            local_rank: local,
            pod: self.pod.clone(),
            incarnation,
        }
    }

    fn ending(&self) -> bool {
        self.stop.is_some() || self.given_up.is_some()
    }

    fn start_due(&mut self, local: u32, actions: &mut Vec<Action>) {
        let ending = self.ending();
        let Some(rank) = self.ranks.get_mut(local as usize) else {
            return;
        };
        if !matches!(rank.life, Life::Waiting) {
            return;
        }
        if ending {
            rank.life = Life::Ended(exit_code::STOPPED);
        } else {
            actions.push(Action::Start {
                local,
                number: rank.started,
            });
        }
    }

    fn started(&mut self, local: u32, incarnation: Incarnation, actions: &mut Vec<Action>) {
        let Some(rank) = self.ranks.get_mut(local as usize) else {
            return;
        };
        rank.started += 1;
        rank.life = Life::Running(Box::new(Running::new(incarnation, self.worked)));
        if self.given_up.is_some() {
            self.kill(local, "the pod is given up".to_owned(), actions);
        }
    }

    fn hear_rank(&mut self, local: u32, message: FromRank, actions: &mut Vec<Action>) {
        let now = self.worked;
        let Some(rank) = self.ranks.get(local as usize) else {
            return;
        };
        let restart = RestartReport {
            number: rank.started.saturating_sub(1),
            replaces: rank.predecessor.as_ref().map(|(incarnation, _)| *incarnation),
            last: rank.predecessor.as_ref().map(|(_, status)| status.clone()),
        };
        let Life::Running(running) = &rank.life else {
            return;
        };
        let member = self.member(local, running.incarnation);
        let Some(running) = self.running(local) else {
            return;
        };
        match message {
            FromRank::Join { report } => {
                let request = JoinRequest {
                    member,
                    report: *report,
                    restart,
                };
                // What was told before the join was forgotten by the rank with it.
                running.told = None;
                actions.push(Action::Join(Box::new(request)));
            }
            FromRank::Report { number, message } => {
                running.leaving |= matches!(message, MemberMessage::Leave { .. });
                if let MemberMessage::Leave {
                    cause: LeaveCause::Fatal { error },
                } = &message
                {
                    running.error = Some(error.clone());
                }
                actions.push(Action::Report {
                    number,
                    request: Box::new(ReportRequest { member, message }),
                });
            }
            FromRank::Beat {
                step_counter,
                thread_counter,
                progress,
            } => {
                if thread_counter != running.thread_counter || !running.heard {
                    running.heard_at = now;
                    running.heard = true;
                }
                running.step_counter = step_counter;
                running.thread_counter = thread_counter;
                if let Some(progress) = progress {
                    running.first_commit.get_or_insert(progress.position.commit);
                    running.last_commit = progress.position.commit;
                    running.progress = Some(progress);
                }
            }
        }
    }

    fn joined(
        &mut self,
        incarnation: Incarnation,
        answer: Result<JoinReply, Refusal>,
        actions: &mut Vec<Action>,
    ) {
        let stop = self.stop.clone();
        let Some((local, running)) = self.by_incarnation(incarnation) else {
            return;
        };
        let message = match answer {
            Ok(reply) => {
                running.joined = true;
                ToRank::Joined {
                    run_config: Box::new(reply.run_config),
                    run_config_digest: reply.run_config_digest,
                    floor: reply.floor,
                }
            }
            Err(refusal) => {
                running.told_end |= !refusal.wants_join();
                ToRank::Refused {
                    number: None,
                    refusal,
                }
            }
        };
        actions.push(Action::Tell { local, message });
        tell_news(local, running, stop.as_ref(), actions);
    }

    /// The service has lost sight of a rank and refuses to take it back: nothing more comes from it.
    fn not_taken_back(&mut self, incarnation: Incarnation, refusal: Refusal, actions: &mut Vec<Action>) {
        let stop = self.stop.clone();
        let Some((local, running)) = self.by_incarnation(incarnation) else {
            return;
        };
        let ask = match refusal {
            Refusal::Finished { reason } => Ask::Finished { reason },
            Refusal::Failed { reason } => Ask::Failed { reason },
            refusal => Ask::Refused { refusal },
        };
        let (head, floor) = (None, Generation::NONE);
        running.joined = false;
        running.news = Some((None, MemberNews { head, floor, ask }));
        tell_news(local, running, stop.as_ref(), actions);
    }

    fn news(&mut self, news: PodNews, actions: &mut Vec<Action>) {
        let stop = self.stop.clone();
        for (local, rank) in (0u32..).zip(&mut self.ranks) {
            let Life::Running(running) = &mut rank.life else {
                continue;
            };
            // One that is missing has not joined, or the client is telling the service of it again.
            if let Some(own) = news.members.get(&running.incarnation) {
                let plan = news.plan.clone().filter(|_| own.head.is_some());
                running.news = Some((plan, own.clone()));
                tell_news(local, running, stop.as_ref(), actions);
            }
        }
    }

    fn stop_signal(&mut self, name: &str, grace: Duration, actions: &mut Vec<Action>) {
        if self.stop.is_some() {
            self.given_up
                .get_or_insert((exit_code::STOPPED, format!("stopped at once by a second {name}")));
            self.kill_all("a second signal asked to stop at once", actions);
            return;
        }
        let stop = StopCause {
            reason: format!("the agent of worker {} received {name}", self.slot),
            within_ms: u64::try_from(grace.as_millis()).unwrap_or(u64::MAX),
        };
        self.stop = Some(stop.clone());
        for (local, rank) in (0u32..).zip(&mut self.ranks) {
            match &mut rank.life {
                Life::Waiting => rank.life = Life::Ended(exit_code::STOPPED),
                Life::Running(running) => tell_news(local, running, Some(&stop), actions),
                Life::Ended(_) => {}
            }
        }
        actions.push(Action::KillAfter(grace));
    }

    fn tick(&mut self, now: Duration, actions: &mut Vec<Action>) {
        self.worked += now.saturating_sub(self.ticked).min(LONGEST_TICK);
        self.ticked = now;
        let silent = |rank: &Rank| match &rank.life {
            Life::Running(running) => {
                let silence = self.worked.saturating_sub(running.heard_at);
                let (limit, what) = match (running.heard, running.leaving) {
                    (_, true) => (FIRST_SIGN_LIMIT, "no end since it left"),
                    (true, false) => (SILENCE_LIMIT, "no sign of life"),
                    (false, false) => (FIRST_SIGN_LIMIT, "no first sign of life since its start"),
                };
                (silence > limit).then(|| format!("{what} for {} s", limit.as_secs()))
            }
            Life::Waiting | Life::Ended(_) => None,
        };
        let silent: Vec<(u32, String)> = (0u32..)
            .zip(&self.ranks)
            .filter_map(|(local, rank)| Some((local, silent(rank)?)))
            .collect();
        for (local, reason) in silent {
            self.kill(local, reason, actions);
        }
    }

    fn exited(&mut self, local: u32, mut status: ExitStatus, actions: &mut Vec<Action>) {
        let ending = self.ending();
        let Some(rank) = self.ranks.get_mut(local as usize) else {
            return;
        };
        let Life::Running(running) = &mut rank.life else {
            return;
        };
        if running.error.is_some() {
            status.error = running.error.take();
        }
        if running
            .first_commit
            .is_some_and(|first| running.last_commit > first)
        {
            rank.fruitless = 0;
        }
        let (incarnation, told_end) = (running.incarnation, running.told_end);
        let exit = Exit {
            code: status.code,
            signal: status.signal,
        };
        let next = after_exit(exit, rank.fruitless, ending || told_end);
        rank.predecessor = Some((incarnation, status.clone()));
        match next {
            AfterExit::Ended(code) => rank.life = Life::Ended(code),
            AfterExit::Restart(wait) => {
                rank.life = Life::Waiting;
                rank.fruitless += 1;
                actions.push(Action::StartAfter { local, wait });
            }
            AfterExit::GiveUp(code) => {
                rank.life = Life::Ended(code);
                let text = status.error.clone().unwrap_or_else(|| status.to_string());
                if self.given_up.is_none() {
                    self.given_up = Some((code, text));
                    actions.push(Action::KillAfter(GIVE_UP_GRACE));
                }
            }
        }
        // The proof goes out before a successor starts: the actions are done in order.
        let member = self.member(local, incarnation);
        actions.insert(0, Action::ReportExit(ExitReport { member, status }));
        if self.given_up.is_some() {
            for rank in &mut self.ranks {
                if matches!(rank.life, Life::Waiting) {
                    rank.life = Life::Ended(exit_code::STOPPED);
                }
            }
        }
    }

    fn kill(&mut self, local: u32, reason: String, actions: &mut Vec<Action>) {
        if let Some(running) = self.running(local)
            && !running.killed
        {
            running.killed = true;
            running
                .error
                .get_or_insert_with(|| format!("killed by its agent: {reason}"));
            actions.push(Action::Kill { local, reason });
        }
    }

    fn kill_all(&mut self, reason: &str, actions: &mut Vec<Action>) {
        for local in 0..self.ranks.len() as u32 {
            self.kill(local, reason.to_owned(), actions);
        }
    }

    fn end_if_through(&mut self, actions: &mut Vec<Action>) {
        let mut codes = vec![];
        for rank in &self.ranks {
            match rank.life {
                Life::Ended(code) => codes.push(code),
                Life::Waiting | Life::Running(_) => return,
            }
        }
        self.over = true;
        let (code, error) = match self.given_up.take() {
            Some((code, error)) => (code, Some(error)),
            None => {
                let code = codes.into_iter().max().unwrap_or(exit_code::FINISHED);
                // Whoever looks at the whole run can tell by this which agent was told.
                let told = self.stop.take().map(|stop| stop.reason);
                (code, told.filter(|_| code == exit_code::STOPPED))
            }
        };
        actions.push(Action::Exit { code, error });
    }
}

#[cfg(test)]
mod tests;
