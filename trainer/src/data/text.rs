//! The bytes of a text file as samples for a language model. Sample `i` covers the bytes from `i * stride`:
//! `context` of them as inputs, and each one's successor as its target. The last sample may have fewer: it
//! is filled up with targets that do not count, and its units are the tokens that do.

use crate::task::{AugmentationKey, Batch, DataError, DataSource, Fingerprint, Split};
use std::path::Path;
use tch::Tensor;

/// The target of a place that does not count.
pub const NO_TARGET: i64 = -100;

/// What to read, and how.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TextOptions {
    /// Tokens of a sample.
    pub context: u64,
    /// Bytes from one sample's start to the next one's.
    pub stride: u64,
    /// Bytes are below this.
    pub vocab: u64,
    /// Share of the file, at its end, that is kept for testing.
    pub test_fraction: f64,
    /// Use only the first so many samples.
    pub limit: Option<u64>,
}

/// Tokens `[samples, context]` (64-bit integers) and their successors, likewise.
#[derive(Debug)]
pub struct Text {
    bytes: Vec<u8>,
    options: TextOptions,
    samples: u64,
}

impl Text {
    /// Opens one split of the file at `path`.
    ///
    /// # Errors
    /// When the file cannot be read, is too short, or has a byte outside the vocabulary.
    pub fn open(path: &Path, split: Split, options: TextOptions) -> Result<Self, DataError> {
        let mut bytes = std::fs::read(path).map_err(|source| DataError::Read {
            path: path.to_owned(),
            source,
            hint: "spec.task.parameters.data is a text file of any kind".to_owned(),
        })?;
        let content = |problem: String| DataError::Content {
            path: path.to_owned(),
            problem,
        };
        if let Some(at) = bytes.iter().position(|byte| u64::from(*byte) >= options.vocab) {
            return Err(content(format!(
                "byte {} at offset {at} is not below {} (spec.task.parameters.vocab)",
                bytes[at], options.vocab
            )));
        }
        let whole = bytes.len();
        let test = (whole as f64 * options.test_fraction).round() as usize;
        match split {
            Split::Train => bytes.truncate(whole - test),
            Split::Test => drop(bytes.drain(..whole - test)),
        }
        bytes.shrink_to_fit();
        if bytes.len() < 2 {
            return Err(content(format!(
                "its {whole} bytes leave {} for {split:?} (spec.task.parameters.testFraction is {}); a sample needs 2 at least",
                bytes.len(),
                options.test_fraction
            )));
        }
        let samples = samples(bytes.len() as u64 - 1, options.context, options.stride);
        Ok(Text {
            bytes,
            options,
            samples: options.limit.map_or(samples, |limit| samples.min(limit)),
        })
    }
}

/// Samples that cover `targets` targets: as few as reach the last one.
fn samples(targets: u64, context: u64, stride: u64) -> u64 {
    let reaching = 1 + targets.saturating_sub(context).div_ceil(stride);
    // With gaps between samples the last target may lie in one.
    reaching.min(targets.div_ceil(stride))
}

impl DataSource for Text {
    fn len(&self) -> u64 {
        self.samples
    }

    fn get(&self, indices: &[u64], _: AugmentationKey) -> Result<Batch, DataError> {
        let context = self.options.context as usize;
        let mut inputs = Vec::with_capacity(indices.len() * context);
        let mut targets = Vec::with_capacity(indices.len() * context);
        let mut units = 0;
        for &index in indices {
            if index >= self.samples {
                return Err(DataError::NoSuchSample {
                    index,
                    len: self.samples,
                });
            }
            let start = (index * self.options.stride) as usize;
            let sample = &self.bytes[start..self.bytes.len().min(start + context + 1)];
            let tokens = sample.len() - 1;
            inputs.extend(sample[..tokens].iter().copied().map(i64::from));
            targets.extend(sample[1..].iter().copied().map(i64::from));
            inputs.resize(inputs.len() + context - tokens, 0);
            targets.resize(targets.len() + context - tokens, NO_TARGET);
            units += tokens as u64;
        }
        let shape = [indices.len() as i64, context as i64];
        Ok(Batch::new(
            Tensor::f_from_slice(&inputs)?.f_reshape(shape)?,
            Tensor::f_from_slice(&targets)?.f_reshape(shape)?,
            indices,
        )
        .with_units(units))
    }

    fn fingerprint(&self) -> Fingerprint {
        let reading = format!(
            "bytes, context {}, stride {}",
            self.options.context, self.options.stride
        );
        Fingerprint::of(self.samples, &reading, &[&self.bytes])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const OPTIONS: TextOptions = TextOptions {
        context: 8,
        stride: 8,
        vocab: 256,
        test_fraction: 0.25,
        limit: None,
    };

    fn open(bytes: &[u8], split: Split, options: TextOptions) -> Result<Text, DataError> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("text");
        std::fs::write(&path, bytes).unwrap();
        Text::open(&path, split, options)
    }

    fn numbers(tensor: &Tensor) -> Vec<i64> {
        Vec::try_from(tensor.reshape([-1])).unwrap()
    }

    #[test]
    fn targets_are_the_successors_and_the_last_sample_counts_its_tokens_only() {
        let bytes: Vec<u8> = (0..40).collect();
        let text = open(&bytes, Split::Train, OPTIONS).unwrap();
        assert_eq!(text.len(), 4);
        let batch = text.get(&[3, 1], AugmentationKey::Plain).unwrap();
        assert_eq!(batch.inputs.size(), [2, 8]);
        assert_eq!(numbers(&batch.inputs.get(1)), (8..16).collect::<Vec<i64>>());
        assert_eq!(numbers(&batch.targets.get(1)), (9..17).collect::<Vec<i64>>());
        assert_eq!(numbers(&batch.inputs.get(0)), [24, 25, 26, 27, 28, 0, 0, 0]);
        assert_eq!(
            numbers(&batch.targets.get(0)),
            [25, 26, 27, 28, 29, -100, -100, -100]
        );
        assert_eq!((batch.units, batch.samples()), (13, 2));
        let test = open(&bytes, Split::Test, OPTIONS).unwrap();
        assert_eq!(test.len(), 2);
        let batch = test.get(&[0], AugmentationKey::Plain).unwrap();
        assert_eq!(numbers(&batch.inputs), (30..38).collect::<Vec<i64>>());
    }

    proptest! {
        #[test]
        fn samples_reach_every_target_and_each_has_one(
            length in 2usize..200, context in 1u64..20, stride in 1u64..30,
        ) {
            let options = TextOptions { context, stride, test_fraction: 0.0, ..OPTIONS };
            let text = open(&vec![1; length], Split::Train, options).unwrap();
            let targets = length as u64 - 1;
            let mut reached = 0;
            for index in 0..text.len() {
                let units = text.get(&[index], AugmentationKey::Plain).unwrap().units;
                prop_assert!(units >= 1 && units <= context);
                prop_assert!(index + 1 == text.len() || units == context);
                prop_assert!(reached < index * stride + units, "sample {} adds nothing", index);
                reached = index * stride + units;
            }
            prop_assert!(reached == targets || (stride > context && reached + stride - context >= targets));
        }
    }

    #[test]
    fn the_fingerprint_changes_with_a_byte_and_with_the_reading() {
        let bytes: Vec<u8> = (0..100).collect();
        let of = |bytes: &[u8], options| open(bytes, Split::Train, options).unwrap().fingerprint();
        let before = of(&bytes, OPTIONS);
        for at in [0, 40, 74] {
            let mut changed = bytes.clone();
            changed[at] = 200;
            assert_ne!(before, of(&changed, OPTIONS), "byte {at}");
        }
        assert_ne!(before, of(&bytes, TextOptions { stride: 4, ..OPTIONS }));
        assert_ne!(
            before,
            of(
                &bytes,
                TextOptions {
                    context: 4,
                    ..OPTIONS
                }
            )
        );
        assert_ne!(
            before,
            of(
                &bytes,
                TextOptions {
                    limit: Some(2),
                    ..OPTIONS
                }
            )
        );
    }

    #[test]
    fn unusable_files_are_refused_by_name_and_place() {
        let error = Text::open(Path::new("/nowhere/x"), Split::Train, OPTIONS)
            .unwrap_err()
            .to_string();
        assert!(
            error.starts_with("read /nowhere/x: ") && error.contains("spec.task.parameters.data"),
            "{error}"
        );
        let error = open(
            b"abc\xff",
            Split::Train,
            TextOptions {
                vocab: 128,
                ..OPTIONS
            },
        )
        .unwrap_err()
        .to_string();
        assert!(
            error.ends_with("byte 255 at offset 3 is not below 128 (spec.task.parameters.vocab)"),
            "{error}"
        );
        let error = open(b"abc", Split::Test, OPTIONS).unwrap_err().to_string();
        assert!(
            error.contains("its 3 bytes leave 1 for Test") && error.contains("testFraction"),
            "{error}"
        );
        assert!(open(b"", Split::Train, OPTIONS).is_err());
        let text = open(b"abcdefgh", Split::Train, OPTIONS).unwrap();
        assert!(matches!(
            text.get(&[1], AugmentationKey::Plain),
            Err(DataError::NoSuchSample { index: 1, len: 1 })
        ));
    }
}
