//! Grey images with labels, from a directory of IDX files with the names that MNIST gave them. Held in
//! memory as bytes; turned into numbers, and augmented, when they are asked for.

use crate::data::idx::{self, Idx};
use crate::random::Key;
use crate::task::{AugmentationKey, Batch, DataError, DataSource, Fingerprint, Split};
use std::path::Path;
use tch::Tensor;

/// Mean and deviation of a pixel in [0, 1] over Fashion-MNIST's training images: inputs are centred and
/// scaled by them. Other data sets of the format are near enough.
const PIXEL_MEAN: f32 = 0.286;
const PIXEL_DEVIATION: f32 = 0.353;

/// Augmentation moves an image by up to so many pixels in each direction.
const SHIFT: i64 = 2;

/// What to read, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageOptions {
    /// Height and width of an image in pixels.
    pub size: usize,
    /// Labels are below this.
    pub classes: u8,
    /// Whether training samples are shifted and mirrored at random.
    pub augment: bool,
    /// Use only the first so many samples.
    pub limit: Option<u64>,
}

/// Images `[samples, 1, size, size]` (32-bit floats, centred and scaled) with labels `[samples]` (64-bit
/// integers).
#[derive(Debug)]
pub struct Images {
    pixels: Vec<u8>,
    labels: Vec<u8>,
    options: ImageOptions,
    value_of: Vec<f32>,
}

impl Images {
    /// Opens one split in `directory`.
    ///
    /// # Errors
    /// When a file is missing, damaged, of another shape, or the two files do not fit each other.
    pub fn open(directory: &Path, split: Split, options: ImageOptions) -> Result<Self, DataError> {
        let prefix = match split {
            Split::Train => "train",
            Split::Test => "t10k",
        };
        let hint = "spec.task.parameters.data is the directory of the four IDX files; Debian has Fashion-MNIST \
                    as `apt-get install dataset-fashion-mnist`, in /usr/share/datasets/fashion-mnist";
        let images = idx::find(directory, &format!("{prefix}-images-idx3-ubyte"), hint)?;
        let labels = idx::find(directory, &format!("{prefix}-labels-idx1-ubyte"), hint)?;
        let images = idx::read(&images, 3)?;
        let labels = idx::read(&labels, 1)?;
        check(&images, &labels, options)?;

        let samples = labels.bytes.len();
        let samples = options.limit.map_or(samples, |limit| {
            samples.min(usize::try_from(limit).unwrap_or(samples))
        });
        let (mut pixels, mut labels) = (images.bytes, labels.bytes);
        pixels.truncate(samples * options.size * options.size);
        pixels.shrink_to_fit();
        labels.truncate(samples);
        Ok(Images {
            pixels,
            labels,
            options,
            value_of: (0..=u8::MAX)
                .map(|byte| (f32::from(byte) / 255.0 - PIXEL_MEAN) / PIXEL_DEVIATION)
                .collect(),
        })
    }

    fn write_plain(&self, image: &[u8], out: &mut Vec<f32>) {
        out.extend(image.iter().map(|pixel| self.value_of[usize::from(*pixel)]));
    }

    /// Writes the image shifted by (down, right) and possibly mirrored; what comes in from outside is black.
    fn write_changed(&self, image: &[u8], change: Change, out: &mut Vec<f32>) {
        let size = self.options.size as i64;
        let pixel = |row: i64, column: i64| {
            if (0..size).contains(&row) && (0..size).contains(&column) {
                image[(row * size + column) as usize]
            } else {
                0
            }
        };
        for row in 0..size {
            for column in 0..size {
                let column = if change.mirror { size - 1 - column } else { column };
                out.push(self.value_of[usize::from(pixel(row - change.down, column - change.right))]);
            }
        }
    }
}

impl DataSource for Images {
    fn len(&self) -> u64 {
        self.labels.len() as u64
    }

    fn get(&self, indices: &[u64], key: AugmentationKey) -> Result<Batch, DataError> {
        let size = self.options.size;
        let mut inputs = Vec::with_capacity(indices.len() * size * size);
        let mut targets = Vec::with_capacity(indices.len());
        for &index in indices {
            let at = usize::try_from(index)
                .ok()
                .filter(|at| *at < self.labels.len())
                .ok_or(DataError::NoSuchSample {
                    index,
                    len: self.len(),
                })?;
            let image = &self.pixels[at * size * size..(at + 1) * size * size];
            match key {
                AugmentationKey::Epoch { seed, epoch } if self.options.augment => {
                    self.write_changed(image, Change::of(seed, epoch, index), &mut inputs);
                }
                _ => self.write_plain(image, &mut inputs),
            }
            targets.push(i64::from(self.labels[at]));
        }
        let (count, size) = (indices.len() as i64, size as i64);
        Ok(Batch::new(
            Tensor::f_from_slice(&inputs)?.f_reshape([count, 1, size, size])?,
            Tensor::f_from_slice(&targets)?,
            indices,
        ))
    }

    fn fingerprint(&self) -> Fingerprint {
        let ImageOptions {
            size,
            classes,
            augment,
            limit: _, // It shows in the number of samples.
        } = self.options;
        let reading = format!("grey images {size} x {size}, {classes} classes, augment {augment}");
        Fingerprint::of(self.len(), &reading, &[&self.pixels, &self.labels])
    }
}

/// A random change of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Change {
    mirror: bool,
    down: i64,
    right: i64,
}

impl Change {
    fn of(seed: u64, epoch: u64, index: u64) -> Self {
        let key = Key::derive(seed, "augmentation", epoch, index);
        // The top bits of a draw scaled to the number of shifts; the bias of 2^-32 does not matter.
        let shift = |draw: u64| ((((key.bits(draw) >> 32) * (2 * SHIFT as u64 + 1)) >> 32) as i64) - SHIFT;
        Change {
            mirror: key.bits(0) >> 63 == 1,
            down: shift(1),
            right: shift(2),
        }
    }
}

fn check(images: &Idx, labels: &Idx, options: ImageOptions) -> Result<(), DataError> {
    let wrong = |file: &Idx, problem: String| {
        Err(DataError::Content {
            path: file.path.clone(),
            problem,
        })
    };
    let [count, height, width] = images.dimensions[..] else {
        return wrong(images, "has not three dimensions".to_owned());
    };
    if (height, width) != (options.size, options.size) {
        return wrong(
            images,
            format!(
                "holds images of {height} x {width} pixels at offset 8, not {0} x {0}; set spec.task.parameters.imageSize (images must be square)",
                options.size
            ),
        );
    }
    if count != labels.bytes.len() {
        return wrong(
            images,
            format!(
                "holds {count} images, but {} holds {} labels; both must come from one data set",
                labels.path.display(),
                labels.bytes.len()
            ),
        );
    }
    if count == 0 {
        return wrong(images, "holds no image".to_owned());
    }
    match labels.bytes.iter().position(|label| *label >= options.classes) {
        Some(index) => wrong(
            labels,
            format!(
                "label {} of sample {index}, at offset {}, is not below {} (spec.task.parameters.classes)",
                labels.bytes[index],
                labels.offset(index),
                options.classes
            ),
        ),
        None => Ok(()),
    }
}

#[cfg(test)]
pub(crate) mod fixtures {
    //! A tiny data set of images: a bright square whose place tells the class.

    use crate::data::idx::fixtures::write;
    use std::path::Path;

    /// Writes the four files: `train` and `test` images of 12 x 12 pixels in four classes.
    pub(crate) fn write_images(directory: &Path, train: usize, test: usize) {
        for (prefix, count, suffix) in [("train", train, ".gz"), ("t10k", test, "")] {
            let labels: Vec<u8> = (0..count).map(|i| (i % 4) as u8).collect();
            let mut pixels = vec![0u8; count * 144];
            for (i, label) in labels.iter().enumerate() {
                let (top, left) = (usize::from(label / 2) * 6, usize::from(label % 2) * 6);
                for row in 0..6 {
                    for column in 0..6 {
                        pixels[i * 144 + (top + row) * 12 + left + column] =
                            (100 + (i * 7 + row * column) % 150) as u8;
                    }
                }
            }
            let path = |kind: &str| directory.join(format!("{prefix}-{kind}-ubyte{suffix}"));
            write(&path("images-idx3"), &[count, 12, 12], &pixels);
            write(&path("labels-idx1"), &[count], &labels);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::idx::fixtures::write;

    const OPTIONS: ImageOptions = ImageOptions {
        size: 12,
        classes: 4,
        augment: true,
        limit: None,
    };

    fn folder() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        fixtures::write_images(folder.path(), 30, 10);
        folder
    }

    fn open(folder: &tempfile::TempDir, options: ImageOptions) -> Result<Images, DataError> {
        Images::open(folder.path(), Split::Train, options)
    }

    const EPOCH: AugmentationKey = AugmentationKey::Epoch { seed: 3, epoch: 1 };

    #[test]
    fn samples_come_in_the_order_asked_for_as_numbers() {
        let images = open(&folder(), OPTIONS).unwrap();
        let batch = images.get(&[6, 1], AugmentationKey::Plain).unwrap();
        assert_eq!(batch.inputs.size(), [2, 1, 12, 12]);
        assert_eq!(Vec::<i64>::try_from(&batch.targets).unwrap(), [2, 1]);
        assert_eq!((batch.indices, batch.units), (vec![6, 1], 2));
        let bright = f32::try_from(batch.inputs.get(0).get(0).get(6).get(0)).unwrap();
        assert_eq!(bright, ((100.0 + 42.0) / 255.0 - PIXEL_MEAN) / PIXEL_DEVIATION);
        let dark = f32::try_from(batch.inputs.get(0).get(0).get(0).get(0)).unwrap();
        assert_eq!(dark, -PIXEL_MEAN / PIXEL_DEVIATION);
        let error = images.get(&[30], EPOCH).unwrap_err().to_string();
        assert_eq!(error, "get sample 30: the data has 30 samples, numbered from 0");
    }

    #[test]
    fn augmentation_is_equal_for_equal_seed_epoch_and_index_only() {
        let images = open(&folder(), OPTIONS).unwrap();
        let all: Vec<u64> = (0..30).collect();
        let whole = images.get(&all, EPOCH).unwrap().inputs;
        // Asked for alone, and in another place of another batch.
        for index in [0u64, 7, 29] {
            let alone = images.get(&[index], EPOCH).unwrap().inputs;
            let second = images.get(&[3, index], EPOCH).unwrap().inputs;
            assert_eq!(alone.get(0), whole.get(index as i64));
            assert_eq!(second.get(1), whole.get(index as i64));
        }
        let other = |seed, epoch| {
            images
                .get(&all, AugmentationKey::Epoch { seed, epoch })
                .unwrap()
                .inputs
        };
        assert_ne!(whole, other(3, 2));
        assert_ne!(whole, other(4, 1));
        let plain = images.get(&all, AugmentationKey::Plain).unwrap().inputs;
        assert_ne!(whole, plain);
        let options = ImageOptions {
            augment: false,
            ..OPTIONS
        };
        let unchanged = open(&folder(), options).unwrap().get(&all, EPOCH).unwrap().inputs;
        assert_eq!(unchanged, plain);
    }

    #[test]
    fn every_shift_and_both_directions_occur_about_equally_often() {
        let changes: Vec<Change> = (0..5000).map(|index| Change::of(1, 0, index)).collect();
        let share = |hit: &dyn Fn(&Change) -> bool| changes.iter().filter(|c| hit(c)).count();
        assert!((2300..2700).contains(&share(&|c| c.mirror)));
        for shift in -SHIFT..=SHIFT {
            assert!((880..1120).contains(&share(&|c| c.down == shift)), "down {shift}");
            assert!(
                (880..1120).contains(&share(&|c| c.right == shift)),
                "right {shift}"
            );
        }
    }

    #[test]
    fn a_change_moves_and_mirrors() {
        let images = open(&folder(), OPTIONS).unwrap();
        let mut image = vec![0u8; 144];
        image[3 * 12 + 4] = 255;
        let mut out = vec![];
        images.write_changed(
            &image,
            Change {
                mirror: true,
                down: 2,
                right: -1,
            },
            &mut out,
        );
        let bright: Vec<usize> = (0..144).filter(|at| out[*at] > 1.0).collect();
        assert_eq!(bright, [5 * 12 + (11 - 3)]);
    }

    #[test]
    fn limits_take_the_first_samples() {
        let folder = folder();
        let limited = open(
            &folder,
            ImageOptions {
                limit: Some(5),
                ..OPTIONS
            },
        )
        .unwrap();
        assert_eq!(limited.len(), 5);
        assert!(limited.get(&[5], EPOCH).is_err());
        assert_eq!(
            open(
                &folder,
                ImageOptions {
                    limit: Some(500),
                    ..OPTIONS
                }
            )
            .unwrap()
            .len(),
            30
        );
        assert_eq!(
            Images::open(folder.path(), Split::Test, OPTIONS).unwrap().len(),
            10
        );
    }

    #[test]
    fn the_fingerprint_changes_with_a_byte_of_either_file_and_with_the_reading() {
        let folder = folder();
        let before = open(&folder, OPTIONS).unwrap().fingerprint();
        assert_eq!(before, open(&folder, OPTIONS).unwrap().fingerprint());
        for other in [
            ImageOptions {
                augment: false,
                ..OPTIONS
            },
            ImageOptions {
                limit: Some(29),
                ..OPTIONS
            },
        ] {
            assert_ne!(before, open(&folder, other).unwrap().fingerprint());
        }
        for (name, dimensions) in [("images-idx3", vec![30usize, 12, 12]), ("labels-idx1", vec![30])] {
            let path = folder.path().join(format!("train-{name}-ubyte.gz"));
            let original = idx::read(&path, dimensions.len() as u8).unwrap().bytes;
            for at in [0, original.len() / 2, original.len() - 1] {
                let mut changed = original.clone();
                changed[at] ^= 1;
                write(&path, &dimensions, &changed);
                assert_ne!(
                    before,
                    open(&folder, OPTIONS).unwrap().fingerprint(),
                    "{name}, byte {at}"
                );
            }
            write(&path, &dimensions, &original);
        }
    }

    #[test]
    fn files_that_do_not_fit_are_refused_by_name_and_place() {
        let folder = folder();
        let text = |options| open(&folder, options).unwrap_err().to_string();
        let path = |name: &str| folder.path().join(format!("train-{name}-ubyte.gz"));
        assert!(text(ImageOptions { size: 28, ..OPTIONS }).ends_with(
            "train-images-idx3-ubyte.gz: holds images of 12 x 12 pixels at offset 8, not 28 x 28; set spec.task.parameters.imageSize (images must be square)"
        ));
        assert!(text(ImageOptions { classes: 3, ..OPTIONS }).ends_with(
            "train-labels-idx1-ubyte.gz: label 3 of sample 3, at offset 11, is not below 3 (spec.task.parameters.classes)"
        ));
        write(&path("labels-idx1"), &[29], &[0; 29]);
        let error = text(OPTIONS);
        assert!(
            error.contains("holds 30 images, but") && error.contains("holds 29 labels"),
            "{error}"
        );
        write(&path("labels-idx1"), &[0], &[]);
        write(&path("images-idx3"), &[0, 12, 12], &[]);
        assert!(text(OPTIONS).ends_with("holds no image"));
        std::fs::remove_file(path("images-idx3")).unwrap();
        let error = text(OPTIONS);
        assert!(
            error.contains("train-images-idx3-ubyte: ") && error.contains("dataset-fashion-mnist"),
            "{error}"
        );
    }
}
