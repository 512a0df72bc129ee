//! Pauses between tries.

use std::time::Duration;

/// Doubling pauses with jitter: each is drawn from the upper half of its range, so that many clients of a
/// service that was down do not come back together.
#[derive(Debug)]
pub(super) struct Pauses {
    next: Duration,
    longest: Duration,
}

impl Pauses {
    pub(super) fn new(first: Duration, longest: Duration) -> Pauses {
        Pauses {
            next: first.min(longest),
            longest,
        }
    }

    /// The next pause.
    pub(super) fn next(&mut self) -> Duration {
        let random = uuid::Uuid::new_v4().as_u128() as u32;
        let pause = self
            .next
            .mul_f64(0.5 + 0.5 * f64::from(random) / f64::from(u32::MAX));
        self.next = (self.next * 2).min(self.longest);
        pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest_and_differ() {
        let ms = Duration::from_millis;
        let mut pauses = Pauses::new(ms(100), ms(400));
        for full in [100, 200, 400, 400] {
            let pause = pauses.next();
            assert!(pause >= ms(full / 2) && pause <= ms(full), "{pause:?} of {full}");
        }
        let mut firsts: Vec<_> = (0..16).map(|_| Pauses::new(ms(100), ms(400)).next()).collect();
        firsts.dedup();
        assert!(firsts.len() > 1);
    }
}
