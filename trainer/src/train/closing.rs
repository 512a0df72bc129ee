//! The end of training: the last evaluation, a comparison of digests, the final checkpoint, a barrier of
//! all members, and completion, which is acknowledged only after it is persisted.

use super::again::PATIENTLY;
use super::generation::Entered;
use super::session::Session;
use super::warm::Warm;
use super::{End, Summary, Surroundings, group_fatal};
use crate::group::GroupError;
use crate::step::{Fatal, Member, StepError};
use gradsync_collective::Channel;
use gradsync_rendezvous::wire::{DoneReport, MemberMessage, Refusal};

/// Ends the run. Called at once by a member that finds itself at the last step, also when it has just come
/// back: everything here may be done twice.
pub(crate) fn finish(
    warm: &mut Warm<'_>,
    session: &mut Session,
    entered: &Entered,
    around: &mut Surroundings<'_>,
) -> Result<Summary, StepError> {
    session.evaluate(warm, around)?;
    session.agree(warm, around)?;
    if let Some(fatal) = session.checkpoint(warm, PATIENTLY, around)? {
        return Err(fatal.into());
    }
    barrier(&session.member, around)?;
    let summary = warm.summary(End::Complete)?;
    let report = DoneReport {
        generation: entered.plan.generation,
        rank: session.member.rank,
        world_size: session.member.world_size,
        position: summary.position,
        total_steps: summary.steps,
        epochs: summary.epochs,
        state_digest: summary.state_digest.clone(),
        final_loss: summary.loss.to_string(),
        metrics: summary.metrics.clone(),
        checkpoint: session.checkpoint_path(),
    };
    around.group.alive(Some(warm.progress_report("finished")));
    let deadline = around.clock.now() + around.patience.acknowledgement;
    match around.group.report(MemberMessage::Done(report), deadline) {
        Ok(()) => Ok(summary),
        Err(GroupError::Deadline { .. }) => {
            // Completion is in the final checkpoint and in this process's last word; the service will learn
            // of it from there.
            tracing::warn!("the rendezvous did not acknowledge completion in time");
            Ok(summary)
        }
        // A service that was started again since knows of completion already.
        Err(GroupError::Refused(refusal)) if matches!(*refusal, Refusal::Finished { .. }) => Ok(summary),
        Err(error @ GroupError::Refused(_)) => Err(Fatal::process(error).into()),
        Err(error) => Err(group_fatal(&error).into()),
    }
}

/// Waits until all members have come to the same place.
pub(crate) fn barrier(member: &Member, around: &Surroundings<'_>) -> Result<(), StepError> {
    member
        .communicator
        .barrier(Channel::Control)
        .wait(around.clock.now() + member.patience)?;
    Ok(())
}
