//! What identifies a replicated state: one XXH3-128 per tensor, and one over all of them in the order of
//! their names. Two members that should hold the same state compare these, and the first tensor that
//! differs is named.

use crate::torch::{TorchError, read_bytes};
use std::collections::BTreeMap;
use tch::{Device, Tensor};
use xxhash_rust::xxh3::{Xxh3, xxh3_128};

/// XXH3-128 over a tensor's elements, as they lie in memory (little endian on every machine that we run
/// on); tensors of other devices are copied first.
///
/// # Errors
/// When libtorch refuses.
pub fn tensor_digest(tensor: &Tensor) -> Result<u128, TorchError> {
    let plain = tensor.f_detach()?.f_to_device(Device::Cpu)?.f_contiguous()?;
    read_bytes(&plain, xxh3_128)
}

/// Digests of all tensors of a state, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StateDigest {
    tensors: BTreeMap<String, u128>,
}

/// The first difference between two states, in the order of names.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Difference {
    /// The same tensor with other elements.
    #[error("tensor {name} differs: {ours:032x} here, {theirs:032x} there")]
    Content {
        /// Its name.
        name: String,
        /// Its digest here.
        ours: u128,
        /// Its digest there.
        theirs: u128,
    },
    /// A tensor that only this state has.
    #[error("tensor {name} is here and not there")]
    OnlyHere {
        /// Its name.
        name: String,
    },
    /// A tensor that only the other state has.
    #[error("tensor {name} is there and not here")]
    OnlyThere {
        /// Its name.
        name: String,
    },
}

impl StateDigest {
    /// Of nothing.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a tensor under a name that says its section too, such as `parameter/conv.weight`. A name that
    /// is there already is replaced.
    ///
    /// # Errors
    /// When libtorch refuses.
    pub fn add(&mut self, name: impl Into<String>, tensor: &Tensor) -> Result<(), TorchError> {
        let digest = tensor_digest(tensor)?;
        self.tensors.insert(name.into(), digest);
        Ok(())
    }

    /// Adds bytes that are part of the state, such as the encoding of its scalars.
    pub fn add_bytes(&mut self, name: impl Into<String>, bytes: &[u8]) {
        self.tensors.insert(name.into(), xxh3_128(bytes));
    }

    /// Names and digests, by name.
    pub fn tensors(&self) -> impl Iterator<Item = (&str, u128)> {
        self.tensors.iter().map(|(name, digest)| (name.as_str(), *digest))
    }

    /// The digest of the whole: XXH3-128 over all names and digests in the order of names.
    #[must_use]
    pub fn whole(&self) -> u128 {
        let mut hash = Xxh3::new();
        for (name, digest) in &self.tensors {
            hash.update(&(name.len() as u64).to_le_bytes());
            hash.update(name.as_bytes());
            hash.update(&digest.to_le_bytes());
        }
        hash.digest128()
    }

    /// [`whole`](Self::whole) in hex, as manifests and summaries show it.
    #[must_use]
    pub fn whole_hex(&self) -> String {
        format!("{:032x}", self.whole())
    }

    /// The first tensor in which this state differs from `other`; None if they are equal.
    #[must_use]
    pub fn first_difference(&self, other: &Self) -> Option<Difference> {
        let names: std::collections::BTreeSet<_> = self.tensors.keys().chain(other.tensors.keys()).collect();
        names
            .into_iter()
            .find_map(|name| match (self.tensors.get(name), other.tensors.get(name)) {
                (Some(ours), Some(theirs)) if ours == theirs => None,
                (Some(ours), Some(theirs)) => Some(Difference::Content {
                    name: name.clone(),
                    ours: *ours,
                    theirs: *theirs,
                }),
                (Some(_), None) => Some(Difference::OnlyHere { name: name.clone() }),
                (None, _) => Some(Difference::OnlyThere { name: name.clone() }),
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(b: &[f64]) -> StateDigest {
        let mut digest = StateDigest::new();
        // Added out of order on purpose.
        digest.add("parameter/b", &Tensor::from_slice(b)).unwrap();
        digest.add("buffer/mean", &Tensor::from_slice(&[1.0f32])).unwrap();
        digest
            .add("parameter/a", &Tensor::from_slice(&[1.0, 2.0]))
            .unwrap();
        digest.add_bytes("scalars", b"{\"step\":1}");
        digest
    }

    #[test]
    fn one_flipped_bit_changes_the_whole_and_is_named() {
        let (ours, theirs) = (
            state(&[3.0, 4.0]),
            state(&[3.0, f64::from_bits(4.0f64.to_bits() ^ 1)]),
        );
        assert_eq!(ours.whole(), state(&[3.0, 4.0]).whole());
        assert_ne!(ours.whole(), theirs.whole());
        assert_eq!(ours.first_difference(&state(&[3.0, 4.0])), None);
        let difference = ours.first_difference(&theirs).unwrap();
        assert!(matches!(&difference, Difference::Content { name, .. } if name == "parameter/b"));
        assert!(
            difference.to_string().starts_with("tensor parameter/b differs: "),
            "{difference}"
        );
    }

    #[test]
    fn a_missing_tensor_is_named_on_either_side() {
        let (full, mut more) = (state(&[1.0]), state(&[1.0]));
        more.add("parameter/aa", &Tensor::from_slice(&[0.0])).unwrap();
        assert_ne!(full.whole(), more.whole());
        let name = "parameter/aa".to_owned();
        assert_eq!(
            full.first_difference(&more),
            Some(Difference::OnlyThere { name: name.clone() })
        );
        assert_eq!(more.first_difference(&full), Some(Difference::OnlyHere { name }));
    }

    #[test]
    fn digests_are_of_the_elements_in_order_whatever_the_strides() {
        let matrix = Tensor::from_slice(&[1.0, 2.0, 3.0, 4.0]).view([2, 2]);
        let transposed = Tensor::from_slice(&[1.0, 3.0, 2.0, 4.0]).view([2, 2]);
        assert_eq!(
            tensor_digest(&matrix.tr()).unwrap(),
            tensor_digest(&transposed).unwrap()
        );
        assert_eq!(
            tensor_digest(&Tensor::from_slice(&[0u8; 0])).unwrap(),
            xxh3_128(&[]),
            "no elements"
        );
        let leaf = Tensor::from_slice(&[1.0]).set_requires_grad(true);
        assert_eq!(tensor_digest(&leaf).unwrap(), xxh3_128(&1.0f64.to_le_bytes()));
    }
}
