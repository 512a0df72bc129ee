//! gradsync.

pub mod parameters;
pub mod random;
pub mod torch;
