//! The launcher's own log, and the ends of its workers' logs.

use anyhow::Context as _;
use std::path::Path;

/// Sends what launcher and rendezvous service log to a file: the terminal is the view's.
///
/// # Errors
/// When the file cannot be written.
pub fn log_to(path: &Path) -> anyhow::Result<()> {
    let file = std::fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(path)
        .with_context(|| format!("write {}", path.display()))?;
    let filter = tracing_subscriber::EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info"));
    // Only a second call in one process finds another subscriber; its log is as good.
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(false)
        // A full disk would otherwise be told of on the terminal once for each line.
        .log_internal_errors(false)
        .with_writer(std::sync::Mutex::new(file))
        .try_init();
    Ok(())
}

/// The last lines of a log, with its name.
#[must_use]
pub fn tail(log: &Path) -> String {
    const LINES: usize = 15;
    // Lossy, since a log may hold anything; a log that cannot be read has no last lines.
    let text = std::fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().collect();
    let tail = &lines[lines.len().saturating_sub(LINES)..];
    format!("last lines of {}:\n  {}\n", log.display(), tail.join("\n  "))
}
