//! Which parameters weight decay applies to.

/// One answer for each parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecayMask {
    /// By parameter: whether it decays.
    pub decays: Vec<bool>,
    /// Patterns that fit no parameter: most likely misspelt, so worth a warning.
    pub unmatched: Vec<String>,
}

/// Applies `noDecay` to parameter names. A pattern is a name, or `*` and the end of names: `*.bias` fits
/// `layer1.bias`.
pub fn decay_mask<'a>(names: impl IntoIterator<Item = &'a str>, no_decay: &[String]) -> DecayMask {
    let mut matched = vec![false; no_decay.len()];
    let decays = names
        .into_iter()
        .map(|name| {
            let mut decays = true;
            for (pattern, matched) in no_decay.iter().zip(&mut matched) {
                if fits(name, pattern) {
                    *matched = true;
                    decays = false;
                }
            }
            decays
        })
        .collect();
    let unmatched = no_decay
        .iter()
        .zip(matched)
        .filter(|(_, matched)| !matched)
        .map(|(pattern, _)| pattern.clone())
        .collect();
    DecayMask { decays, unmatched }
}

fn fits(name: &str, pattern: &str) -> bool {
    match pattern.strip_prefix('*') {
        Some(end) => name.ends_with(end),
        None => name == pattern,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_names_or_ends_of_names_and_useless_ones_are_told() {
        let names = ["head.weight", "head.bias", "norm.weight", "bias"];
        let patterns = ["*.bias", "norm.weight", "weight", "*.gain"].map(String::from);
        let mask = decay_mask(names, &patterns);
        assert_eq!(mask.decays, [true, false, false, true]);
        assert_eq!(mask.unmatched, ["weight", "*.gain"]);
        assert_eq!(decay_mask(names, &["*".to_owned()]).decays, [false; 4]);
        assert_eq!(decay_mask(names, &[]).decays, [true; 4]);
    }
}
