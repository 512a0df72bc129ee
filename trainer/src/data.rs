//! Data in memory: images from IDX files, bytes of a text, and made-up samples for benchmarks.

pub mod idx;
pub mod images;
pub mod text;
