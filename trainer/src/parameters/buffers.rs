//! Buffers (BatchNorm's running statistics) as replicated state that does not depend on who computed
//! what. Every micro-batch starts from the committed values; a step's change is the sample-weighted mean
//! of the micro-batches' changes, summed over members in double precision; counters advance once per step.

use super::builder::Buffer;
use crate::torch::{TorchError, lend};
use gradsync_collective::{DType, Region};
use std::sync::Arc;
use tch::{Device, Kind, Tensor};

/// Why buffers could not be followed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BufferError {
    /// A value to load does not fit.
    #[error("load buffer {name}: {problem}")]
    Load {
        /// The buffer.
        name: String,
        /// What does not fit.
        problem: String,
    },
    /// A step without samples has no mean.
    #[error("commit the change of buffers: the step has no samples")]
    NoSamples,
    /// libtorch refused.
    #[error("follow buffers: {0}")]
    Torch(#[from] TorchError),
}

impl From<tch::TchError> for BufferError {
    fn from(error: tch::TchError) -> Self {
        Self::Torch(error.into())
    }
}

/// All buffers of a model.
#[derive(Debug)]
pub struct ReplicatedBuffers {
    statistics: Vec<Followed>,
    counters: Vec<Followed>,
    /// Double precision, one-dimensional: the statistics' changes one after the other, then `extra`
    /// elements of the caller.
    change: Tensor,
    /// The change as the transports see it: one region, so that a second operation on it is refused.
    region: Arc<Region>,
    extra: usize,
}

#[derive(Debug)]
struct Followed {
    name: String,
    /// The model's.
    live: Tensor,
    /// The value of the last commit.
    committed: Tensor,
    /// First element in `change`.
    start: usize,
}

impl ReplicatedBuffers {
    /// Follows `buffers` from their present values on. `extra` elements are reserved at the end of the
    /// change for what else a step sums in full precision, such as the flags of used parameters.
    ///
    /// # Errors
    /// When memory is short.
    pub fn new(buffers: Vec<Buffer>, extra: usize) -> Result<Self, BufferError> {
        let (mut statistics, mut counters) = (Vec::new(), Vec::new());
        let mut elements = 0;
        for buffer in buffers {
            let floating = matches!(
                buffer.tensor.f_kind()?,
                Kind::Float | Kind::Double | Kind::Half | Kind::BFloat16
            );
            let followed = Followed {
                committed: buffer.tensor.f_detach_copy()?,
                name: buffer.name,
                live: buffer.tensor,
                start: elements,
            };
            if floating {
                elements += followed.live.numel();
                statistics.push(followed);
            } else {
                counters.push(followed);
            }
        }
        let change = Tensor::f_zeros([(elements + extra) as i64], (Kind::Double, Device::Cpu))?;
        Ok(Self {
            statistics,
            counters,
            region: Arc::new(lend(&change)?),
            change,
            extra,
        })
    }

    /// Names and committed values: statistics, then counters, each in order of registration.
    pub fn committed(&self) -> impl Iterator<Item = (&str, &Tensor)> {
        self.statistics
            .iter()
            .chain(&self.counters)
            .map(|buffer| (buffer.name.as_str(), &buffer.committed))
    }

    /// Forgets the change of an earlier step and starts from the committed values.
    ///
    /// # Errors
    /// When libtorch refuses.
    pub fn begin_step(&mut self) -> Result<(), BufferError> {
        let _ = self.change.f_zero_()?;
        self.restore()
    }

    /// After the backward pass of a micro-batch (which still reads what forward saved): takes its change
    /// with weight `samples` and puts the committed values back.
    ///
    /// # Errors
    /// When libtorch refuses.
    pub fn end_micro_batch(&mut self, samples: u64) -> Result<(), BufferError> {
        for buffer in &self.statistics {
            let flat = |tensor: &Tensor| {
                tensor
                    .f_detach()?
                    .f_reshape([-1])?
                    .f_to_device(Device::Cpu)?
                    .f_to_kind(Kind::Double)
            };
            let difference = flat(&buffer.live)?.f_sub(&flat(&buffer.committed)?)?;
            let mut sum = self
                .change
                .f_narrow(0, buffer.start as i64, difference.numel() as i64)?;
            let _ = sum.f_add_(&difference.f_mul_scalar(samples as f64)?)?;
        }
        self.restore()
    }

    /// Puts the committed values back, as after a micro-batch that did not end.
    ///
    /// # Errors
    /// When libtorch refuses.
    pub fn restore(&mut self) -> Result<(), BufferError> {
        for buffer in self.statistics.iter_mut().chain(&mut self.counters) {
            tch::no_grad(|| buffer.live.f_copy_(&buffer.committed))?;
        }
        Ok(())
    }

    /// The sum of weighted changes and the extra elements, in place, for the transports: to be summed over
    /// members in full precision. Empty without statistics and extra elements.
    ///
    /// # Errors
    /// When the memory cannot be lent.
    pub fn change(&self) -> Result<gradsync_collective::Buffer, BufferError> {
        let range = 0..self.region.len();
        gradsync_collective::Buffer::new(Arc::clone(&self.region), range, DType::F64)
            .map_err(|error| TorchError::new(error.to_string()).into())
    }

    /// The extra elements of the change.
    ///
    /// # Errors
    /// When libtorch refuses.
    pub fn extra(&self) -> Result<Tensor, BufferError> {
        let length = self.change.numel() - self.extra;
        Ok(self.change.f_narrow(0, length as i64, self.extra as i64)?)
    }

    /// Applies the summed change of a step of `samples` samples, and advances every counter by one.
    ///
    /// # Errors
    /// When the step has no samples or libtorch refuses.
    pub fn commit(&mut self, samples: u64) -> Result<(), BufferError> {
        if samples == 0 {
            return Err(BufferError::NoSamples);
        }
        for buffer in &mut self.statistics {
            let elements = buffer.live.numel() as i64;
            let mean = self
                .change
                .f_narrow(0, buffer.start as i64, elements)?
                .f_div_scalar(samples as f64)?
                .f_view(buffer.live.size().as_slice())?
                .f_to_device(buffer.live.device())?;
            // Added in double precision and rounded once.
            let value = buffer.committed.f_to_kind(Kind::Double)?.f_add(&mean)?;
            buffer.committed.f_copy_(&value)?;
        }
        for counter in &mut self.counters {
            let _ = counter.committed.f_add_scalar_(1)?;
        }
        self.restore()
    }

    /// Sets a committed value, as when a checkpoint is loaded.
    ///
    /// # Errors
    /// When there is no such buffer, or shape or type differ.
    pub fn load(&mut self, name: &str, value: &Tensor) -> Result<(), BufferError> {
        let refuse = |problem: String| BufferError::Load {
            name: name.to_owned(),
            problem,
        };
        let buffer = self
            .statistics
            .iter_mut()
            .chain(&mut self.counters)
            .find(|buffer| buffer.name == name)
            .ok_or_else(|| refuse("the model has no such buffer".into()))?;
        let (given, have) = (value.f_kind()?, buffer.committed.f_kind()?);
        if value.size() != buffer.committed.size() || given != have {
            return Err(refuse(format!(
                "{given:?} {:?} does not fit {have:?} {:?}",
                value.size(),
                buffer.committed.size()
            )));
        }
        buffer.committed.f_copy_(value)?;
        tch::no_grad(|| buffer.live.f_copy_(value))?;
        Ok(())
    }
}

#[cfg(test)]
#[path = "buffers_tests.rs"]
mod tests;
