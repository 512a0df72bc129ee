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
/// The link to the agent broke. Mostly nobody is left to be told; an agent that sees it does live, and starts
/// the rank again. Nobody's mistake, so it is not charged.
pub const PARENT_GONE: u8 = 4;
/// The rendezvous service refused this process for good: the job has failed, the pod was replaced, or its
/// model or data are not the group's. The job goes on without it, if it can.
pub const REFUSED: u8 = 5;
/// Stopped in order on request, before the job was complete: a checkpoint was written if one is
/// configured.
pub const STOPPED: u8 = 6;
/// The agent gave up on its ranks after too many restarts in place.
pub const GAVE_UP: u8 = 7;

/// Whether a rank that ended with `code` may be started again in place: every start of a user error or of
/// a wrong command line ends the same way, and the other codes are ends that were asked for.
#[must_use]
pub fn worth_restarting(code: Option<i32>) -> bool {
    match code {
        // Ended by a signal (out of memory, a crash in native code).
        None => true,
        Some(code) => !matches!(
            u8::try_from(code),
            Ok(FINISHED | USAGE | USER_ERROR | REFUSED | STOPPED)
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
        assert!(
            worth_restarting(Some(i32::from(PARENT_GONE))),
            "whoever sees it lives"
        );
        for code in [FINISHED, USAGE, USER_ERROR, REFUSED, STOPPED] {
            assert!(!worth_restarting(Some(i32::from(code))), "{code}");
        }
    }

    #[test]
    fn the_service_charges_the_codes_that_are_somebodys_mistake_and_no_others() {
        let charged = |code: u8| {
            let code = Some(i32::from(code));
            gradsync_rendezvous::wire::ExitStatus {
                code,
                ..Default::default()
            }
            .is_charged()
        };
        for code in [FINISHED, PARENT_GONE, REFUSED, STOPPED] {
            assert!(!charged(code), "{code}");
        }
        for code in [FAULT, USAGE, USER_ERROR, GAVE_UP] {
            assert!(charged(code), "{code}");
        }
    }
}
