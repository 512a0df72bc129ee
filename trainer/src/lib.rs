//! gradsync.

pub mod random;
pub mod torch;
