//! Claims about the audit, over records of made-up runs.

mod broken;
mod clean;

use super::*;
use crate::grid::{part_count, part_samples, parts_of_share};
use crate::identity::{Generation, Incarnation, MemberId, PodUid};
use crate::manifest::DataProgress;
use crate::order::Order;
use crate::record::{CommitKind, ComputedPart, RECORD_VERSION, RecordLine};
use crate::run_config::Length;
use std::io::Cursor;

pub(super) const SAMPLES: u64 = 53;
pub(super) const BATCH: u64 = 10;
pub(super) const MICRO: u64 = 3;
pub(super) const SEED: u64 = 11;

/// One member's record.
#[derive(Clone)]
pub(super) struct Record {
    pub(super) name: String,
    pub(super) generation: u64,
    pub(super) lines: Vec<RecordLine>,
    /// Bytes after the last whole line.
    pub(super) tail: Vec<u8>,
}

impl Record {
    /// The content of its file.
    pub(super) fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![];
        for line in &self.lines {
            serde_json::to_writer(&mut bytes, line).unwrap();
            bytes.push(b'\n');
        }
        bytes.extend(&self.tail);
        bytes
    }
}

/// A made-up run that keeps every rule.
pub(super) struct Simulation {
    pub(super) records: Vec<Record>,
    pub(super) lineage: Lineage,
    /// Where the current generation stands, and where each commit on the lineage left off.
    position: Position,
    states: Vec<(Position, DataProgress)>,
    length: Length,
    origin: DataProgress,
}

impl Simulation {
    pub(super) fn new(length: Length) -> Simulation {
        Simulation::from_origin(length, DataProgress::default())
    }

    pub(super) fn from_origin(length: Length, origin: DataProgress) -> Simulation {
        let root = Position {
            commit: origin.step,
            generation: Generation::NONE,
        };
        Simulation {
            records: vec![],
            lineage: Lineage::default(),
            position: root,
            states: vec![(root, origin)],
            length,
            origin,
        }
    }

    fn progress(&self) -> DataProgress {
        self.states.last().unwrap().1
    }

    /// A new generation of `world` members from the state at commit `base`, or from the newest.
    pub(super) fn form(&mut self, world: u32, base: Option<u64>) {
        if let Some(commit) = base {
            self.states.retain(|(p, _)| p.commit <= commit);
        }
        let base = self.states.last().unwrap().0;
        let generation = self.lineage.newest().next();
        // As the rendezvous service does: generations that contribute nothing any more are left out.
        self.lineage.0.retain(|e| e.base.commit < base.commit);
        self.lineage = self.lineage.extended(generation, base);
        self.position = base;
        for rank in 0..world {
            self.records.push(Record {
                name: format!("records/{generation}-{rank}.jsonl"),
                generation: generation.0,
                tail: vec![],
                lines: vec![RecordLine::Opened {
                    version: RECORD_VERSION,
                    job_uid: JobUid("job-1".into()),
                    generation,
                    member: MemberId {
                        slot: rank,
                        local_rank: 0,
                        pod: PodUid(format!("pod-{rank}")),
                        incarnation: Incarnation(uuid::Uuid::from_u128(
                            u128::from(generation.0) << 32 | u128::from(rank),
                        )),
                    },
                    rank,
                    world_size: world,
                    lineage: self.lineage.clone(),
                    epoch_samples: SAMPLES,
                    global_batch_size: BATCH,
                    micro_batch_size: MICRO,
                    seed: SEED,
                    origin: self.origin,
                    length: self.length,
                    at: "2026-01-01T00:00:00Z".into(),
                }],
            });
        }
    }

    pub(super) fn members(&mut self) -> Vec<&mut Record> {
        let newest = self.lineage.newest().0;
        self.records
            .iter_mut()
            .filter(|r| r.generation == newest)
            .collect()
    }

    /// The members compute the next step, without committing it.
    pub(super) fn compute(&mut self) {
        let DataProgress { epoch, cursor, .. } = self.progress();
        let position = Position {
            commit: self.position.commit + 1,
            generation: self.lineage.newest(),
        };
        let samples = BATCH.min(SAMPLES - cursor);
        let order = Order::new(SEED, epoch, SAMPLES);
        let parts = part_count(samples, MICRO);
        let mut members = self.members();
        let world = members.len() as u32;
        for (rank, record) in members.iter_mut().enumerate() {
            let share = parts_of_share(parts, rank as u32, world);
            let parts = share
                .map(|part| {
                    let range = part_samples(samples, parts, part);
                    ComputedPart {
                        part,
                        indices: order.indices(cursor + range.start..cursor + range.end).collect(),
                    }
                })
                .collect();
            record.lines.push(RecordLine::Computed {
                position,
                epoch,
                cursor,
                samples,
                parts,
            });
        }
    }

    pub(super) fn commit(&mut self, kind: CommitKind) {
        let mut progress = self.progress();
        self.position = Position {
            commit: self.position.commit + 1,
            generation: self.lineage.newest(),
        };
        let position = self.position;
        if kind == CommitKind::Apply {
            progress.step += 1;
            progress.cursor += BATCH.min(SAMPLES - progress.cursor);
            if progress.cursor == SAMPLES {
                progress = DataProgress {
                    epoch: progress.epoch + 1,
                    cursor: 0,
                    ..progress
                };
            }
        }
        self.states.push((position, progress));
        for record in self.members() {
            record.lines.push(RecordLine::Committed {
                position,
                kind,
                progress,
                loss: "NaN".into(),
                chain: format!("chain {position}"),
                seconds: 0.1,
                compute_seconds: 0.1,
                wait_seconds: 0.0,
            });
            record.lines.push(RecordLine::Agreed {
                position,
                digest: format!("digest {position}"),
            });
        }
    }

    pub(super) fn steps(&mut self, count: u64) {
        for _ in 0..count {
            self.compute();
            self.commit(CommitKind::Apply);
        }
    }

    pub(super) fn judge(&self, given: &Given) -> Result<Verdict, AuditError> {
        judge(&self.records, given)
    }
}

pub(super) fn judge(records: &[Record], given: &Given) -> Result<Verdict, AuditError> {
    let files: Vec<RecordFile<'_>> = records
        .iter()
        .map(|record| RecordFile {
            name: record.name.clone(),
            open: Box::new(|| Ok(Box::new(Cursor::new(record.bytes())))),
        })
        .collect();
    audit(&files, given)
}

pub(super) fn complete() -> Given {
    Given {
        complete: true,
        ..Given::default()
    }
}
