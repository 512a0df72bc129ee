//! Proof that no process of an earlier start is left. Every agent and rank holds a shared lock on one file
//! of the output directory for as long as it lives; whoever gets it exclusively knows that all have ended.

use super::output::OutputDirectory;
use anyhow::{Context as _, bail};
use std::fs::{File, TryLockError};
use std::path::PathBuf;
use std::time::Duration;
use tokio::time::Instant;

/// Workers die with their launcher by the kernel's hand, within milliseconds.
const DEADLINE: Duration = Duration::from_secs(20);
const STEP: Duration = Duration::from_millis(20);

/// The file that agents and ranks lock.
#[must_use]
pub fn lock_file(output: &OutputDirectory) -> PathBuf {
    output.join("workers.lock")
}

/// Waits until no process of an earlier start holds the lock.
///
/// # Errors
/// When one still does after the deadline, or the file cannot be used.
pub async fn wait_for_earlier_workers(output: &OutputDirectory) -> anyhow::Result<()> {
    let path = lock_file(output);
    let file = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(&path)
        .with_context(|| format!("open {}", path.display()))?;
    let deadline = Instant::now() + DEADLINE;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(()),
            Err(TryLockError::WouldBlock) if Instant::now() < deadline => tokio::time::sleep(STEP).await,
            Err(TryLockError::WouldBlock) => bail!(
                "use {}: workers of an earlier start are still running; `fuser {}` names them",
                output.path().display(),
                path.display()
            ),
            Err(TryLockError::Error(e)) => return Err(e).with_context(|| format!("lock {}", path.display())),
        }
    }
}
