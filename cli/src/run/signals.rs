//! The signals by which a run is stopped.

use anyhow::Context as _;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// SIGINT, SIGTERM and SIGHUP.
pub struct Signals {
    interrupt: Signal,
    terminate: Signal,
    /// None where whoever started us had it ignored, as `nohup` does: then the run outlives its terminal.
    hang_up: Option<Signal>,
}

impl Signals {
    /// From now on these signals do not end the process.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn watch() -> anyhow::Result<Signals> {
        let watched = |kind| signal(kind).context("watch signals");
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let hang_up = match ignores_hang_up(&status) {
            true => None,
            false => Some(watched(SignalKind::hangup())?),
        };
        Ok(Signals {
            interrupt: watched(SignalKind::interrupt())?,
            terminate: watched(SignalKind::terminate())?,
            hang_up,
        })
    }

    /// The name of the next one.
    pub async fn next(&mut self) -> &'static str {
        let hang_up = async {
            match &mut self.hang_up {
                Some(signal) => signal.recv().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = self.interrupt.recv() => "Ctrl-C",
            _ = self.terminate.recv() => "SIGTERM",
            _ = hang_up => "SIGHUP",
        }
    }
}

/// Whether `/proc/self/status` says that SIGHUP is ignored: bit 0 of the hexadecimal mask after `SigIgn:`.
fn ignores_hang_up(status: &str) -> bool {
    status
        .lines()
        .find_map(|line| line.strip_prefix("SigIgn:"))
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .is_some_and(|mask| mask & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ignored_hang_up_is_read_from_the_mask() {
        assert!(ignores_hang_up("Name:\tx\nSigIgn:\t0000000000001001\n"));
        assert!(!ignores_hang_up("Name:\tx\nSigIgn:\t0000000000001000\n"));
        assert!(!ignores_hang_up(""));
    }
}
