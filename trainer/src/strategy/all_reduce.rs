//! Synchronous data parallelism: every gradient bucket is summed over all members, the first ones while
//! backward still computes the others.

use super::{BucketId, CommitUnit, Proposal, Round, StateDeclaration, StatePart, Strategy};
use crate::step::StepError;

/// Launches buckets strictly in plan order: bucket b when it and all before it are ready, so that every
/// member issues the same sequence whatever the order in which its gradients become ready.
#[derive(Default)]
pub struct AllReduce;

impl Strategy for AllReduce {
    fn commit_unit(&self) -> CommitUnit {
        CommitUnit::Step
    }

    fn state(&self) -> StateDeclaration {
        StateDeclaration {
            replicated: &[
                StatePart::Parameters,
                StatePart::OptimizerState,
                StatePart::Buffers,
            ],
            per_member: &[],
        }
    }

    fn gradient_ready(&mut self, bucket: BucketId, round: &mut Round) -> Result<(), StepError> {
        round.mark_ready(bucket);
        while round.is_ready(round.launched()) {
            round.launch_next();
        }
        Ok(())
    }

    fn backward_ended(&mut self, round: &mut Round) -> Result<(), StepError> {
        while round.launched() < round.bucket_count() {
            round.launch_next();
        }
        Ok(())
    }

    fn finish(&mut self, round: &mut Round) -> Result<Proposal, StepError> {
        round.wait_all()?;
        Ok(Proposal::Apply)
    }
}
