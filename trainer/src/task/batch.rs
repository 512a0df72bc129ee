//! Data as tasks give it to the engine: splits, sources, batches, and the sum of losses over a batch.

use crate::task::DataError;
use crate::torch::TorchError;
use tch::{Device, Kind, Tensor};
use xxhash_rust::xxh3::Xxh3;

/// Which half of the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Split {
    /// What the model learns from.
    Train,
    /// What it is measured on.
    Test,
}

/// What random changes of samples may depend on, besides the sample's index: never on the step, the part
/// or the worker, so that a sample looks the same whoever reads it, and again after a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AugmentationKey {
    /// Give the samples as they are (evaluation).
    Plain,
    /// Samples of a training epoch.
    Epoch {
        /// The run's seed.
        seed: u64,
        /// The epoch, from 0.
        epoch: u64,
    },
}

/// Samples, numbered from 0. Shared by threads; the same answer for the same question.
#[allow(clippy::len_without_is_empty)] // An empty source is an error when it is opened.
pub trait DataSource: Send + Sync {
    /// Number of samples.
    fn len(&self) -> u64;

    /// The samples at `indices`, in this order, on the CPU.
    ///
    /// # Errors
    /// When an index does not exist or a sample cannot be read.
    fn get(&self, indices: &[u64], key: AugmentationKey) -> Result<Batch, DataError>;

    /// Tells two data sets apart, cheaply: compared between workers and with a checkpoint's.
    fn fingerprint(&self) -> Fingerprint;
}

/// Some samples as tensors.
#[derive(Debug)]
pub struct Batch {
    /// What the model is given; the first dimension counts samples.
    pub inputs: Tensor,
    /// What it should answer.
    pub targets: Tensor,
    /// The samples that these are, as the source really read them: they go into the run record.
    pub indices: Vec<u64>,
    /// Units (samples, tokens) that the loss counts: known before the model is asked.
    pub units: u64,
}

impl Batch {
    /// A batch in which each sample is one unit.
    #[must_use]
    pub fn new(inputs: Tensor, targets: Tensor, indices: &[u64]) -> Self {
        Batch {
            inputs,
            targets,
            indices: indices.to_vec(),
            units: indices.len() as u64,
        }
    }

    /// The same batch with another number of units.
    #[must_use]
    pub fn with_units(mut self, units: u64) -> Self {
        self.units = units;
        self
    }

    /// Number of samples.
    #[must_use]
    pub fn samples(&self) -> u64 {
        self.indices.len() as u64
    }

    /// The same batch on `device`, floating point tensors in `kind`; integers keep theirs.
    ///
    /// # Errors
    /// When memory is short or the device is not there.
    pub fn to(self, device: Device, kind: Kind) -> Result<Self, TorchError> {
        let convert = |tensor: Tensor| -> Result<Tensor, TorchError> {
            let kind = if tensor.f_is_floating_point()? {
                kind
            } else {
                tensor.f_kind()?
            };
            Ok(tensor.f_to_device_(device, kind, false, false)?)
        };
        Ok(Batch {
            inputs: convert(self.inputs)?,
            targets: convert(self.targets)?,
            ..self
        })
    }
}

/// The loss of a batch, as a sum.
#[derive(Debug)]
pub struct LossSum {
    /// Sum of the losses of all units, a scalar that backward can start from.
    pub sum: Tensor,
    /// Units (samples, tokens) in the sum: those of the batch.
    pub count: u64,
    /// Sums of further measures over the same units, by name; `sum / count` is reported.
    pub metrics: Vec<(&'static str, f64)>,
}

impl LossSum {
    /// A loss without further measures.
    #[must_use]
    pub fn new(sum: Tensor, count: u64) -> Self {
        LossSum {
            sum,
            count,
            metrics: Vec::new(),
        }
    }

    /// Adds the sum of a measure over the same units.
    #[must_use]
    pub fn with_metric(mut self, name: &'static str, sum: f64) -> Self {
        self.metrics.push((name, sum));
        self
    }
}

/// Length and sampled content of a data source.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Fingerprint {
    /// Number of samples.
    pub samples: u64,
    /// XXH3-128 over what the source reads, in hex.
    pub content: String,
}

/// Contents up to this many bytes are hashed whole: a few milliseconds.
const WHOLE: usize = 64 << 20;
/// Of larger ones, this many blocks, evenly spread, first and last included ...
const BLOCKS: usize = 256;
/// ... of this many bytes each.
const BLOCK: usize = 64 << 10;

impl Fingerprint {
    /// The fingerprint of `samples` samples that are read from `contents` in the way that `reading`
    /// describes (everything that changes samples: format, stride, limits; never a path).
    #[must_use]
    pub fn of(samples: u64, reading: &str, contents: &[&[u8]]) -> Self {
        Self::sampled(samples, reading, contents, WHOLE)
    }

    fn sampled(samples: u64, reading: &str, contents: &[&[u8]], whole: usize) -> Self {
        let mut hash = Xxh3::new();
        let mut field = |bytes: &[u8], length: usize| {
            hash.update(&(length as u64).to_le_bytes());
            hash.update(bytes);
        };
        field(reading.as_bytes(), reading.len());
        field(&samples.to_le_bytes(), 8);
        for content in contents {
            if content.len() <= whole.max(BLOCK) {
                field(content, content.len());
                continue;
            }
            let last = content.len() - BLOCK;
            for block in 0..BLOCKS {
                let start = (last as u128 * block as u128 / (BLOCKS as u128 - 1)) as usize;
                field(&content[start..start + BLOCK], content.len());
            }
        }
        Fingerprint {
            samples,
            content: format!("{:032x}", hash.digest128()),
        }
    }
}

impl std::fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}-{}", self.samples, self.content)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fingerprint_changes_with_any_byte_of_a_small_source() {
        let content = vec![7u8; 3000];
        let before = Fingerprint::of(10, "numbers", &[&content]);
        for at in [0, 1, 1499, 2999] {
            let mut changed = content.clone();
            changed[at] ^= 1;
            assert_ne!(before, Fingerprint::of(10, "numbers", &[&changed]), "byte {at}");
        }
        assert_ne!(before, Fingerprint::of(11, "numbers", &[&content]));
        assert_ne!(before, Fingerprint::of(10, "other", &[&content]));
        assert_ne!(
            before,
            Fingerprint::of(10, "numbers", &[&content[..10], &content[10..]])
        );
    }

    #[test]
    fn a_fingerprint_of_a_large_source_sees_its_ends_its_length_and_sampled_blocks() {
        let content = vec![7u8; 40 << 20];
        let of = |content: &[u8]| Fingerprint::sampled(10, "numbers", &[content], 1 << 20);
        let before = of(&content);
        let mut changed = content.clone();
        for at in [0, content.len() - 1, (content.len() - BLOCK) / 255 * 100 + 5000] {
            changed[at] ^= 1;
            assert_ne!(before, of(&changed), "byte {at}");
            changed[at] ^= 1;
        }
        assert_ne!(before, of(&content[1..]));
        changed[BLOCK + 1000] ^= 1;
        assert_eq!(before, of(&changed), "between two blocks: sampled, not whole");
    }

    #[test]
    fn a_batch_converts_floating_point_and_leaves_integers() {
        let batch = Batch::new(Tensor::from_slice(&[1.5f32]), Tensor::from_slice(&[3i64]), &[9]);
        let batch = batch.to(Device::Cpu, Kind::Double).unwrap();
        assert_eq!(
            (batch.inputs.kind(), batch.targets.kind()),
            (Kind::Double, Kind::Int64)
        );
        assert_eq!((batch.samples(), batch.inputs.double_value(&[0])), (1, 1.5));
    }
}
