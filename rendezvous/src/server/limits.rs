//! How much clients may ask of the service.

use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::Instant;

/// The bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Requests per second of one pod, on average; twice as many in a burst.
    pub requests_per_second: u32,
    /// Connections at a time; further ones wait.
    pub connections: usize,
    /// How long the headers, and then the body, of a request may take to arrive.
    pub request_deadline: Duration,
    /// How long a request may wait for its answer, held polls apart.
    pub answer_deadline: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            requests_per_second: 100,
            connections: 1024,
            request_deadline: Duration::from_secs(10),
            answer_deadline: Duration::from_secs(20),
        }
    }
}

/// A token bucket per pod.
#[derive(Debug, Default)]
pub(super) struct Rates {
    buckets: BTreeMap<String, Bucket>,
}

#[derive(Debug)]
struct Bucket {
    tokens: f64,
    at: Instant,
}

/// Beyond this many buckets, full ones are dropped: they say nothing.
const MANY_BUCKETS: usize = 4096;

impl Rates {
    /// Takes one request of `pod` in; if it is one too many, says how long to wait.
    pub(super) fn take(&mut self, pod: &str, per_second: u32, now: Instant) -> Result<(), Duration> {
        let rate = f64::from(per_second.max(1));
        let full = 2.0 * rate;
        if self.buckets.len() > MANY_BUCKETS {
            self.buckets
                .retain(|_, b| b.tokens + now.duration_since(b.at).as_secs_f64() * rate < full);
        }
        let bucket = self.buckets.entry(pod.to_owned()).or_insert(Bucket {
            tokens: full,
            at: now,
        });
        bucket.tokens = (bucket.tokens + now.duration_since(bucket.at).as_secs_f64() * rate).min(full);
        bucket.at = now;
        if bucket.tokens < 1.0 {
            return Err(Duration::from_secs_f64((1.0 - bucket.tokens) / rate));
        }
        bucket.tokens -= 1.0;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_that_asks_too_much_waits_and_others_do_not() {
        let mut rates = Rates::default();
        let start = Instant::now();
        for _ in 0..20 {
            rates.take("a", 10, start).unwrap();
        }
        let wait = rates.take("a", 10, start).unwrap_err();
        assert_eq!(wait, Duration::from_millis(100));
        rates.take("b", 10, start).unwrap();
        rates.take("a", 10, start + wait).unwrap();
        assert!(rates.take("a", 10, start + wait).is_err());
    }
}
