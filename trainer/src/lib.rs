//! The trainer of gradsync: what a worker runs.
//!
//! A user's own trainer implements [`task::Task`] and calls [`main`]; it gets every strategy, elasticity,
//! checkpoints and recovery for nothing.

pub mod agent;
pub mod agree;
pub mod checkpoint;
pub mod clock;
pub mod data;
pub mod evaluation;
pub mod group;
pub mod layers;
pub mod optimizer;
pub mod parameters;
pub mod program;
pub mod random;
pub mod rank;
pub mod record;
pub mod state;
pub mod step;
pub mod strategy;
pub mod task;
pub mod tasks;
pub mod torch;
pub mod train;
pub mod transport;

pub use program::main;
