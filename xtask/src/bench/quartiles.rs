//! Median and quartiles: how every measurement here is summed up.

use serde::Serialize;

/// Median and the quartiles around it; NaN of no values.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Quartiles {
    pub(crate) median: f64,
    pub(crate) lower: f64,
    pub(crate) upper: f64,
}

impl Quartiles {
    pub(crate) fn of(mut values: Vec<f64>) -> Quartiles {
        values.sort_by(f64::total_cmp);
        let at = |quarter: f64| {
            let place = quarter * values.len().saturating_sub(1) as f64;
            let value = |index: usize| values.get(index).copied().unwrap_or(f64::NAN);
            let (low, high) = (value(place.floor() as usize), value(place.ceil() as usize));
            low + (high - low) * place.fract()
        };
        Quartiles {
            median: at(0.5),
            lower: at(0.25),
            upper: at(0.75),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quartiles_interpolate_and_do_not_depend_on_order() {
        let quartiles = Quartiles::of(vec![4.0, 1.0, 3.0, 2.0]);
        assert_eq!(
            quartiles,
            Quartiles {
                median: 2.5,
                lower: 1.75,
                upper: 3.25
            }
        );
        assert_eq!(Quartiles::of(vec![7.0]).median, 7.0);
    }
}
