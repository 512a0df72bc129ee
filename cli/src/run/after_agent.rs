//! What the launcher does when an agent has ended. Pure.

use super::agents::exit_code;
use gradsync_rendezvous::wire::ExitStatus;
use std::time::Duration;

/// Longest wait before an agent that died again and again is started once more.
const LONGEST_WAIT: Duration = Duration::from_secs(16);
/// Exit codes by which shells and the loader say that a program could not be run at all.
const NOT_RUN: [i32; 2] = [126, 127];
/// Ends of one worker in a row that may cost nothing and bring nothing. `failurePolicy.maxRestarts` bounds the
/// others.
const MOST_FREE_ENDS: u32 = 5;

/// What is known at the end of an agent.
#[derive(Clone, Copy, Debug)]
pub struct AgentFacts<'a> {
    /// How it ended.
    pub status: &'a ExitStatus,
    /// Whether a rank of it joined the run.
    pub joined: bool,
    /// Whether some rank has reported that training is complete.
    pub done: bool,
    /// Whether the workers were asked to stop.
    pub stopping: bool,
    /// Whether the job has ended, or all workers were killed.
    pub over: bool,
    /// Whether an end of a process of this agent was charged already.
    pub paid: bool,
    /// Ends of this worker before this one that cost nothing, since the group's last commit.
    pub free_ends: u32,
}

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterAgent {
    /// Its end was in order.
    Nothing,
    /// It was told to stop, and nobody else was: alone the others would wait for it for ever.
    StopAll,
    /// Every start would end the same way.
    GiveUp,
    /// It is no trainer of ours, or could not be run.
    NoTrainer,
    /// It says that all is done, and it is not.
    EndedEarly,
    /// It could not stop in order.
    FailedToStop,
    /// It came and went for nothing too often: another start would be no better.
    TooOften,
    /// Start another one.
    Restart,
}

impl AgentFacts<'_> {
    /// Decides.
    #[must_use]
    pub fn next(&self) -> AfterAgent {
        let code = self.status.code;
        if self.over {
            return AfterAgent::Nothing;
        }
        if code == Some(exit_code::STOPPED) {
            return match self.stopping {
                true => AfterAgent::Nothing,
                false => AfterAgent::StopAll,
            };
        }
        // Our trainer leaves a last word when it gives up, and ends with these codes only after a join.
        let silent = !self.joined && self.status.error.is_none();
        let foreign = code
            .is_some_and(|c| [exit_code::FINISHED, exit_code::USAGE].contains(&c) || NOT_RUN.contains(&c));
        match code {
            _ if silent && foreign => AfterAgent::NoTrainer,
            Some(exit_code::USER_ERROR | exit_code::USAGE) => AfterAgent::GiveUp,
            Some(exit_code::FINISHED) if self.stopping || self.done => AfterAgent::Nothing,
            Some(exit_code::FINISHED) => AfterAgent::EndedEarly,
            _ if self.stopping => AfterAgent::FailedToStop,
            _ if !self.costs() && self.free_ends >= MOST_FREE_ENDS => AfterAgent::TooOften,
            _ => AfterAgent::Restart,
        }
    }

    /// Whether it calls its end the user's mistake.
    #[must_use]
    pub fn is_mistake(&self) -> bool {
        matches!(
            self.status.code,
            Some(exit_code::USER_ERROR | exit_code::USAGE | exit_code::REFUSED)
        )
    }

    /// Whether its end is told to the service as one that counts against `failurePolicy.maxRestarts`: not if
    /// it was in order, and not if the service has judged it already. One that gave up on its ranks was charged
    /// for them, unless each of their ends was nobody's fault.
    #[must_use]
    pub fn is_charged(&self) -> bool {
        match self.status.code {
            Some(
                exit_code::FINISHED
                | exit_code::STOPPED
                | exit_code::USER_ERROR
                | exit_code::USAGE
                | exit_code::REFUSED,
            ) => false,
            Some(exit_code::GAVE_UP) => !self.paid,
            _ => true,
        }
    }

    /// Whether this life of the agent costs a restart, so that it cannot come back for ever.
    #[must_use]
    pub fn costs(&self) -> bool {
        self.paid || (self.is_charged() && self.status.is_charged())
    }
}

/// The wait before the next start, after `fruitless` ends without a commit of the group between them.
#[must_use]
pub fn wait_before_restart(fruitless: u32) -> Duration {
    match fruitless {
        0 => Duration::ZERO,
        n => Duration::from_secs(1 << n.min(5)).min(LONGEST_WAIT),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(code: i32) -> ExitStatus {
        ExitStatus {
            code: Some(code),
            ..ExitStatus::default()
        }
    }

    fn facts(status: &ExitStatus) -> AgentFacts<'_> {
        AgentFacts {
            status,
            joined: true,
            done: false,
            stopping: false,
            over: false,
            paid: false,
            free_ends: 0,
        }
    }

    #[test]
    fn one_that_was_told_to_stop_stops_all_and_one_that_was_asked_with_all_does_not() {
        let status = ended(exit_code::STOPPED);
        let told = facts(&status);
        assert_eq!(told.next(), AfterAgent::StopAll);
        let asked = AgentFacts {
            stopping: true,
            ..told
        };
        assert_eq!(asked.next(), AfterAgent::Nothing);
        let over = AgentFacts { over: true, ..told };
        assert_eq!(over.next(), AfterAgent::Nothing);
    }

    #[test]
    fn success_before_the_end_is_no_success_and_a_stranger_is_named() {
        let status = ended(exit_code::FINISHED);
        let early = facts(&status);
        assert_eq!(early.next(), AfterAgent::EndedEarly);
        let done = AgentFacts { done: true, ..early };
        assert_eq!(done.next(), AfterAgent::Nothing);
        for code in [exit_code::FINISHED, exit_code::USAGE, 127] {
            let status = ended(code);
            let stranger = AgentFacts {
                joined: false,
                ..facts(&status)
            };
            assert_eq!(stranger.next(), AfterAgent::NoTrainer, "{code}");
        }
    }

    #[test]
    fn mistakes_give_up_and_crashes_are_restarted_unless_all_stop() {
        let mistake = ended(exit_code::USER_ERROR);
        assert_eq!(facts(&mistake).next(), AfterAgent::GiveUp);
        let crash = ExitStatus {
            signal: Some(9),
            ..ExitStatus::default()
        };
        assert_eq!(facts(&crash).next(), AfterAgent::Restart);
        assert!(facts(&crash).is_charged() && !facts(&mistake).is_charged());
        let stopping = AgentFacts {
            stopping: true,
            ..facts(&crash)
        };
        assert_eq!(stopping.next(), AfterAgent::FailedToStop);
    }

    #[test]
    fn one_that_was_refused_is_a_mistake_of_its_own_which_the_service_has_counted() {
        let refused = ended(exit_code::REFUSED);
        assert_eq!(facts(&refused).next(), AfterAgent::Restart);
        assert!(facts(&refused).is_mistake() && !facts(&refused).is_charged());
    }

    /// Every way in which an agent can end.
    fn all_ends() -> Vec<ExitStatus> {
        let codes = (0..256).map(ended);
        let signals = (1..65).map(|signal| ExitStatus {
            signal: Some(signal),
            ..ExitStatus::default()
        });
        codes.chain(signals).chain([ExitStatus::default()]).collect()
    }

    #[test]
    fn an_agent_that_ends_in_the_same_way_again_and_again_uses_its_budget_up_or_is_given_up() {
        const BUDGET: u32 = 20;
        for status in all_ends() {
            for (joined, pays) in [(false, false), (true, false), (true, true)] {
                let (mut charged, mut free_ends, mut starts) = (0, 0, 1);
                while charged <= BUDGET {
                    let end = AgentFacts {
                        joined,
                        free_ends,
                        paid: pays,
                        ..facts(&status)
                    };
                    if end.next() != AfterAgent::Restart {
                        break;
                    }
                    charged += u32::from(end.costs());
                    free_ends += u32::from(!end.costs());
                    starts += 1;
                    assert!(starts < 50, "{status} {joined} {pays}");
                }
            }
        }
    }

    #[test]
    fn one_that_gave_up_is_charged_unless_it_has_paid() {
        let gave_up = ended(exit_code::GAVE_UP);
        let free = facts(&gave_up);
        assert!(free.is_charged());
        assert!(!AgentFacts { paid: true, ..free }.is_charged());
    }

    #[test]
    fn waits_grow_to_a_bound() {
        let waits: Vec<u64> = (0..7).map(|n| wait_before_restart(n).as_secs()).collect();
        assert_eq!(waits, [0, 2, 4, 8, 16, 16, 16]);
    }
}
