//! The exit codes of agent and rank processes, in one place: the agent decides by them whether a rank is
//! worth starting again, the launcher and the operator read the agent's.

/// Finished: the job is complete, or what was asked (stop, leave) was done in order.
pub const FINISHED: u8 = 0;
/// An unexpected fault (also what a Rust panic's process ends with is treated like it): worth another
/// start, charged to the job's restarts.
pub const FAULT: u8 = 1;
/// Wrong use of the command line. Not worth another start.
pub const USAGE: u8 = 2;
/// The user's mistake: bad parameters, missing or corrupt data, NaN loss, a checkpoint of another model.
/// Every start would end the same way, so the job fails at once with the rank's own message.
pub const USER_ERROR: u8 = 3;
/// The agent (for a rank) or the launcher (for an agent) is gone. Nobody is left to be told.
pub const PARENT_GONE: u8 = 4;
/// The rendezvous service refused this pod for good: the job has failed or the pod was replaced.
pub const REFUSED: u8 = 5;
/// Stopped in order on request, before the job was complete: a checkpoint was written if one is
/// configured.
pub const STOPPED: u8 = 6;
/// The agent gave up on its ranks after too many restarts in place.
pub const GAVE_UP: u8 = 7;

/// Whether a rank that ended with `code` may be started again in place: every start of a user error or of
/// a wrong command line ends the same way, and the other codes are orderly ends.
#[must_use]
pub fn worth_restarting(code: Option<i32>) -> bool {
    match code {
        // Ended by a signal (out of memory, a crash in native code).
        None => true,
        Some(code) => !matches!(
            u8::try_from(code),
            Ok(FINISHED | USAGE | USER_ERROR | PARENT_GONE | REFUSED | STOPPED)
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crashes_are_worth_a_restart_and_mistakes_are_not() {
        assert!(worth_restarting(None), "killed by a signal");
        assert!(worth_restarting(Some(101)), "a panic");
        assert!(worth_restarting(Some(i32::from(FAULT))));
        for code in [FINISHED, USAGE, USER_ERROR, PARENT_GONE, REFUSED, STOPPED] {
            assert!(!worth_restarting(Some(i32::from(code))), "{code}");
        }
    }
}
