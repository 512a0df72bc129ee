//! Making a model's tensors. The order of parameters is the order of registration; the initial value of a
//! parameter depends on (seed, name) only, so neither the order nor other parameters change it.

use super::layout::{ParameterLayout, TensorShape};
use crate::random::{Key, normal, uniform};
use crate::torch::TorchError;
use std::cell::RefCell;
use std::collections::HashSet;
use std::rc::Rc;
use tch::{Device, Kind, Tensor};

/// Initial values of a parameter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Init {
    /// All 0.
    Zeros,
    /// All 1.
    Ones,
    /// All the same.
    Constant(f64),
    /// Uniform in [low, high).
    Uniform {
        /// Lower end.
        low: f64,
        /// Upper end, not reached.
        high: f64,
    },
    /// Uniform in [-1/sqrt(fan_in), 1/sqrt(fan_in)): PyTorch's default for weight and bias of linear and
    /// convolution layers (He et al. 2015 with slope sqrt(5)).
    KaimingUniform {
        /// Inputs of one output: columns of a linear weight, input channels * kernel size of a convolution.
        fan_in: i64,
    },
    /// Normal.
    Normal {
        /// Mean.
        mean: f64,
        /// Standard deviation.
        std: f64,
    },
}

/// A tensor that the optimiser changes: a leaf with `requires_grad`.
#[derive(Debug)]
pub struct Parameter {
    /// Full name, such as `encoder.layer1.weight`.
    pub name: String,
    /// The tensor; the model holds another handle of the same object.
    pub tensor: Tensor,
}

/// A tensor that is state but has no gradient, such as BatchNorm's running mean.
#[derive(Debug)]
pub struct Buffer {
    /// Full name, such as `encoder.norm1.running_mean`.
    pub name: String,
    /// The tensor; the model holds another handle of the same object. Floating point (a running
    /// statistic) or Int64 (a counter of steps).
    pub tensor: Tensor,
}

/// What a finished builder holds.
#[derive(Debug, Default)]
pub struct ModelTensors {
    /// Parameters in order of registration.
    pub parameters: Vec<Parameter>,
    /// Buffers in order of registration.
    pub buffers: Vec<Buffer>,
}

impl ModelTensors {
    /// Names, shapes and types, in order.
    #[must_use]
    pub fn layout(&self) -> ParameterLayout {
        let shape = |name: &str, tensor: &Tensor| TensorShape {
            name: name.to_owned(),
            kind: super::layout::kind_name(tensor.kind()).to_owned(),
            shape: tensor.size(),
        };
        ParameterLayout {
            parameters: self
                .parameters
                .iter()
                .map(|p| shape(&p.name, &p.tensor))
                .collect(),
            buffers: self.buffers.iter().map(|b| shape(&b.name, &b.tensor)).collect(),
        }
    }
}

/// Why a model could not be built.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BuildError {
    /// Two tensors of one name.
    #[error("register {name}: a parameter or buffer of this name exists; give each layer its own sub name")]
    Duplicate {
        /// The name.
        name: String,
    },
    /// A name that would make full names ambiguous.
    #[error("register {name:?} below {prefix:?}: a name has letters, digits, '_' and '-' only")]
    Name {
        /// Where.
        prefix: String,
        /// The offending part.
        name: String,
    },
    /// A shape with a negative size, or more elements than can be counted.
    #[error("register {name}: shape {shape:?} is not possible")]
    Shape {
        /// The name.
        name: String,
        /// The shape.
        shape: Vec<i64>,
    },
    /// `finish` was called before.
    #[error("register {name}: the model is finished; register every tensor while it is built")]
    Finished {
        /// The name.
        name: String,
    },
    /// libtorch refused.
    #[error("register {name}: {source}")]
    Torch {
        /// The name.
        name: String,
        /// Why.
        source: TorchError,
    },
}

/// Registers parameters and buffers under dotted names. Clones and [`sub`](Self::sub) builders share one
/// registry.
#[derive(Clone, Debug)]
pub struct ModelBuilder {
    registry: Rc<RefCell<Registry>>,
    prefix: String,
}

#[derive(Debug)]
struct Registry {
    seed: u64,
    kind: Kind,
    device: Device,
    names: HashSet<String>,
    tensors: ModelTensors,
    finished: bool,
}

impl ModelBuilder {
    /// An empty model of floating point `kind` on `device`, initialised from `seed`.
    #[must_use]
    pub fn new(seed: u64, kind: Kind, device: Device) -> Self {
        Self {
            registry: Rc::new(RefCell::new(Registry {
                seed,
                kind,
                device,
                names: HashSet::new(),
                tensors: ModelTensors::default(),
                finished: false,
            })),
            prefix: String::new(),
        }
    }

    /// A builder whose names start with `name.`; a dotted `name` opens several levels.
    #[must_use]
    pub fn sub(&self, name: impl std::fmt::Display) -> Self {
        Self {
            registry: Rc::clone(&self.registry),
            prefix: format!("{}{name}.", self.prefix),
        }
    }

    /// The floating point kind of the run.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.registry.borrow().kind
    }

    /// The device of the run.
    #[must_use]
    pub fn device(&self) -> Device {
        self.registry.borrow().device
    }

    /// A trained tensor.
    ///
    /// # Errors
    /// When the name is taken or malformed, or the shape impossible.
    pub fn parameter(&self, name: &str, shape: &[i64], init: Init) -> Result<Tensor, BuildError> {
        let full = self.claim(name, shape)?;
        let (seed, kind, device) = {
            let registry = self.registry.borrow();
            (registry.seed, registry.kind, registry.device)
        };
        let key = Key::derive(seed, &format!("initialisation/{full}"), 0, 0);
        let tensor = initial(key, shape, kind, init)
            .and_then(|t| Ok(t.f_to_device(device)?.f_set_requires_grad(true)?))
            .map_err(|source| BuildError::Torch {
                name: full.clone(),
                source,
            })?;
        let parameter = Parameter {
            name: full,
            tensor: tensor.shallow_clone(),
        };
        self.registry.borrow_mut().tensors.parameters.push(parameter);
        Ok(tensor)
    }

    /// A running statistic: floating point state that forward passes change and no gradient reaches. A
    /// step's change is the sample-weighted mean of the micro-batches' changes.
    ///
    /// # Errors
    /// As [`parameter`](Self::parameter).
    pub fn buffer(&self, name: &str, shape: &[i64], fill: f64) -> Result<Tensor, BuildError> {
        let kind = self.kind();
        self.state(name, shape, kind, fill)
    }

    /// A counter of training steps (Int64, from 0): whatever forward passes do to it, it grows by one with
    /// each committed step.
    ///
    /// # Errors
    /// As [`parameter`](Self::parameter).
    pub fn counter(&self, name: &str) -> Result<Tensor, BuildError> {
        self.state(name, &[], Kind::Int64, 0.0)
    }

    /// Ends the registration and hands over what was registered. Other builders of the same registry
    /// refuse from now on.
    #[must_use]
    pub fn finish(self) -> ModelTensors {
        let mut registry = self.registry.borrow_mut();
        registry.finished = true;
        std::mem::take(&mut registry.tensors)
    }

    fn state(&self, name: &str, shape: &[i64], kind: Kind, fill: f64) -> Result<Tensor, BuildError> {
        let full = self.claim(name, shape)?;
        let device = self.device();
        let tensor = constant(shape, kind, fill)
            .and_then(|t| Ok(t.f_to_device(device)?))
            .map_err(|source| BuildError::Torch {
                name: full.clone(),
                source,
            })?;
        let buffer = Buffer {
            name: full,
            tensor: tensor.shallow_clone(),
        };
        self.registry.borrow_mut().tensors.buffers.push(buffer);
        Ok(tensor)
    }

    /// Checks and takes a name; returns it in full.
    fn claim(&self, name: &str, shape: &[i64]) -> Result<String, BuildError> {
        let full = format!("{}{name}", self.prefix);
        let part_is_plain = |part: &str| {
            !part.is_empty()
                && part
                    .bytes()
                    .all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-')
        };
        if name.contains('.') || !full.split('.').all(part_is_plain) {
            return Err(BuildError::Name {
                prefix: self.prefix.clone(),
                name: name.to_owned(),
            });
        }
        let elements = shape.iter().try_fold(1i64, |n, size| {
            (*size >= 0).then(|| n.checked_mul(*size)).flatten()
        });
        if elements.is_none_or(|n| n.checked_mul(8).is_none()) {
            return Err(BuildError::Shape {
                name: full,
                shape: shape.to_vec(),
            });
        }
        let mut registry = self.registry.borrow_mut();
        if registry.finished {
            return Err(BuildError::Finished { name: full });
        }
        if !registry.names.insert(full.clone()) {
            return Err(BuildError::Duplicate { name: full });
        }
        Ok(full)
    }
}

fn initial(key: Key, shape: &[i64], kind: Kind, init: Init) -> Result<Tensor, TorchError> {
    match init {
        Init::Zeros => constant(shape, kind, 0.0),
        Init::Ones => constant(shape, kind, 1.0),
        Init::Constant(value) => constant(shape, kind, value),
        Init::Uniform { low, high } => uniform(key, shape, kind, low, high),
        Init::KaimingUniform { fan_in } => {
            if fan_in < 1 {
                return Err(TorchError::new(format!(
                    "fan_in is {fan_in}, and must be at least 1"
                )));
            }
            let bound = 1.0 / (fan_in as f64).sqrt();
            uniform(key, shape, kind, -bound, bound)
        }
        // In double precision first, so that single precision is its rounding.
        Init::Normal { mean, std } => {
            let mut drawn = normal(key, shape, Kind::Double)?;
            drawn = drawn.f_mul_scalar(std)?.f_add_scalar(mean)?;
            Ok(drawn.f_to_kind(kind)?)
        }
    }
}

fn constant(shape: &[i64], kind: Kind, value: f64) -> Result<Tensor, TorchError> {
    Ok(Tensor::f_full(shape, value, (kind, Device::Cpu))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn builder(kind: Kind) -> ModelBuilder {
        ModelBuilder::new(3, kind, Device::Cpu)
    }

    #[test]
    fn parameters_come_in_order_of_registration_with_dotted_names() {
        let root = builder(Kind::Float);
        let layer = root.sub("block").sub(2);
        let _ = layer.parameter("weight", &[4, 3], Init::Ones).unwrap();
        let _ = layer.buffer("running_mean", &[4], 0.5).unwrap();
        let _ = root.parameter("bias", &[4], Init::Zeros).unwrap();
        let _ = layer.counter("batches").unwrap();
        let tensors = root.finish();
        let names: Vec<_> = tensors.parameters.iter().map(|p| p.name.as_str()).collect();
        assert_eq!(names, ["block.2.weight", "bias"]);
        let buffers: Vec<_> = tensors.buffers.iter().map(|b| b.name.as_str()).collect();
        assert_eq!(buffers, ["block.2.running_mean", "block.2.batches"]);
        assert!(
            tensors
                .parameters
                .iter()
                .all(|p| p.tensor.requires_grad() && p.tensor.is_leaf())
        );
        assert!(tensors.buffers.iter().all(|b| !b.tensor.requires_grad()));
        assert_eq!(tensors.buffers[1].tensor.kind(), Kind::Int64);
        assert!(matches!(
            layer.parameter("late", &[1], Init::Zeros),
            Err(BuildError::Finished { .. })
        ));
    }

    #[test]
    fn the_initial_value_depends_on_seed_and_name_only() {
        let init = Init::Normal { mean: 1.0, std: 0.1 };
        let alone = builder(Kind::Double);
        let first = alone.parameter("weight", &[8], init).unwrap();
        let crowded = builder(Kind::Double);
        let other = crowded.parameter("other", &[8], init).unwrap();
        let second = crowded.parameter("weight", &[8], init).unwrap();
        assert!(first.equal(&second));
        assert!(!first.equal(&other));
        let reseeded = ModelBuilder::new(4, Kind::Double, Device::Cpu);
        assert!(!first.equal(&reseeded.parameter("weight", &[8], init).unwrap()));
    }

    #[test]
    fn single_precision_starts_where_double_precision_does() {
        for init in [
            Init::Normal { mean: 1.0, std: 0.1 },
            Init::Uniform { low: -1.0, high: 2.0 },
            Init::KaimingUniform { fan_in: 9 },
            Init::Constant(0.1),
        ] {
            let double = builder(Kind::Double).parameter("w", &[64], init).unwrap();
            let single = builder(Kind::Float).parameter("w", &[64], init).unwrap();
            let difference = (double - single.to_kind(Kind::Double))
                .abs()
                .max()
                .double_value(&[]);
            assert!(difference < 1e-6, "{init:?}: {difference}");
        }
    }

    #[test]
    fn kaiming_uniform_fills_its_bounds() {
        let drawn = builder(Kind::Double)
            .parameter("w", &[10_000], Init::KaimingUniform { fan_in: 16 })
            .unwrap();
        let (low, high) = (drawn.min().double_value(&[]), drawn.max().double_value(&[]));
        assert!(
            (-0.25..-0.249).contains(&low) && (0.249..0.25).contains(&high),
            "{low} {high}"
        );
    }

    #[test]
    fn bad_names_shapes_and_duplicates_are_errors_that_name_them() {
        let root = builder(Kind::Float);
        let _ = root.parameter("weight", &[1], Init::Zeros).unwrap();
        let duplicate = root.buffer("weight", &[1], 0.0).unwrap_err();
        assert!(duplicate.to_string().contains("register weight"), "{duplicate}");
        for (prefix, name) in [("", ""), ("", "a.b"), ("", "a b"), ("a..b", "c"), ("a/b", "c")] {
            let at = if prefix.is_empty() {
                root.clone()
            } else {
                root.sub(prefix)
            };
            let refused = at.parameter(name, &[1], Init::Zeros);
            assert!(matches!(refused, Err(BuildError::Name { .. })), "{prefix} {name}");
        }
        for shape in [&[-1][..], &[i64::MAX, 2], &[i64::MAX]] {
            let refused = root.parameter("huge", shape, Init::Zeros);
            assert!(matches!(refused, Err(BuildError::Shape { .. })), "{shape:?}");
        }
        let fan = root
            .parameter("fan", &[1], Init::KaimingUniform { fan_in: 0 })
            .unwrap_err();
        assert_eq!(
            fan.to_string(),
            "register fan: fan_in is 0, and must be at least 1"
        );
    }
}
