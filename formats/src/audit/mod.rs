//! The audit: proves from the run record that training used what it should have.
//!
//! It reads what every member wrote before each step could commit (which indices its data source really
//! returned, part by part) and judges only the commits on the lineage:
//!
//! - every commit's parts are those of the grid, each computed exactly once, with exactly the samples that
//!   the keyed order puts there;
//! - a step has exactly the global batch, the last of an epoch its true size;
//! - each epoch uses every index exactly once (counted in a bit set, independently of the order);
//! - generations grow, their bases lie on the lineage, nothing is missing between them;
//! - all members agree on each commit's kind, progress and chain value.
//!
//! Commits beyond the base of a later generation never happened; they are counted apart. The audit is pure
//! over its inputs, reads each file once from front to back, and holds one step of each member and the
//! bit set of one epoch in memory.

mod coverage;
mod header;
mod lines;
mod merge;
mod step;
mod verdict;

#[cfg(test)]
mod tests;

pub use lines::RecordFile;
pub use verdict::{GenerationVerdict, Place, Rule, Verdict, Violation};

use crate::identity::{JobUid, Position};
use crate::lineage::Lineage;
use lines::Reader;

/// What is known beside the records.
#[derive(Clone, Debug, Default)]
pub struct Given {
    /// The job's lineage; None: the longest that a record's first line carries.
    pub lineage: Option<Lineage>,
    /// The last commit that counts; None: the last that a member of the newest generation recorded.
    pub final_position: Option<Position>,
    /// Whether the run says that it trained to its end, which is then checked too.
    pub complete: bool,
    /// Optimiser steps that the run says it applied.
    pub steps: Option<u64>,
}

/// Why the records cannot be judged at all.
#[derive(Debug, thiserror::Error)]
pub enum AuditError {
    /// There are none.
    #[error("find run records: none given, or all of them are empty")]
    NoRecords,
    /// Reading failed.
    #[error("read {file}: {source}")]
    Io {
        /// The record.
        file: String,
        /// The system's reason.
        source: std::io::Error,
    },
    /// A line that is no line of a record, and not the last one of a member that was killed.
    #[error("read {file}, line {line}: {problem}")]
    Malformed {
        /// The record.
        file: String,
        /// Line number, from 1.
        line: u64,
        /// What is wrong.
        problem: String,
    },
    /// Written by a newer version.
    #[error(
        "read {file}: it has record version {found}, this program reads up to {}: use the version of gradsync that wrote it",
        crate::record::RECORD_VERSION
    )]
    Newer {
        /// The record.
        file: String,
        /// Its version.
        found: u32,
    },
    /// The records of more than one job.
    #[error(
        "read {file}: it belongs to job {found}, other records to {other}; audit one job's records at a time"
    )]
    SeveralJobs {
        /// A record of one job.
        file: String,
        /// That job.
        found: JobUid,
        /// The other job.
        other: JobUid,
    },
}

/// Audits `files`, the records of one job.
///
/// # Errors
/// When they cannot be judged: unreadable, of a newer version, of several jobs, or not there. A broken
/// rule is not an error but a violation in the verdict.
pub fn audit(files: &[RecordFile<'_>], given: &Given) -> Result<Verdict, AuditError> {
    let mut findings = verdict::Findings::default();
    let mut members = vec![];
    for file in files {
        match Reader::open(file)? {
            (Some(header), reader) => members.push((header, reader)),
            (None, reader) => findings.note(format!(
                "{}: its member was killed before it had written its first line",
                reader.name()
            )),
        }
    }
    let Some(run) = header::common(&members, given, &mut findings)? else {
        return Err(AuditError::NoRecords);
    };
    let mut steps = step::Steps::new(&run, findings);
    let generations = merge::walk(&run, members, given, &mut steps)?;
    Ok(steps.conclude(&run, given, generations))
}
