//! The signals by which a run is stopped.

use anyhow::Context as _;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// SIGINT and SIGTERM.
pub struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    /// From now on these signals do not end the process.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn watch() -> anyhow::Result<Signals> {
        Ok(Signals {
            interrupt: signal(SignalKind::interrupt()).context("watch signals")?,
            terminate: signal(SignalKind::terminate()).context("watch signals")?,
        })
    }

    /// The name of the next one.
    pub async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.interrupt.recv() => "Ctrl-C",
            _ = self.terminate.recv() => "SIGTERM",
        }
    }
}
