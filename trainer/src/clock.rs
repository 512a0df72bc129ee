//! Time as an argument.

use std::time::Instant;

/// Where time comes from.
pub trait Clock: Send + Sync {
    /// Monotonic time, for durations and deadlines.
    fn now(&self) -> Instant;
    /// Wall-clock time in RFC 3339, for people: no decision depends on it.
    fn wall(&self) -> String;
}

/// The machine's clocks.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Instant {
        Instant::now()
    }

    fn wall(&self) -> String {
        jiff::Timestamp::now()
            .strftime("%Y-%m-%dT%H:%M:%S%.3fZ")
            .to_string()
    }
}
