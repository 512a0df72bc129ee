//! What the news that a rank has seen mean for it, idle or at work. Pure.

use crate::group::{Asked, Next};
use gradsync_formats::identity::Generation;
use gradsync_rendezvous::wire::{Ask, EncodedPlan, MemberNews, PlanError};

/// The newest news, none before the first.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    plan: Option<EncodedPlan>,
    news: Option<MemberNews>,
}

impl Seen {
    /// Takes what the agent passed on; it replaces what was known.
    pub fn take(&mut self, plan: Option<EncodedPlan>, news: MemberNews) {
        self.plan = plan;
        self.news = Some(news);
    }
}

impl Seen {
    /// Whether they end the member's part in the job for ever, whatever else comes.
    #[must_use]
    pub fn are_final(&self) -> bool {
        self.news.as_ref().is_some_and(|news| match news.ask {
            Ask::Stop { .. } | Ask::Finished { .. } | Ask::Failed { .. } | Ask::Refused { .. } => true,
            Ask::None | Ask::Reform { .. } | Ask::Rejoin { .. } => false,
        })
    }
}

/// What a member that has left all generations up to `left` is to do; None: wait on.
///
/// # Errors
/// When the plan on offer cannot be read.
pub fn next(seen: &Seen, left: Generation) -> Option<Result<Next, PlanError>> {
    let news = seen.news.as_ref()?;
    match &news.ask {
        Ask::None | Ask::Reform { .. } => {}
        ask => return Some(Ok(Next::Ask(ask.clone()))),
    }
    if news.floor > left {
        return Some(Ok(Next::Floor(news.floor)));
    }
    let (plan, head) = (seen.plan.as_ref()?, news.head.as_ref()?);
    if head.generation <= left {
        return None;
    }
    Some(plan.decode().map(|decoded| Next::Plan {
        plan: Box::new(decoded),
        digest: plan.digest.clone(),
        head: head.clone(),
    }))
}

/// What is wanted of a member that works in `generation`.
#[must_use]
pub fn asked(seen: &Seen, generation: Generation) -> Asked {
    let Some(news) = &seen.news else {
        return Asked::Nothing;
    };
    match &news.ask {
        Ask::Stop { cause } => return Asked::Stop(cause.clone()),
        Ask::Finished { reason } => return Asked::Finished(reason.clone()),
        Ask::Failed { reason } => return Asked::Failed(reason.clone()),
        Ask::Refused { refusal } => return Asked::Refused(refusal.to_string()),
        Ask::None | Ask::Reform { .. } | Ask::Rejoin { .. } => {}
    }
    if news.floor >= generation {
        let reason = match &news.ask {
            Ask::Reform { reason, .. } | Ask::Rejoin { reason } => reason.clone(),
            _ => format!("generation {generation} is over"),
        };
        return Asked::Over { reason };
    }
    match &news.ask {
        Ask::Reform {
            generation: asked,
            checkpoint,
            reason,
        } if *asked == generation => Asked::Reform {
            checkpoint: *checkpoint,
            reason: reason.clone(),
        },
        // The configuration is obtained by joining again, for which the generation must be left in order.
        Ask::Rejoin { reason } => Asked::Reform {
            checkpoint: false,
            reason: reason.clone(),
        },
        _ => Asked::Nothing,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gradsync_formats::identity::{JobUid, Position};
    use gradsync_formats::lineage::Lineage;
    use gradsync_rendezvous::wire::{Base, BaseSource, Plan, PlanHead, Role, Secret, StopCause};

    fn seen(floor: u64, planned: Option<u64>, ask: Ask) -> Seen {
        let plan = planned.map(|generation| Plan {
            version: 1,
            job_uid: JobUid("j".into()),
            generation: Generation(generation),
            world_size: 1,
            members: vec![],
            base: Base {
                position: Position::INITIAL,
                source: BaseSource::Initial,
                state_digest: None,
                chain: None,
            },
            lineage: Lineage::default(),
            run_config_digest: String::new(),
            reason: String::new(),
        });
        let mut seen = Seen::default();
        let news = MemberNews {
            head: planned.map(|generation| PlanHead {
                generation: Generation(generation),
                rank: 0,
                role: Role::Worker,
                share: None,
                key: Secret::new("k".into()),
            }),
            floor: Generation(floor),
            ask,
        };
        seen.take(plan.map(|p| EncodedPlan::encode(&p).unwrap()), news);
        seen
    }

    fn stop() -> Ask {
        Ask::Stop {
            cause: StopCause {
                reason: "interrupted".into(),
                within_ms: 1,
            },
        }
    }

    #[test]
    fn an_idle_member_takes_only_plans_above_its_promise() {
        let offered = seen(1, Some(2), Ask::None);
        assert!(matches!(
            next(&offered, Generation(1)),
            Some(Ok(Next::Plan { plan, .. })) if plan.generation == Generation(2)
        ));
        assert!(next(&offered, Generation(2)).is_none());
        assert!(next(&Seen::default(), Generation(0)).is_none());
    }

    #[test]
    fn a_floor_above_the_promise_comes_before_any_plan() {
        let offered = seen(3, Some(4), Ask::None);
        assert!(matches!(
            next(&offered, Generation(2)),
            Some(Ok(Next::Floor(Generation(3))))
        ));
    }

    #[test]
    fn a_changed_plan_is_an_error_not_a_plan() {
        let mut offered = seen(0, Some(1), Ask::None);
        offered.plan.as_mut().unwrap().digest = "0".repeat(64);
        assert!(matches!(
            next(&offered, Generation(0)),
            Some(Err(PlanError::Digest { .. }))
        ));
    }

    #[test]
    fn stopping_wins_over_everything_else() {
        assert!(matches!(
            next(&seen(9, Some(10), stop()), Generation(1)),
            Some(Ok(Next::Ask(Ask::Stop { .. })))
        ));
        assert!(matches!(
            asked(&seen(9, None, stop()), Generation(1)),
            Asked::Stop(_)
        ));
    }

    #[test]
    fn a_request_to_reform_concerns_only_the_generation_that_it_names() {
        let reform = Ask::Reform {
            generation: Generation(2),
            checkpoint: true,
            reason: "growth".into(),
        };
        assert_eq!(
            asked(&seen(0, None, reform.clone()), Generation(2)),
            Asked::Reform {
                checkpoint: true,
                reason: "growth".into()
            }
        );
        assert_eq!(
            asked(&seen(0, None, reform.clone()), Generation(3)),
            Asked::Nothing
        );
        assert!(matches!(
            asked(&seen(2, None, reform), Generation(2)),
            Asked::Over { .. }
        ));
    }
}
