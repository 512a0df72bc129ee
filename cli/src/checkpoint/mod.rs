//! Checkpoints on this machine, for people: where they are and what they hold.

mod describe;
mod find;

pub use describe::{Description, Row, describe, rows};
pub use find::{Job, find_jobs, open};
