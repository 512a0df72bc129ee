//! A rank process: reads what its agent tells it, connects the training loop to the world, and turns the
//! end into an exit code.

use crate::agent::environment::RankEnvironment;
use crate::agent::exit_code;
use crate::agent::rank_start::{self, StartError};
use crate::clock::SystemClock;
use crate::record::to_disk;
use crate::step::{Fatal, FatalKind};
use crate::task::Task;
use crate::train::{End, Patience, Summary, Surroundings, train};
use crate::transport::TcpTransport;
use gradsync_formats::store::{DirectoryStore, Store};
use std::path::Path;
use std::sync::Arc;

/// Runs a rank that was started by an agent, to its end. Returns the exit code.
#[must_use]
pub fn run(tasks: &[Box<dyn Task>]) -> u8 {
    match start(tasks) {
        Ok(summary) => {
            tracing::info!(position = %summary.position, steps = summary.steps, end = ?summary.end, "this rank ends");
            match summary.end {
                End::Complete | End::AlreadyFinished => exit_code::FINISHED,
                End::Stopped => exit_code::STOPPED,
            }
        }
        Err(fatal) => {
            // The agent shows this line as the reason.
            eprintln!("error: {fatal}");
            match fatal.kind {
                FatalKind::User => exit_code::USER_ERROR,
                FatalKind::Process => exit_code::FAULT,
                FatalKind::Refused => exit_code::REFUSED,
                FatalKind::Abandoned => exit_code::PARENT_GONE,
            }
        }
    }
}

fn start(tasks: &[Box<dyn Task>]) -> Result<Summary, Fatal> {
    let environment = RankEnvironment::read(|name| std::env::var(name).ok()).map_err(Fatal::user)?;
    let mut link = rank_start::connect(&environment).map_err(|error| match error {
        StartError::ParentGone { .. } => Fatal::abandoned(error),
        StartError::System { .. } => Fatal::process(error),
    })?;
    let patience = Patience::default();
    let mut transport = TcpTransport::new(environment.listen_address, patience.operation);
    let paths = environment.paths.clone();
    let open_store = |directory: &str| -> Result<Arc<dyn Store>, _> {
        Ok(Arc::new(DirectoryStore::new(paths.apply(Path::new(directory)))) as Arc<dyn Store>)
    };
    train(
        tasks,
        &mut Surroundings {
            group: &mut link,
            transport: &mut transport,
            clock: &SystemClock,
            open_store: &open_store,
            observer: &mut (),
            paths: environment.paths.clone(),
            records: environment.record_directory.clone(),
            to_disk: &to_disk,
            patience,
        },
    )
}
