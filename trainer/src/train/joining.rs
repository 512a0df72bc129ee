//! Joining, and what a member does while the service does not answer: it keeps its state and joins again,
//! later and later, for as long as it would wait for a plan. Training as such does not need the service; only
//! a change of the group waits for it.

use super::{Patience, Surroundings, group_fatal};
use crate::group::{GroupError, Joined};
use crate::step::Fatal;
use gradsync_formats::identity::Incarnation;
use gradsync_rendezvous::wire::{MemberReport, Refusal};
use std::time::{Duration, Instant};

/// What came of an attempt to join.
pub(super) enum Attempt {
    Joined(Box<Joined>),
    /// No answer yet. Until the next attempt, this long from now, the member listens to what is asked of it.
    NotYet(Duration),
    /// The job is finished, and how.
    Finished(String),
}

/// Attempts since the last answer.
#[derive(Debug, Default)]
pub(super) struct Attempts {
    unanswered: u32,
    since: Option<Instant>,
}

impl Attempts {
    /// Joins once.
    ///
    /// # Errors
    /// When the service refuses for good, the agent is gone, or there was no answer for [`Patience::plan`].
    pub(super) fn join(
        &mut self,
        report: MemberReport,
        around: &mut Surroundings<'_>,
    ) -> Result<Attempt, Fatal> {
        let now = around.clock.now();
        let since = *self.since.get_or_insert(now);
        match around.group.join(report, now + around.patience.answer) {
            Ok(joined) => {
                *self = Attempts::default();
                Ok(Attempt::Joined(Box::new(joined)))
            }
            Err(GroupError::Refused(refusal)) => match *refusal {
                Refusal::Finished { reason } => Ok(Attempt::Finished(reason)),
                refusal => Err(refused(&refusal)),
            },
            Err(GroupError::Overtaken) => Ok(Attempt::NotYet(Duration::ZERO)),
            Err(error @ GroupError::Deadline { .. }) => {
                let waited = around.clock.now().saturating_duration_since(since);
                if waited >= around.patience.plan {
                    return Err(group_fatal(&error));
                }
                self.unanswered = self.unanswered.saturating_add(1);
                let pause = pause(
                    self.unanswered,
                    &around.patience,
                    around.group.member().incarnation,
                );
                tracing::warn!(%error, ?pause, "keeping the state and joining again");
                Ok(Attempt::NotYet(pause))
            }
            Err(error) => Err(group_fatal(&error)),
        }
    }

    /// Whether an answer is still missing.
    pub(super) fn are_open(&self) -> bool {
        self.since.is_some()
    }
}

/// How a process ends that the service refuses for good. Whose data or model are not the group's, or whose place
/// is taken, is of no use to a group that may go on without it; what does not even speak the service's language
/// would be refused at every start.
pub(super) fn refused(refusal: &Refusal) -> Fatal {
    match refusal {
        Refusal::Finished { .. }
        | Refusal::Failed { .. }
        | Refusal::UnknownMember { .. }
        | Refusal::BadToken { .. }
        | Refusal::DifferentLayout { .. }
        | Refusal::DifferentData { .. }
        | Refusal::DifferentDirectory { .. } => Fatal::refused(refusal),
        Refusal::WrongJob { .. }
        | Refusal::ProtocolVersion { .. }
        | Refusal::TooLarge { .. }
        | Refusal::Malformed { .. } => Fatal::user(refusal),
        Refusal::StaleGeneration { .. } | Refusal::RateLimited { .. } | Refusal::Unavailable { .. } => {
            Fatal::process(refusal)
        }
    }
}

/// The pause after the `unanswered`-th attempt: doubled each time up to [`Patience::answer`], and shortened by
/// up to a half, by another part for each member, so that many do not come back together.
pub(super) fn pause(unanswered: u32, patience: &Patience, member: Incarnation) -> Duration {
    let doublings = unanswered.saturating_sub(1).min(20);
    let full = patience
        .join_pause
        .saturating_mul(1 << doublings)
        .min(patience.answer);
    let mixed = (member.0.as_u128() as u64)
        .wrapping_add(u64::from(unanswered))
        .wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let part = (mixed >> 40) as f64 / f64::from(1u32 << 24);
    full.mul_f64(0.5 + 0.5 * part)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::step::FatalKind;
    use gradsync_formats::identity::JobUid;
    use gradsync_rendezvous::wire::PROTOCOL_VERSION;

    #[test]
    fn pauses_grow_up_to_the_patience_for_an_answer_and_members_spread() {
        let patience = Patience::default();
        let of = |tries, member: u128| pause(tries, &patience, Incarnation(uuid::Uuid::from_u128(member)));
        for tries in 1..40 {
            let full = patience
                .join_pause
                .saturating_mul(1 << (tries - 1).min(10))
                .min(patience.answer);
            let pause = of(tries, 7);
            assert!(
                pause >= full / 2 && pause <= full,
                "{tries}: {pause:?} of {full:?}"
            );
        }
        let mut firsts: Vec<Duration> = (0..100).map(|member| of(1, member * 0x1_0001)).collect();
        firsts.sort();
        firsts.dedup();
        assert!(firsts.len() > 90, "{} different pauses", firsts.len());
        assert!(
            *firsts.last().unwrap() - firsts[0] > patience.join_pause / 3,
            "they spread"
        );
    }

    #[test]
    fn a_refusal_that_any_start_would_meet_is_the_users_and_one_of_this_member_alone_is_not() {
        let text = || "x".to_owned();
        let users = [
            Refusal::Malformed { problem: text() },
            Refusal::TooLarge { limit: 1 },
            Refusal::WrongJob {
                expected: JobUid(text()),
                given: JobUid("y".into()),
            },
            Refusal::ProtocolVersion {
                supported: PROTOCOL_VERSION,
                given: PROTOCOL_VERSION,
            },
        ];
        for refusal in users {
            assert_eq!(refused(&refusal).kind, FatalKind::User, "{refusal}");
        }
        let alone = [
            Refusal::BadToken { problem: text() },
            Refusal::Failed { reason: text() },
        ];
        for refusal in alone {
            assert_eq!(refused(&refusal).kind, FatalKind::Refused, "{refusal}");
        }
        let passing = Refusal::Unavailable { problem: text() };
        assert_eq!(refused(&passing).kind, FatalKind::Process);
    }
}
