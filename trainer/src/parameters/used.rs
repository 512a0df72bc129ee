//! Which parameters took part in a step: those whose gradient some backward pass reached. The optimiser
//! skips the others entirely.

/// One bit for each parameter, in order of registration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsedParameters {
    words: Vec<u64>,
    parameters: usize,
}

impl UsedParameters {
    /// None of `parameters` used.
    #[must_use]
    pub fn none(parameters: usize) -> Self {
        Self {
            words: vec![0; parameters.div_ceil(64)],
            parameters,
        }
    }

    /// Number of parameters.
    #[must_use]
    pub fn len(&self) -> usize {
        self.parameters
    }

    /// True for a model without parameters.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.parameters == 0
    }

    /// Marks one as used; an index beyond the end is ignored.
    pub fn insert(&mut self, parameter: usize) {
        if parameter < self.parameters {
            self.words[parameter / 64] |= 1 << (parameter % 64);
        }
    }

    /// Whether one is used.
    #[must_use]
    pub fn contains(&self, parameter: usize) -> bool {
        parameter < self.parameters && self.words[parameter / 64] >> (parameter % 64) & 1 == 1
    }

    /// Used by this or by `other`.
    pub fn union(&mut self, other: &Self) {
        for (word, others) in self.words.iter_mut().zip(&other.words) {
            *word |= others;
        }
    }

    /// Those that are not used, in order.
    pub fn unused(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.parameters).filter(|parameter| !self.contains(*parameter))
    }

    /// As one number for each parameter, 1 for used: summed over members, anything but 0 means that some
    /// member used it.
    pub fn write_flags(&self, flags: &mut [f64]) {
        for (parameter, flag) in flags.iter_mut().enumerate() {
            *flag = f64::from(u8::from(self.contains(parameter)));
        }
    }

    /// Reads what [`write_flags`](Self::write_flags) wrote, after a sum over members.
    #[must_use]
    pub fn from_flags(flags: &[f64]) -> Self {
        let mut used = Self::none(flags.len());
        for (parameter, flag) in flags.iter().enumerate() {
            if *flag != 0.0 {
                used.insert(parameter);
            }
        }
        used
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_any_member_used_is_used() {
        let (mut first, mut second) = (UsedParameters::none(130), UsedParameters::none(130));
        first.insert(0);
        first.insert(129);
        second.insert(64);
        second.insert(130);
        let (mut a, mut b) = (vec![9.0; 130], vec![9.0; 130]);
        first.write_flags(&mut a);
        second.write_flags(&mut b);
        let sums: Vec<f64> = a.iter().zip(&b).map(|(a, b)| a + b).collect();
        first.union(&second);
        assert_eq!(UsedParameters::from_flags(&sums), first);
        assert_eq!(first.unused().count(), 127);
        assert!(first.contains(129) && first.contains(64) && !first.contains(1) && !first.contains(130));
    }
}
