//! Agreement on what is replicated: documents that one member has and all need, state that one member
//! holds and others lack, and the comparison of what all should hold alike.

use crate::parameters::StateDigest;
use crate::state::TrainingState;
use crate::step::{Fatal, Member, StepError};
use crate::torch::lend;
use gradsync_collective::{Buffer, Channel, Communicator, DType, partition};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Longest document that a member takes from another.
const MAX_DOCUMENT_BYTES: u64 = 256 << 20;

/// A channel takes a bounded number of operations that wait.
const TENSORS_IN_FLIGHT: usize = 64;

/// Everybody receives the document of rank `root`, which must give one.
///
/// # Errors
/// When a member is lost, or the document is too long or not of its type.
pub fn share_document<T: Serialize + DeserializeOwned>(
    document: Option<&T>,
    communicator: &dyn Communicator,
    root: usize,
    patience: Duration,
) -> Result<T, StepError> {
    let mine = communicator.identity().rank == root;
    let encoded = match document {
        Some(document) if mine => serde_json::to_vec(document).map_err(Fatal::process)?,
        _ => Vec::new(),
    };
    let length = Buffer::from_slice(&[encoded.len() as u64]).map_err(Fatal::process)?;
    communicator
        .broadcast(Channel::State, length.clone(), root)
        .wait(Instant::now() + patience)?;
    let length = length.to_vec::<u64>().map_err(Fatal::process)?[0];
    if length > MAX_DOCUMENT_BYTES {
        return Err(Fatal::process(format!("receive a document of {length} bytes from rank {root}")).into());
    }
    let buffer = if mine {
        Buffer::from_slice(&encoded)
    } else {
        Buffer::zeroed(usize::try_from(length).unwrap_or(usize::MAX), DType::U8)
    }
    .map_err(Fatal::process)?;
    communicator
        .broadcast(Channel::State, buffer.clone(), root)
        .wait(Instant::now() + patience)?;
    let bytes = buffer.to_vec::<u8>().map_err(Fatal::process)?;
    Ok(serde_json::from_slice(&bytes)
        .map_err(|error| Fatal::process(format!("read a document of rank {root}: {error}")))?)
}

/// One number from each member, by rank.
///
/// # Errors
/// When a member is lost.
pub fn gather_lengths(value: u64, member: &Member) -> Result<Vec<u64>, StepError> {
    gather(&[value], member)
}

/// `values` of each member, one after the other by rank. All give the same number of values.
fn gather(values: &[u64], member: &Member) -> Result<Vec<u64>, StepError> {
    let world = member.world_size as usize;
    let buffer = Buffer::zeroed(values.len() * world, DType::U64).map_err(Fatal::process)?;
    let mine = partition(values.len() * world, world, member.rank as usize);
    buffer
        .slice(mine)
        .and_then(|part| part.copy_from_slice(values))
        .map_err(Fatal::process)?;
    member
        .communicator
        .all_gather(Channel::State, buffer.clone())
        .wait(Instant::now() + member.patience)?;
    Ok(buffer.to_vec::<u64>().map_err(Fatal::process)?)
}

/// Compares the replicated state of all members. A strict majority repairs the minority; where there is
/// none, nobody's state can be trusted.
///
/// Returns the digest of the whole, hex.
///
/// # Errors
/// [`StepError::Diverged`] without a majority; the first tensor that differs is named.
pub fn compare(state: &mut TrainingState, member: &Member) -> Result<String, StepError> {
    let digest = state.digests()?;
    let whole = digest.whole();
    let halves = gather(&[(whole >> 64) as u64, whole as u64], member)?;
    let all: Vec<u128> = halves
        .chunks_exact(2)
        .map(|pair| u128::from(pair[0]) << 64 | u128::from(pair[1]))
        .collect();
    if all.iter().all(|other| *other == whole) {
        return Ok(digest.whole_hex());
    }
    let verdict = majority(&all);
    let named = name_difference(&digest, &all, verdict, member)?;
    let Some(right) = verdict else {
        return Err(StepError::Diverged {
            mine: true,
            message: format!("the members' states differ and no majority agrees: {named}"),
        });
    };
    let minority: Vec<usize> = (0..all.len()).filter(|rank| all[*rank] != right).collect();
    tracing::error!(ranks = ?minority, position = %state.position(), "repairing members whose state differs: {named}");
    let root = all.iter().position(|other| *other == right).unwrap_or(0);
    let repair = broadcast_state(state, member.communicator.as_ref(), root, member.patience);
    if let (Err(error), true) = (&repair, minority.contains(&(member.rank as usize))) {
        // Half of the tensors may be the majority's by now: such a state must not be offered as a base.
        return Err(StepError::Diverged {
            mine: true,
            message: format!("the repair was cut off: {error}"),
        });
    }
    repair?;
    let repaired = state.digests()?;
    if repaired.whole() != right {
        return Err(Fatal::process(format!("repair the state from rank {root}: it still differs")).into());
    }
    Ok(repaired.whole_hex())
}

/// The digest that more than half of the members have.
fn majority(all: &[u128]) -> Option<u128> {
    let mut votes = BTreeMap::new();
    for digest in all {
        *votes.entry(*digest).or_insert(0usize) += 1;
    }
    votes
        .into_iter()
        .find(|(_, count)| *count * 2 > all.len())
        .map(|(digest, _)| digest)
}

/// The first tensor in which the lowest deviating rank differs from the reference, which is the majority's
/// lowest rank or rank 0.
fn name_difference(
    digest: &StateDigest,
    all: &[u128],
    right: Option<u128>,
    member: &Member,
) -> Result<String, StepError> {
    let reference = right.unwrap_or(all[0]);
    let from = all.iter().position(|other| *other == reference).unwrap_or(0);
    let other = all.iter().position(|other| *other != reference).unwrap_or(0);
    let list = |digest: &StateDigest| -> Vec<(String, String)> {
        digest
            .tensors()
            .map(|(name, value)| (name.to_owned(), format!("{value:032x}")))
            .collect()
    };
    let mine = list(digest);
    let share = |root: usize| -> Result<Vec<(String, String)>, StepError> {
        let document = (member.rank as usize == root).then_some(&mine);
        share_document(document, member.communicator.as_ref(), root, member.patience)
    };
    let (good, bad) = (share(from)?, share(other)?);
    let named = good.iter().zip(&bad).find(|(good, bad)| good != bad);
    Ok(match named {
        Some(((name, good), (_, bad))) => {
            format!("tensor {name} is {good} on rank {from} and {bad} on rank {other}")
        }
        None => format!("rank {other} holds other tensors than rank {from}"),
    })
}

/// Everybody takes over the replicated state of rank `root`.
///
/// # Errors
/// When a member is lost; the state is then not to be used.
pub fn broadcast_state(
    state: &mut TrainingState,
    communicator: &dyn Communicator,
    root: usize,
    patience: Duration,
) -> Result<(), StepError> {
    let scalars = state.scalars();
    let mine = communicator.identity().rank == root;
    let received = share_document(mine.then_some(&scalars), communicator, root, patience)?;
    state.adopt_scalars(&received)?;
    for window in state.tensors().chunks(TENSORS_IN_FLIGHT) {
        let mut pending = Vec::with_capacity(window.len());
        for (_, tensor) in window {
            let region = Arc::new(lend(tensor).map_err(Fatal::process)?);
            let range = 0..region.len();
            let buffer = Buffer::new(region, range, DType::U8).map_err(Fatal::process)?;
            pending.push(communicator.broadcast(Channel::State, buffer, root));
        }
        for operation in pending {
            operation.wait(Instant::now() + patience)?;
        }
    }
    state.tensors_were_replaced()
}
