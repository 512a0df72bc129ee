//! A whole group in one process: ranks as threads, the real membership machine in memory, the real step
//! engine, either transport.

mod images;
mod meddle;
mod rendezvous;
mod run;
mod store;
mod watch;

pub use images::cnn;
pub use meddle::{Act, MeddledTask, meddle};
pub use rendezvous::{LostJoins, MemoryGroup, Rendezvous, job};
pub use run::{Run, Wire, audit, copy_store, die, recoveries};
pub use store::Call;
pub use watch::{Captured, Watch, distance, watch};

use gradsync_formats::run_config::RunConfig;
use gradsync_trainer::task::Task;

/// The configuration that a manifest's `spec` resolves to.
pub fn config(spec: serde_json::Value) -> RunConfig {
    gradsync_formats::run_config::resolve("test", &spec).expect("the test's specification is valid")
}

/// The built-in tasks, for every rank.
pub fn builtin(_: u32) -> Vec<Box<dyn Task>> {
    gradsync_trainer::tasks::builtin()
}
