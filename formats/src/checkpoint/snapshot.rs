//! The state of training as plain data.

use crate::identity::Position;
use crate::lineage::Lineage;
use crate::manifest::{DataProgress, Evaluated, Fingerprints};
use std::collections::BTreeMap;
use std::fmt;

/// Everything that training needs to go on from a position, on any number of workers.
#[derive(Clone, Debug, PartialEq)]
pub struct Snapshot {
    /// The last commit that the state holds.
    pub position: Position,
    /// The lineage of the group that has this state.
    pub lineage: Lineage,
    /// Where in the data.
    pub progress: DataProgress,
    /// Seed of the run.
    pub seed: u64,
    /// The fixed micro-batch size of the grid.
    pub micro_batch_size: u64,
    /// Scalars by name, such as `adam.step`; no NaN and no infinity, which JSON lacks.
    pub scalars: BTreeMap<String, serde_json::Value>,
    /// The bucket plan agreed before step 0.
    pub bucket_plan: serde_json::Value,
    /// Chain value at the position, hex.
    pub chain: String,
    /// Digest over the whole replicated state, hex.
    pub state_digest: String,
    /// What must be equal for the state to be usable.
    pub fingerprints: Fingerprints,
    /// Ranks of the group; informational.
    pub world_size: u32,
    /// Members whose digests of the state were compared and found equal.
    pub agreed_by: u32,
    /// What an evaluation of exactly this state found, if there was one.
    pub evaluation: Option<Evaluated>,
    /// RunConfig in force, as JSON.
    pub run_config: serde_json::Value,
    /// RFC 3339 time of the snapshot.
    pub written_at: String,
    /// The tensors by group. Within a group names are unique; the order means nothing.
    pub tensors: BTreeMap<Group, Vec<NamedTensor>>,
}

impl Snapshot {
    /// The tensors of `group`.
    #[must_use]
    pub fn group(&self, group: Group) -> &[NamedTensor] {
        self.tensors.get(&group).map_or(&[], Vec::as_slice)
    }

    /// The tensor `name` of `group`.
    #[must_use]
    pub fn find(&self, group: Group, name: &str) -> Option<&NamedTensor> {
        self.group(group).iter().find(|t| t.name == name)
    }
}

/// What a tensor belongs to; each group is one file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Group {
    /// Parameters of the model.
    Parameters,
    /// Buffers of the model.
    Buffers,
    /// State of the optimiser, by the parameter's name and a suffix that the optimiser chooses.
    Optimizer,
    /// Anything else.
    Other,
}

impl Group {
    /// All groups, in the order in which they are written.
    pub const ALL: [Group; 4] = [Group::Parameters, Group::Buffers, Group::Optimizer, Group::Other];

    /// Name of the group's file.
    #[must_use]
    pub fn file_name(self) -> &'static str {
        match self {
            Group::Parameters => "parameters.safetensors",
            Group::Buffers => "buffers.safetensors",
            Group::Optimizer => "optimizer.safetensors",
            Group::Other => "other.safetensors",
        }
    }
}

/// Element types.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TensorType {
    /// 32-bit float.
    F32,
    /// 64-bit float.
    F64,
    /// 64-bit signed integer.
    I64,
}

impl TensorType {
    /// Bytes of one element.
    #[must_use]
    pub fn bytes(self) -> usize {
        match self {
            TensorType::F32 => 4,
            TensorType::F64 | TensorType::I64 => 8,
        }
    }
}

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            TensorType::F32 => "float32",
            TensorType::F64 => "float64",
            TensorType::I64 => "int64",
        })
    }
}

/// Name, type and shape of a tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorSpec {
    /// Full name.
    pub name: String,
    /// Element type.
    pub dtype: TensorType,
    /// Sizes, outermost first; empty for a scalar.
    pub shape: Vec<usize>,
}

impl fmt::Display for TensorSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {:?}", self.name, self.dtype, self.shape)
    }
}

/// A tensor's content.
#[derive(Clone, PartialEq, Eq)]
pub struct NamedTensor {
    /// Full name.
    pub name: String,
    /// Element type.
    pub dtype: TensorType,
    /// Sizes, outermost first; empty for a scalar.
    pub shape: Vec<usize>,
    /// Elements in row-major order, little-endian.
    pub bytes: Vec<u8>,
}

impl NamedTensor {
    /// Name, type and shape.
    #[must_use]
    pub fn spec(&self) -> TensorSpec {
        TensorSpec {
            name: self.name.clone(),
            dtype: self.dtype,
            shape: self.shape.clone(),
        }
    }
}

impl fmt::Debug for NamedTensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({} bytes)", self.spec(), self.bytes.len())
    }
}
