//! What all members learn from each other beside the gradients: the control record of a step.

use super::{Member, StepError, Wants};
use gradsync_collective::Channel;
use gradsync_collective::control::{self, ControlError, ControlRecord, Disagreement, Exchange, Flags};
use std::time::Instant;

/// Bits of the record's first spare word.
const CHECKPOINT: u64 = 1;
const COMPARE_DIGESTS: u64 = 2;

/// The fold of all records of a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Agreed {
    /// What any member wants.
    pub(super) wants: Wants,
    /// Units in the whole step's gradients.
    pub(super) denominator: u64,
    /// Sum of the losses over all members.
    pub(super) loss: f64,
    /// Whether any member's loss was not a number.
    pub(super) non_finite: bool,
    /// The first rank whose loss was not a number.
    pub(super) non_finite_rank: Option<usize>,
}

/// Sends this member's record; after its last bucket was launched.
pub(super) fn send(
    member: &Member,
    wants: Wants,
    denominator: u64,
    loss: f64,
    chain: u128,
) -> Result<Exchange, StepError> {
    let mut flags = Flags::NONE;
    for (wanted, flag) in [
        (wants.reform, Flags::REFORM),
        (wants.stop, Flags::STOP),
        (!loss.is_finite(), Flags::NON_FINITE),
    ] {
        if wanted {
            flags |= flag;
        }
    }
    let mut extra = 0;
    for (wanted, bit) in [
        (wants.checkpoint, CHECKPOINT),
        (wants.compare_digests, COMPARE_DIGESTS),
    ] {
        if wanted {
            extra |= bit;
        }
    }
    let communicator = member.communicator.as_ref();
    let sequence = communicator.sequence_checksum(Channel::Gradients).rotate_left(1)
        ^ communicator.sequence_checksum(Channel::State);
    let record = ControlRecord {
        flags,
        denominator,
        loss,
        sequence,
        chain,
        spare: [extra, 0],
    };
    control::exchange(communicator, &record).map_err(|error| failed(error, member))
}

/// Waits for everybody's record.
pub(super) fn receive(exchange: Exchange, member: &Member, deadline: Instant) -> Result<Agreed, StepError> {
    let (folded, records, _) = exchange.finish(deadline).map_err(|error| failed(error, member))?;
    let extra = records.iter().fold(0, |all, record| all | record.spare[0]);
    Ok(Agreed {
        wants: Wants {
            reform: folded.flags.contains(Flags::REFORM),
            stop: folded.flags.contains(Flags::STOP),
            checkpoint: extra & CHECKPOINT != 0,
            compare_digests: extra & COMPARE_DIGESTS != 0,
        },
        denominator: folded.denominator,
        loss: folded.loss,
        non_finite: folded.flags.contains(Flags::NON_FINITE),
        non_finite_rank: records
            .iter()
            .position(|record| record.flags.contains(Flags::NON_FINITE)),
    })
}

fn failed(error: ControlError, member: &Member) -> StepError {
    match error {
        ControlError::Collective(error) => StepError::Lost(error),
        ControlError::Deviation {
            what: Disagreement::Chain,
            ref ranks,
        } => StepError::Diverged {
            mine: ranks.contains(&(member.rank as usize)),
            message: error.to_string(),
        },
        other => StepError::Diverged {
            mine: false,
            message: other.to_string(),
        },
    }
}
