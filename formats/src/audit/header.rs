//! What the records' first lines say: the settings that all share, and the lineage.

use super::lines::Reader;
use super::verdict::{Findings, Rule};
use super::{AuditError, Given};
use crate::identity::{Generation, JobUid, MemberId};
use crate::lineage::Lineage;
use crate::manifest::DataProgress;
use crate::record::RecordLine;
use crate::run_config::Length;
use std::collections::BTreeMap;

/// The settings of the run.
#[derive(Debug)]
pub(super) struct Run {
    pub(super) job: JobUid,
    pub(super) lineage: Lineage,
    pub(super) epoch_samples: u64,
    pub(super) global_batch_size: u64,
    pub(super) micro_batch_size: u64,
    pub(super) seed: u64,
    pub(super) origin: DataProgress,
    /// As the newest generation knew it: it may have been raised.
    pub(super) length: Length,
}

/// The settings that must not change while a job lives.
#[derive(Debug, PartialEq, Eq)]
struct Fixed {
    epoch_samples: u64,
    global_batch_size: u64,
    micro_batch_size: u64,
    seed: u64,
}

/// The generation that a first line names.
pub(super) fn generation_of(opened: &RecordLine) -> Generation {
    match opened {
        RecordLine::Opened { generation, .. } => *generation,
        _ => Generation::NONE,
    }
}

/// What all `members` have in common; None without members. Differences are violations.
pub(super) fn common(
    members: &[(RecordLine, Reader<'_, '_>)],
    given: &Given,
    findings: &mut Findings,
) -> Result<Option<Run>, AuditError> {
    let mut run: Option<(Run, Fixed, Generation, String)> = None;
    let mut ranks: BTreeMap<(Generation, u32), (MemberId, String)> = BTreeMap::new();
    for (opened, reader) in members {
        let RecordLine::Opened {
            version: _,
            job_uid,
            generation,
            member,
            rank,
            world_size,
            lineage,
            epoch_samples,
            global_batch_size,
            micro_batch_size,
            seed,
            origin: _,
            length,
            at: _,
        } = opened
        else {
            continue;
        };
        let name = reader.name().to_owned();
        if rank >= world_size {
            findings.violation(
                Rule::LineageBroken,
                None,
                format!("{name} is of rank {rank} in a group of {world_size}"),
            );
        }
        if let Some((other, file)) = ranks.insert((*generation, *rank), (member.clone(), name.clone())) {
            findings.violation(
                Rule::LineageBroken,
                None,
                format!("generation {generation} has two members of rank {rank}: {other} in {file}, {member} in {name}"),
            );
        }
        if lineage.newest() != *generation {
            findings.violation(
                Rule::LineageBroken,
                None,
                format!(
                    "{name} is of generation {generation}, its lineage ends with {}",
                    lineage.newest()
                ),
            );
        }
        let fixed = Fixed {
            epoch_samples: *epoch_samples,
            global_batch_size: *global_batch_size,
            micro_batch_size: *micro_batch_size,
            seed: *seed,
        };
        match &mut run {
            None => {
                let first = Run {
                    job: job_uid.clone(),
                    lineage: lineage.clone(),
                    epoch_samples: *epoch_samples,
                    global_batch_size: *global_batch_size,
                    micro_batch_size: *micro_batch_size,
                    seed: *seed,
                    origin: DataProgress::default(),
                    length: *length,
                };
                run = Some((first, fixed, *generation, name));
            }
            Some((run, first, newest, first_name)) => {
                if run.job != *job_uid {
                    return Err(AuditError::SeveralJobs {
                        file: name,
                        found: job_uid.clone(),
                        other: run.job.clone(),
                    });
                }
                if fixed != *first {
                    findings.violation(
                        Rule::SettingsDiffer,
                        None,
                        format!("{name} trained with {fixed:?}, {first_name} with {first:?}"),
                    );
                }
                if generation > newest {
                    *newest = *generation;
                    run.lineage = lineage.clone();
                    run.length = *length;
                }
            }
        }
    }
    let Some((mut run, ..)) = run else {
        return Ok(None);
    };
    if let Some(lineage) = &given.lineage {
        run.lineage = lineage.clone();
    }
    run.origin = origin(members, &run.lineage, findings);
    check_lineage(&run.lineage, findings);
    check_told(members, &run.lineage, findings);
    Ok(Some(run))
}

/// Where in the data the lineage's first generation began.
fn origin(
    members: &[(RecordLine, Reader<'_, '_>)],
    lineage: &Lineage,
    findings: &mut Findings,
) -> DataProgress {
    let first = lineage.0.first().map(|e| e.generation);
    let mut found: Option<(DataProgress, &str)> = None;
    for (opened, reader) in members {
        match opened {
            RecordLine::Opened {
                generation, origin, ..
            } if Some(*generation) == first => match found {
                None => found = Some((*origin, reader.name())),
                Some((other, name)) if other != *origin => findings.violation(
                    Rule::SettingsDiffer,
                    None,
                    format!("{} began at {origin:?}, {name} at {other:?}", reader.name()),
                ),
                Some(_) => {}
            },
            _ => {}
        }
    }
    found.map_or_else(DataProgress::default, |(origin, _)| origin)
}

/// Each generation is newer than the one before and began on the lineage.
fn check_lineage(lineage: &Lineage, findings: &mut Findings) {
    let mut so_far = Lineage::default();
    for entry in &lineage.0 {
        if entry.generation <= so_far.newest() {
            findings.violation(
                Rule::LineageBroken,
                None,
                format!(
                    "generation {} follows generation {} on the lineage",
                    entry.generation,
                    so_far.newest()
                ),
            );
        }
        // The first one began from the initial state or from another job's.
        let root = so_far.0.is_empty() && entry.base.generation == Generation::NONE;
        if !root && !so_far.contains(entry.base) {
            findings.violation(
                Rule::LineageBroken,
                None,
                format!(
                    "generation {} began from {}, which is not on the lineage",
                    entry.generation, entry.base
                ),
            );
        }
        so_far = so_far.extended(entry.generation, entry.base);
    }
}

/// Members of generations on the lineage were told that lineage up to their own generation.
fn check_told(members: &[(RecordLine, Reader<'_, '_>)], lineage: &Lineage, findings: &mut Findings) {
    for (opened, reader) in members {
        let RecordLine::Opened {
            generation,
            lineage: told,
            ..
        } = opened
        else {
            continue;
        };
        let until = lineage.0.iter().position(|e| e.generation == *generation);
        if until.is_some_and(|i| told.0 != lineage.0[..=i]) {
            findings.violation(
                Rule::LineageBroken,
                None,
                format!(
                    "{} was told another lineage up to generation {generation}",
                    reader.name()
                ),
            );
        }
    }
}
