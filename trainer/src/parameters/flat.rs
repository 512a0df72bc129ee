//! One flat tensor of values and one of gradients, laid out by the bucket plan. The model's tensors keep
//! being the same objects, but their storage is a range of the flat values, and their `.grad` a range of
//! the flat gradients: buckets are reduced where backward wrote them, and the optimiser works on ranges.

use super::builder::Parameter;
use crate::torch::{TorchError, lend, set_gradient};
use gradsync_collective::bucket_plan::{BucketPlan, ENTRY_ALIGNMENT, ParameterSpec, PlanError};
use gradsync_collective::{Buffer, BufferError, DType, Region};
use std::sync::Arc;
use tch::{Device, Kind, Tensor};

/// Why parameters cannot be laid out by a plan, or lost their layout.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FlatError {
    /// The plan is of another model.
    #[error("lay out parameters: {0}")]
    Plan(#[from] PlanError),
    /// A parameter of another type than the first, or one that buckets cannot hold.
    #[error("lay out parameter {name}: its elements are {kind:?}, and all must be Float or all Double")]
    Kind {
        /// The parameter.
        name: String,
        /// Its type.
        kind: Kind,
    },
    /// Something replaced a parameter's gradient.
    #[error(
        "parameter {name} has a gradient outside its bucket: leave zeroing and setting to the step engine"
    )]
    Detached {
        /// The parameter.
        name: String,
    },
    /// A value to load does not fit.
    #[error("load parameter {name}: {given:?} does not fit {have:?}")]
    Shape {
        /// The parameter.
        name: String,
        /// Its shape.
        have: Vec<i64>,
        /// The value's.
        given: Vec<i64>,
    },
    /// There is no such bucket.
    #[error("lend bucket {bucket}: the plan has {buckets}")]
    Bucket {
        /// Asked for.
        bucket: usize,
        /// Number of buckets.
        buckets: usize,
    },
    /// A range that the transports refuse.
    #[error("lend a bucket: {0}")]
    Buffer(#[from] BufferError),
    /// libtorch refused.
    #[error("lay out parameters: {0}")]
    Torch(#[from] TorchError),
}

impl From<tch::TchError> for FlatError {
    fn from(error: tch::TchError) -> Self {
        Self::Torch(error.into())
    }
}

/// A model's parameters, laid out by a plan.
#[derive(Debug)]
pub struct FlatParameters {
    parameters: Vec<Parameter>,
    specs: Vec<ParameterSpec>,
    kind: Kind,
    device: Device,
    flat: Flat,
}

/// The layout in force.
#[derive(Debug)]
struct Flat {
    plan: BucketPlan,
    /// First element of each bucket within the flat tensors.
    starts: Vec<usize>,
    values: Tensor,
    gradients: Tensor,
    /// The flat gradients as the transports see them; absent where they are not in host memory.
    region: Option<Arc<Region>>,
    /// By parameter: its ranges, one-dimensional, without autograd.
    value_ranges: Vec<Tensor>,
    gradient_ranges: Vec<Tensor>,
    /// By parameter: its gradient range in the parameter's shape.
    gradient_views: Vec<Tensor>,
}

/// What a plan needs to know of a model's parameters, in order of registration.
///
/// # Errors
/// When they are not all of one type, Float or Double.
pub fn parameter_specs(parameters: &[Parameter]) -> Result<Vec<ParameterSpec>, FlatError> {
    let first = parameters.first().map_or(Kind::Float, |p| p.tensor.kind());
    parameters
        .iter()
        .map(|parameter| {
            let kind = parameter.tensor.kind();
            let dtype = match kind {
                Kind::Float if kind == first => DType::F32,
                Kind::Double if kind == first => DType::F64,
                _ => {
                    return Err(FlatError::Kind {
                        name: parameter.name.clone(),
                        kind,
                    });
                }
            };
            Ok(ParameterSpec {
                name: parameter.name.clone(),
                elements: parameter.tensor.numel(),
                dtype,
            })
        })
        .collect()
}

impl FlatParameters {
    /// Moves the parameters into flat tensors laid out by `plan`. Values and existing gradients keep their
    /// bits; padding is zero.
    ///
    /// # Errors
    /// When the plan does not fit the parameters, they differ in type, or memory is short.
    pub fn adopt(mut parameters: Vec<Parameter>, plan: BucketPlan) -> Result<Self, FlatError> {
        let specs = parameter_specs(&parameters)?;
        plan.validate(&specs)?;
        let kind = parameters.first().map_or(Kind::Float, |p| p.tensor.kind());
        let device = parameters.first().map_or(Device::Cpu, |p| p.tensor.device());
        let flat = Flat::new(plan, &mut parameters, kind, device)?;
        Ok(Self {
            parameters,
            specs,
            kind,
            device,
            flat,
        })
    }

    /// Lays the parameters out anew. Values and gradients keep their bits. Buckets that are still lent
    /// keep the old memory alive until their operations end.
    ///
    /// # Errors
    /// As [`adopt`](Self::adopt); the old layout then stays in force, unless libtorch itself failed.
    pub fn readopt(&mut self, plan: BucketPlan) -> Result<(), FlatError> {
        plan.validate(&self.specs)?;
        self.flat = Flat::new(plan, &mut self.parameters, self.kind, self.device)?;
        Ok(())
    }

    /// The plan in force.
    #[must_use]
    pub fn plan(&self) -> &BucketPlan {
        &self.flat.plan
    }

    /// What plans are made of.
    #[must_use]
    pub fn specs(&self) -> &[ParameterSpec] {
        &self.specs
    }

    /// The parameters, in order of registration.
    #[must_use]
    pub fn parameters(&self) -> &[Parameter] {
        &self.parameters
    }

    /// Zeroes all gradients and makes them the parameters' `.grad`: before the first backward of a step.
    ///
    /// # Errors
    /// When libtorch refuses.
    pub fn zero_gradients(&mut self) -> Result<(), FlatError> {
        let _ = self.flat.gradients.f_zero_()?;
        for (parameter, view) in self.parameters.iter().zip(&self.flat.gradient_views) {
            set_gradient(&parameter.tensor, Some(view))?;
        }
        Ok(())
    }

    /// Makes sure that every `.grad` still is the range of its bucket: after the last backward of a step.
    ///
    /// # Errors
    /// Naming the first parameter whose gradient is elsewhere.
    pub fn check_gradients(&self) -> Result<(), FlatError> {
        for (parameter, view) in self.parameters.iter().zip(&self.flat.gradient_views) {
            let gradient = parameter.tensor.f_grad()?;
            if !gradient.defined() || gradient.data_ptr() != view.data_ptr() {
                return Err(FlatError::Detached {
                    name: parameter.name.clone(),
                });
            }
        }
        Ok(())
    }

    /// Multiplies every gradient by `factor`; by 1 it does nothing.
    ///
    /// # Errors
    /// When libtorch refuses.
    pub fn scale_gradients(&mut self, factor: f64) -> Result<(), FlatError> {
        if factor != 1.0 {
            let _ = self.flat.gradients.f_mul_scalar_(factor)?;
        }
        Ok(())
    }

    /// Bucket `bucket` of the gradients, in place, for the transports. Nothing else may touch the bucket
    /// while an operation on it is pending.
    ///
    /// # Errors
    /// When there is no such bucket, or gradients are not in host memory.
    pub fn bucket(&self, bucket: usize) -> Result<Buffer, FlatError> {
        let (Some(start), Some(planned)) = (self.flat.starts.get(bucket), self.flat.plan.buckets.get(bucket))
        else {
            return Err(FlatError::Bucket {
                bucket,
                buckets: self.flat.starts.len(),
            });
        };
        let Some(region) = &self.flat.region else {
            return Err(TorchError::new("gradients are not in host memory").into());
        };
        let start = start * planned.dtype.size();
        let range = start..start + planned.byte_len();
        Ok(Buffer::new(Arc::clone(region), range, planned.dtype)?)
    }

    /// Values of parameter `index`: a one-dimensional range of the flat values, without autograd.
    pub fn values(&self, index: usize) -> &Tensor {
        &self.flat.value_ranges[index]
    }

    /// Gradient of parameter `index`: a one-dimensional range of its bucket.
    pub fn gradient(&self, index: usize) -> &Tensor {
        &self.flat.gradient_ranges[index]
    }

    /// Writes a value into parameter `index`, as when a checkpoint is loaded.
    ///
    /// # Errors
    /// When shape or type differ.
    pub fn load(&mut self, index: usize, value: &Tensor) -> Result<(), FlatError> {
        let parameter = &self.parameters[index];
        if value.size() != parameter.tensor.size() || value.f_kind()? != self.kind {
            return Err(FlatError::Shape {
                name: parameter.name.clone(),
                have: parameter.tensor.size(),
                given: value.size(),
            });
        }
        let flat = value.f_detach()?.f_reshape([-1])?;
        self.flat.value_ranges[index].f_copy_(&flat)?;
        Ok(())
    }
}

impl Flat {
    /// Allocates, copies, and only then re-points, so that an allocation that fails changes nothing.
    fn new(
        plan: BucketPlan,
        parameters: &mut [Parameter],
        kind: Kind,
        device: Device,
    ) -> Result<Self, FlatError> {
        let step = ENTRY_ALIGNMENT / kind.elt_size_in_bytes();
        let mut starts = Vec::with_capacity(plan.buckets.len());
        let mut total = 0usize;
        for bucket in &plan.buckets {
            starts.push(total);
            // A plan may come from a peer or a file, and its sizes are what it says.
            total = bucket
                .elements
                .checked_next_multiple_of(step)
                .and_then(|elements| total.checked_add(elements))
                .filter(|total| total.checked_mul(8).is_some())
                .ok_or_else(|| TorchError::new("the plan's buckets are larger than memory can be"))?;
        }
        let size = i64::try_from(total).unwrap_or(i64::MAX);
        let values = Tensor::f_zeros([size], (kind, device))?;
        let gradients = Tensor::f_zeros([size], (kind, device))?;
        let region = match device {
            Device::Cpu => Some(Arc::new(lend(&gradients)?)),
            _ => None,
        };
        let mut places = vec![(0i64, 0i64); parameters.len()];
        for (bucket, start) in plan.buckets.iter().zip(&starts) {
            for entry in &bucket.entries {
                places[entry.parameter] = ((start + entry.offset) as i64, entry.elements as i64);
            }
        }
        let mut flat = Self {
            plan,
            starts,
            values,
            gradients,
            region,
            value_ranges: Vec::with_capacity(places.len()),
            gradient_ranges: Vec::with_capacity(places.len()),
            gradient_views: Vec::with_capacity(places.len()),
        };
        for (parameter, (start, elements)) in parameters.iter().zip(&places) {
            let shape = parameter.tensor.size();
            let mut value = flat.values.f_narrow(0, *start, *elements)?;
            value.f_copy_(&parameter.tensor.f_detach()?.f_reshape([-1])?)?;
            let mut gradient = flat.gradients.f_narrow(0, *start, *elements)?;
            let old = parameter.tensor.f_grad()?;
            if old.defined() {
                gradient.f_copy_(&old.f_detach()?.f_reshape([-1])?)?;
            }
            flat.gradient_views.push(gradient.f_view(shape.as_slice())?);
            flat.value_ranges.push(value);
            flat.gradient_ranges.push(gradient);
        }
        for (index, parameter) in parameters.iter_mut().enumerate() {
            let shape = parameter.tensor.size();
            // `set_data` swaps the storage under the same object: the model's handles, the hooks and
            // `requires_grad` stay.
            parameter
                .tensor
                .f_set_data(&flat.value_ranges[index].f_view(shape.as_slice())?)?;
            set_gradient(&parameter.tensor, Some(&flat.gradient_views[index]))?;
        }
        Ok(flat)
    }
}

#[cfg(test)]
#[path = "flat_tests.rs"]
mod tests;
