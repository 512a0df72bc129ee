//! Where a run keeps what the audit needs: the records, and what else is known about the job.

mod known;
mod records;

pub use known::known_about;
pub use records::{Records, find_records};
