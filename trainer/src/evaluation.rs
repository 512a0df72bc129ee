//! Evaluation: a collective phase at a boundary. The test split is cut into fixed parts, each member
//! computes its share, sums and counts are added up; nothing of the training state changes.

use crate::step::StepError;
use crate::task::{AugmentationKey, DataSource, Mode, Model, Task};
use crate::torch::lend;
use gradsync_collective::{Buffer, Channel, Communicator, DType, ReduceOp, Region, WireType};
use gradsync_formats::grid;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tch::{Device, Kind};

/// The smallest part that evaluation uses: without a backward pass more samples fit than in training.
const SMALLEST_PART: u64 = 64;

/// What an evaluation found.
#[derive(Clone, Debug, PartialEq)]
pub struct Evaluation {
    /// Mean loss over all units of the test split.
    pub loss: f64,
    /// Each metric's sum over the number of units.
    pub metrics: BTreeMap<String, f64>,
}
