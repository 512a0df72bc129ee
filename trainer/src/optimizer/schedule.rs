//! The learning rate's course: a pure function of the specification, the horizon and the step, so that
//! any member can compute it and a resume needs nothing saved but the horizon, which is fixed at start.

use gradsync_formats::run_config::{ScheduleName, ScheduleSpec};

/// The learning rate of step `step` (from 0) with base rate `base` and the curve's end at `horizon`.
///
/// Warm-up is a line from 0 that reaches the base rate at its last step: step s of W has (s + 1) / W of it,
/// so no step is wasted on a rate of 0. The curve starts after it. At the horizon and beyond, curves with
/// an end stay at their minimum; so raising the number of steps keeps the curve and holds its last value.
#[must_use]
pub fn learning_rate(base: f64, spec: &ScheduleSpec, horizon: u64, step: u64) -> f64 {
    if step < spec.warmup_steps {
        return base * ((step + 1) as f64 / spec.warmup_steps as f64);
    }
    let start = match spec.name {
        ScheduleName::Constant => return base,
        ScheduleName::Linear | ScheduleName::Cosine => spec.warmup_steps,
        ScheduleName::WarmupStableDecay => horizon.saturating_sub(spec.decay_steps).max(spec.warmup_steps),
    };
    if step >= horizon {
        return spec.min_learning_rate;
    }
    if step <= start {
        return base;
    }
    let progress = (step - start) as f64 / (horizon - start) as f64;
    let left = match spec.name {
        // libm's cosine gives the same bits on every machine.
        ScheduleName::Cosine => 0.5 * (1.0 + libm::cos(std::f64::consts::PI * progress)),
        _ => 1.0 - progress,
    };
    spec.min_learning_rate + (base - spec.min_learning_rate) * left
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn spec(name: ScheduleName, warmup_steps: u64, decay_steps: u64) -> ScheduleSpec {
        ScheduleSpec {
            name,
            warmup_steps,
            total_steps: None,
            min_learning_rate: 0.1,
            decay_steps,
        }
    }

    fn check(spec: &ScheduleSpec, horizon: u64, points: &[(u64, f64)]) {
        for (step, expected) in points {
            let rate = learning_rate(1.0, spec, horizon, *step);
            assert!(
                (rate - expected).abs() < 1e-15,
                "{:?} step {step}: {rate} {expected}",
                spec.name
            );
        }
    }

    #[test]
    fn curves_pass_through_their_points() {
        let warm = [(0, 0.25), (1, 0.5), (3, 1.0), (4, 1.0)];
        for name in [
            ScheduleName::Constant,
            ScheduleName::Linear,
            ScheduleName::Cosine,
            ScheduleName::WarmupStableDecay,
        ] {
            check(&spec(name, 4, 5), 14, &warm);
        }
        check(&spec(ScheduleName::Constant, 4, 0), 14, &[(13, 1.0), (99, 1.0)]);
        let line = [(4, 1.0), (9, 0.55), (13, 0.19), (14, 0.1), (99, 0.1)];
        check(&spec(ScheduleName::Linear, 4, 0), 14, &line);
        let quarter = 0.1 + 0.9 * 0.5 * (1.0 + std::f64::consts::FRAC_1_SQRT_2);
        let cosine = [(4, 1.0), (8, quarter), (12, 0.55), (20, 0.1), (99, 0.1)];
        check(&spec(ScheduleName::Cosine, 4, 0), 20, &cosine);
        let stable = [(4, 1.0), (9, 1.0), (10, 0.82), (13, 0.28), (14, 0.1), (99, 0.1)];
        check(&spec(ScheduleName::WarmupStableDecay, 4, 5), 14, &stable);
    }

    #[test]
    fn a_horizon_within_the_warm_up_ends_it_at_the_minimum() {
        check(
            &spec(ScheduleName::Linear, 10, 0),
            5,
            &[(4, 0.5), (9, 1.0), (10, 0.1)],
        );
        check(
            &spec(ScheduleName::WarmupStableDecay, 10, 50),
            20,
            &[(10, 1.0), (15, 0.55), (20, 0.1)],
        );
    }

    proptest! {
        #[test]
        fn rates_stay_between_zero_and_base_and_never_rise_after_the_warm_up(
            name in 0usize..4, warmup in 0u64..20, decay in 0u64..40, horizon in 0u64..60,
        ) {
            let name = [
                ScheduleName::Constant,
                ScheduleName::Linear,
                ScheduleName::Cosine,
                ScheduleName::WarmupStableDecay,
            ][name];
            let spec = spec(name, warmup, decay);
            let rates: Vec<_> = (0..80).map(|step| learning_rate(1.0, &spec, horizon, step)).collect();
            prop_assert!(rates.iter().all(|rate| (0.0..=1.0).contains(rate)));
            prop_assert!(rates[warmup as usize..].windows(2).all(|pair| pair[1] <= pair[0]));
        }
    }
}
