//! A small image data set in IDX files, and a job that trains on it.

use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use std::sync::OnceLock;

/// Height and width.
const SIZE: u32 = 8;

/// Training samples: not a multiple of any batch that the tests use.
pub const SAMPLES: u32 = 97;

/// Directory of the four files, written once for the process.
pub fn images() -> &'static Path {
    static DIRECTORY: OnceLock<tempfile::TempDir> = OnceLock::new();
    DIRECTORY
        .get_or_init(|| {
            let directory = tempfile::tempdir().unwrap();
            write(directory.path(), "train", SAMPLES);
            write(directory.path(), "t10k", 7);
            directory
        })
        .path()
}

fn write(directory: &Path, split: &str, samples: u32) {
    let mut pixels = vec![0, 0, 8, 3];
    for dimension in [samples, SIZE, SIZE] {
        pixels.extend(dimension.to_be_bytes());
    }
    let mut labels = vec![0, 0, 8, 1];
    labels.extend(samples.to_be_bytes());
    // A linear congruential generator: every pixel of its own, brighter in a corner that tells the class.
    let mut random = 12_345u32 + samples;
    for sample in 0..samples {
        let class = sample % 4;
        labels.push(class as u8);
        for place in 0..SIZE * SIZE {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let corner = 2 * u32::from(place / SIZE >= SIZE / 2) + u32::from(place % SIZE >= SIZE / 2);
            let light = if corner == class { 120 } else { 0 };
            pixels.push(((random >> 24) / 2 + light) as u8);
        }
    }
    fs::write(directory.join(format!("{split}-images-idx3-ubyte")), pixels).unwrap();
    fs::write(directory.join(format!("{split}-labels-idx1-ubyte")), labels).unwrap();
}

/// Image classification by `model` with dropout and augmentation, AdamW, clipping and a cosine. No number
/// divides another: 97 samples in batches of 23, the last of an epoch of 5; parts of at most 5.
pub fn cnn(model: &str, steps: u64) -> Value {
    json!({
        "task": {"name": "image-classification", "parameters": {
            "model": model, "data": images(), "imageSize": SIZE, "classes": 4,
            "augment": true, "dropout": 0.25,
        }},
        "training": {
            "globalBatchSize": 23, "steps": steps, "seed": 11,
            "optimizer": {
                "name": "AdamW", "learningRate": 0.004, "weightDecay": 0.05, "clipNorm": 0.8,
                "schedule": {"name": "Cosine", "warmupSteps": 4, "totalSteps": 60},
            },
        },
        "accumulation": {"microBatchSize": 5},
        "precision": {"mode": "fp64"},
        "workers": {"replicas": 1},
    })
}
