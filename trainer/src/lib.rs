//! gradsync.

pub mod agent;
pub mod checkpoint;
pub mod clock;
pub mod data;
pub mod group;
pub mod layers;
pub mod optimizer;
pub mod parameters;
pub mod random;
pub mod task;
pub mod tasks;
pub mod torch;
