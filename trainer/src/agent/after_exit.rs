//! What an agent does when one of its ranks has ended. Pure.

use super::exit_code;
use std::fmt;
use std::process::ExitStatus;
use std::time::Duration;

/// How a rank process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exit {
    /// Exit code; absent when a signal ended it.
    pub code: Option<i32>,
    /// The signal that ended it.
    pub signal: Option<i32>,
}

impl From<ExitStatus> for Exit {
    fn from(status: ExitStatus) -> Exit {
        Exit {
            code: status.code(),
            signal: std::os::unix::process::ExitStatusExt::signal(&status),
        }
    }
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.code, self.signal) {
            (Some(code), _) => write!(f, "exit code {code}"),
            (None, Some(signal)) => write!(f, "signal {signal}"),
            (None, None) => f.write_str("an unknown end"),
        }
    }
}

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterExit {
    /// The rank is through with the job, or stopped in order: nothing.
    Ended(u8),
    /// Start it again after this long.
    Restart(Duration),
    /// No start would help: end the other ranks and exit with this code.
    GiveUp(u8),
}

/// Most restarts in place of one rank without a commit between them. After that its pod is given up, and
/// whoever made the pod decides.
pub const MOST_FRUITLESS_RESTARTS: u32 = 5;

/// Decides after the end of a rank. `fruitless` counts its restarts since it last took part in a commit;
/// `stopping` says that the agent was told to stop.
#[must_use]
pub fn after_exit(exit: Exit, fruitless: u32, stopping: bool) -> AfterExit {
    if let Some(code) = exit.code.and_then(|c| u8::try_from(c).ok()) {
        match code {
            exit_code::FINISHED | exit_code::STOPPED => return AfterExit::Ended(code),
            _ if !exit_code::worth_restarting(exit.code) => return AfterExit::GiveUp(code),
            _ => {}
        }
    }
    if stopping {
        return AfterExit::GiveUp(exit_code::FAULT);
    }
    if fruitless >= MOST_FRUITLESS_RESTARTS {
        return AfterExit::GiveUp(exit_code::GAVE_UP);
    }
    // The first restart is immediate: most faults are over by then. The next ones wait longer and longer.
    AfterExit::Restart(match fruitless {
        0 => Duration::ZERO,
        n => Duration::from_millis(500 << n.min(5)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(code: u8) -> Exit {
        Exit {
            code: Some(i32::from(code)),
            signal: None,
        }
    }

    const KILLED: Exit = Exit {
        code: None,
        signal: Some(9),
    };

    #[test]
    fn a_crash_is_restarted_at_once_then_later_and_later_then_not_any_more() {
        let mut last = None;
        for fruitless in 0..MOST_FRUITLESS_RESTARTS {
            let AfterExit::Restart(wait) = after_exit(KILLED, fruitless, false) else {
                panic!("restart {fruitless} is due");
            };
            assert_eq!(wait.is_zero(), fruitless == 0);
            assert!(last.is_none_or(|last| wait > last));
            last = Some(wait);
        }
        assert_eq!(
            after_exit(KILLED, MOST_FRUITLESS_RESTARTS, false),
            AfterExit::GiveUp(exit_code::GAVE_UP)
        );
    }

    #[test]
    fn a_users_mistake_is_never_tried_again() {
        assert_eq!(
            after_exit(code(exit_code::USER_ERROR), 0, false),
            AfterExit::GiveUp(exit_code::USER_ERROR)
        );
    }

    #[test]
    fn orderly_ends_are_ends_and_a_crash_while_stopping_is_not_mended() {
        assert_eq!(
            after_exit(code(exit_code::FINISHED), 3, false),
            AfterExit::Ended(0)
        );
        assert_eq!(
            after_exit(code(exit_code::STOPPED), 0, true),
            AfterExit::Ended(exit_code::STOPPED)
        );
        assert_eq!(after_exit(KILLED, 0, true), AfterExit::GiveUp(exit_code::FAULT));
    }
}
