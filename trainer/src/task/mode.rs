//! Whether a model trains or is evaluated, and the randomness it may use while it trains.

use crate::random::{Key, bernoulli};
use crate::task::TaskError;
use std::cell::Cell;
use tch::Tensor;

/// How a part is computed. In training its randomness is a function of (seed, step, part) and of how often
/// it was asked for before: so a part gives the same result on every worker, and again after a failure.
/// Make a new one for each forward pass.
#[derive(Debug)]
pub struct Mode(Option<Randomness>);

#[derive(Debug)]
struct Randomness {
    key: Key,
    calls: Cell<u64>,
}

impl Mode {
    /// Training part `part` of step `step`.
    #[must_use]
    pub fn train(seed: u64, step: u64, part: u64) -> Self {
        Mode(Some(Randomness {
            key: Key::derive(seed, "model", step, part),
            calls: Cell::new(0),
        }))
    }

    /// Evaluation: nothing is random.
    #[must_use]
    pub fn evaluate() -> Self {
        Mode(None)
    }

    /// Whether the model trains.
    #[must_use]
    pub fn is_training(&self) -> bool {
        self.0.is_some()
    }

    /// A stream of random draws of its own for each call; none in evaluation.
    #[must_use]
    pub fn next_key(&self) -> Option<Key> {
        self.0.as_ref().map(|randomness| {
            let call = randomness.calls.get();
            randomness.calls.set(call + 1);
            randomness.key.child("call", call)
        })
    }

    /// Inverted dropout: in training each element is zeroed with probability `probability` and the others
    /// are divided by the probability of staying; in evaluation `input` itself.
    ///
    /// # Errors
    /// When `probability` is not in [0, 1), or libtorch refuses.
    pub fn dropout(&self, input: &Tensor, probability: f64) -> Result<Tensor, TaskError> {
        if !(0.0..1.0).contains(&probability) {
            return Err(TaskError::other(format!(
                "drop elements with probability {probability}: give one from 0 to below 1"
            )));
        }
        if probability == 0.0 {
            return Ok(input.shallow_clone());
        }
        let Some(key) = self.next_key() else {
            return Ok(input.shallow_clone());
        };
        let keep = 1.0 - probability;
        let mask = bernoulli(key, &input.size(), input.kind(), keep)?.f_to_device(input.device())?;
        // The factor goes into the mask, so that the graph holds one multiplication.
        Ok(input.f_mul(&mask.f_div_scalar(keep)?)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tch::{Device, Kind};

    fn ones() -> Tensor {
        Tensor::ones([50, 40], (Kind::Double, Device::Cpu))
    }

    #[test]
    fn a_part_draws_the_same_masks_whoever_computes_it_and_whatever_came_before() {
        let here = Mode::train(1, 5, 2);
        let masks = [
            here.dropout(&ones(), 0.3).unwrap(),
            here.dropout(&ones(), 0.3).unwrap(),
        ];
        let other_part = Mode::train(1, 5, 1);
        let other = other_part.dropout(&ones(), 0.3).unwrap();
        let there = Mode::train(1, 5, 2);
        let _ = Tensor::rand([3], (Kind::Float, Device::Cpu));
        assert_eq!(masks[0], there.dropout(&ones(), 0.3).unwrap());
        assert_eq!(masks[1], there.dropout(&ones(), 0.3).unwrap());
        assert_ne!(masks[0], masks[1], "two calls of one pass differ");
        assert_ne!(masks[0], other, "two parts differ");
        assert_ne!(masks[0], Mode::train(1, 6, 2).dropout(&ones(), 0.3).unwrap());
        assert_ne!(masks[0], Mode::train(2, 5, 2).dropout(&ones(), 0.3).unwrap());
    }

    #[test]
    fn dropout_keeps_the_mean_and_scales_what_stays() {
        let dropped = Mode::train(1, 0, 0).dropout(&ones(), 0.25).unwrap();
        let mean = dropped.mean(Kind::Double).double_value(&[]);
        assert!((mean - 1.0).abs() < 0.05, "{mean}");
        let values = Vec::<f64>::try_from(dropped.reshape([-1])).unwrap();
        assert!(values.iter().all(|&v| v == 0.0 || v == 1.0 / 0.75));
    }

    #[test]
    fn evaluation_drops_nothing() {
        let mode = Mode::evaluate();
        assert!(!mode.is_training() && mode.next_key().is_none());
        assert_eq!(mode.dropout(&ones(), 0.5).unwrap(), ones());
    }

    #[test]
    fn a_probability_of_one_is_refused() {
        let error = Mode::evaluate().dropout(&ones(), 1.0).unwrap_err().to_string();
        assert!(
            error.contains("probability 1") && error.contains("below 1"),
            "{error}"
        );
    }
}
