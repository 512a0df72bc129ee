//! How a run ended, from what the launcher and its service know at the end. Pure.

use super::summary::State;
use gradsync_rendezvous::membership::Ending;

/// What is known at the end.
#[derive(Clone, Copy, Debug, Default)]
pub struct EndFacts<'a> {
    /// The end of the job, as it was persisted.
    pub ending: Option<&'a Ending>,
    /// The service's word for a failure, which may not have been persisted.
    pub failed: Option<&'a str>,
    /// Why the launcher itself failed the job.
    pub given_up: Option<&'a str>,
    /// Whether the workers were asked to stop.
    pub stopping: bool,
    /// What made an orderly stop impossible, or was not the user's wish.
    pub trouble: Option<&'a str>,
    /// Why the membership could not be saved to the end.
    pub unsaved: Option<&'a str>,
}

/// The state, and the one error that ended it.
#[must_use]
pub fn verdict(facts: &EndFacts<'_>) -> (State, Option<String>) {
    let text = |t: &str| Some(t.to_owned());
    match facts.ending {
        Some(Ending::Complete { .. }) => return (State::Complete, None),
        Some(Ending::Failed { error }) => return (State::Failed, text(error)),
        None => {}
    }
    if let Some(error) = facts.failed.or(facts.given_up) {
        return (State::Failed, text(error));
    }
    if facts.stopping {
        return (State::Stopped, facts.trouble.map(str::to_owned));
    }
    let why = match facts.unsaved {
        Some(why) => format!("the membership of the run cannot be saved: {why}"),
        None => "all workers ended before the run was complete".to_owned(),
    };
    (State::Failed, Some(why))
}

/// What is known when training failed.
#[derive(Clone, Copy, Debug)]
pub struct FailureFacts {
    /// Whether a worker ended by what it calls the user's mistake, or could not be run.
    pub mistake: bool,
    /// Charged restarts, and how many are allowed.
    pub restarts: (usize, u32),
    /// Whether a step was ever committed.
    pub trained: bool,
}

/// Whether a failure is bad input: found wrong by the workers before the first step, and not a crash that
/// came back too often. (Workers that are told of another one's failure call it a mistake, too.)
#[must_use]
pub fn is_bad_input(facts: &FailureFacts) -> bool {
    let (charged, allowed) = facts.restarts;
    facts.mistake && !facts.trained && charged <= allowed as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_persisted_counts_before_everything_else() {
        let failed = Ending::Failed { error: "why".into() };
        let facts = EndFacts {
            ending: Some(&failed),
            given_up: Some("another"),
            stopping: true,
            ..EndFacts::default()
        };
        assert_eq!(verdict(&facts), (State::Failed, Some("why".into())));
        let unsaved = EndFacts {
            failed: Some("disk full"),
            stopping: true,
            ..EndFacts::default()
        };
        assert_eq!(verdict(&unsaved), (State::Failed, Some("disk full".into())));
    }

    #[test]
    fn a_stop_is_no_failure_and_says_its_trouble() {
        let facts = EndFacts {
            stopping: true,
            trouble: Some("told"),
            ..EndFacts::default()
        };
        assert_eq!(verdict(&facts), (State::Stopped, Some("told".into())));
        assert_eq!(verdict(&EndFacts::default()).0, State::Failed);
        let unsaved = EndFacts {
            unsaved: Some("write /o/membership.json: disk full"),
            ..EndFacts::default()
        };
        assert!(verdict(&unsaved).1.unwrap().contains("/o/membership.json"));
    }

    #[test]
    fn only_a_mistake_before_the_first_step_is_bad_input() {
        let facts = FailureFacts {
            mistake: true,
            restarts: (0, 3),
            trained: false,
        };
        assert!(is_bad_input(&facts));
        for other in [
            FailureFacts {
                mistake: false,
                ..facts
            },
            FailureFacts {
                restarts: (4, 3),
                ..facts
            },
            FailureFacts {
                trained: true,
                ..facts
            },
        ] {
            assert!(!is_bad_input(&other), "{other:?}");
        }
    }
}
