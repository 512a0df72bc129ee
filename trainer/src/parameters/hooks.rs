//! When gradients become ready. Every parameter has one hook for the whole run. In each backward pass it
//! marks its parameter as used; in an armed one it also counts its bucket down, and buckets are announced
//! strictly in plan order, each when it and all before it are complete. A hook only enqueues: what moves
//! bytes runs elsewhere.

use super::builder::Parameter;
use super::used::UsedParameters;
use crate::torch::{GradientHook, TorchError, hook_gradient};
use gradsync_collective::bucket_plan::BucketPlan;
use std::sync::{Arc, Mutex, MutexGuard};

/// Takes the numbers of buckets that are ready to be reduced. Called within backward, so it must only
/// enqueue; an error ends the backward pass.
pub trait BucketSink: Send {
    /// Bucket `bucket` is complete, and so are all before it.
    ///
    /// # Errors
    /// When the bucket cannot be taken, for example since the group is lost.
    fn ready(&mut self, bucket: usize) -> Result<(), String>;
}

impl<F: FnMut(usize) -> Result<(), String> + Send> BucketSink for F {
    fn ready(&mut self, bucket: usize) -> Result<(), String> {
        self(bucket)
    }
}

/// The hooks of a model's parameters.
pub struct BackwardHooks {
    _hooks: Vec<GradientHook>,
    shared: Arc<Shared>,
}

struct Shared {
    names: Vec<String>,
    state: Mutex<State>,
}

struct State {
    used: UsedParameters,
    mode: Mode,
}

enum Mode {
    Idle,
    Recording(Vec<usize>),
    Armed(Armed),
}

struct Armed {
    bucket_of: Vec<usize>,
    pending: Vec<usize>,
    announced: usize,
    ready_order: Vec<usize>,
    seen: UsedParameters,
    sink: Box<dyn BucketSink>,
}

/// What an armed backward pass did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackwardReport {
    /// Parameters in the order in which their gradients became ready; unused ones are missing.
    pub ready_order: Vec<usize>,
    /// Buckets that were announced: the first so many of the plan. The rest is the caller's to launch.
    pub announced: usize,
}

/// An armed backward pass; disarmed when dropped.
#[must_use = "dropping it disarms the hooks"]
pub struct ArmedBackward<'a> {
    hooks: &'a BackwardHooks,
}

impl BackwardHooks {
    /// Hooks every parameter.
    ///
    /// # Errors
    /// When one takes no part in autograd.
    pub fn install(parameters: &[Parameter]) -> Result<Self, TorchError> {
        let shared = Arc::new(Shared {
            names: parameters.iter().map(|p| p.name.clone()).collect(),
            state: Mutex::new(State {
                used: UsedParameters::none(parameters.len()),
                mode: Mode::Idle,
            }),
        });
        let hooks = parameters
            .iter()
            .enumerate()
            .map(|(index, parameter)| {
                let shared = Arc::clone(&shared);
                hook_gradient(&parameter.tensor, move || shared.gradient_ready(index))
                    .map_err(|error| error.context(format_args!("parameter {}", parameter.name)))
            })
            .collect::<Result<_, _>>()?;
        Ok(Self {
            _hooks: hooks,
            shared,
        })
    }

    /// Forgets which parameters were used: at the start of a step.
    pub fn begin_step(&self) {
        let mut state = self.shared.state();
        state.used = UsedParameters::none(state.used.len());
    }

    /// Parameters that some backward pass since [`begin_step`](Self::begin_step) reached.
    #[must_use]
    pub fn used(&self) -> UsedParameters {
        self.shared.state().used.clone()
    }

    /// Starts to note the order in which gradients become ready: for the dry run that makes a plan.
    pub fn record_ready_order(&self) {
        let parameters = self.shared.names.len();
        self.shared.state().mode = Mode::Recording(Vec::with_capacity(parameters));
    }

    /// Ends the recording. Returns every parameter once: those that became ready in that order, then those
    /// that did not, last registered first.
    #[must_use]
    pub fn take_ready_order(&self) -> Vec<usize> {
        let mut state = self.shared.state();
        let Mode::Recording(mut order) = std::mem::replace(&mut state.mode, Mode::Idle) else {
            return (0..self.shared.names.len()).rev().collect();
        };
        let mut seen = UsedParameters::none(self.shared.names.len());
        order.retain(|parameter| {
            let first = !seen.contains(*parameter);
            seen.insert(*parameter);
            first
        });
        let mut unused: Vec<_> = seen.unused().collect();
        unused.reverse();
        order.extend(unused);
        order
    }

    /// Arms the next backward pass, a member's last of a step: buckets of `plan` are announced to `sink`.
    /// `plan` must be of these parameters.
    pub fn arm(&self, plan: &BucketPlan, sink: impl BucketSink + 'static) -> ArmedBackward<'_> {
        let parameters = self.shared.names.len();
        let mut bucket_of = vec![usize::MAX; parameters];
        for (number, bucket) in plan.buckets.iter().enumerate() {
            for entry in &bucket.entries {
                bucket_of[entry.parameter] = number;
            }
        }
        self.shared.state().mode = Mode::Armed(Armed {
            bucket_of,
            pending: plan.buckets.iter().map(|bucket| bucket.entries.len()).collect(),
            announced: 0,
            ready_order: Vec::with_capacity(parameters),
            seen: UsedParameters::none(parameters),
            sink: Box::new(sink),
        });
        ArmedBackward { hooks: self }
    }
}

impl ArmedBackward<'_> {
    /// Disarms the hooks and drops the sink; says what was announced.
    #[must_use]
    pub fn finish(self) -> BackwardReport {
        match self.disarm() {
            Mode::Armed(armed) => BackwardReport {
                ready_order: armed.ready_order,
                announced: armed.announced,
            },
            Mode::Idle | Mode::Recording(_) => BackwardReport {
                ready_order: Vec::new(),
                announced: 0,
            },
        }
    }

    fn disarm(&self) -> Mode {
        std::mem::replace(&mut self.hooks.shared.state().mode, Mode::Idle)
    }
}

impl Drop for ArmedBackward<'_> {
    fn drop(&mut self) {
        // The sink is dropped here, outside the lock.
        drop(self.disarm());
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        // A sink that panicked poisons the lock; the next `arm` replaces all that it could have left.
        self.state
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn gradient_ready(&self, parameter: usize) -> Result<(), String> {
        let mut state = self.state();
        state.used.insert(parameter);
        match &mut state.mode {
            Mode::Idle => Ok(()),
            Mode::Recording(order) => {
                order.push(parameter);
                Ok(())
            }
            Mode::Armed(armed) => armed
                .gradient_ready(parameter)
                .map_err(|problem| format!("gradient of {}: {problem}", self.names[parameter])),
        }
    }
}

impl Armed {
    fn gradient_ready(&mut self, parameter: usize) -> Result<(), String> {
        if self.seen.contains(parameter) {
            // Its bucket may be on the wire already: adding to it would change what others receive.
            return Err("became ready twice in one armed backward pass".into());
        }
        self.seen.insert(parameter);
        self.ready_order.push(parameter);
        let Some(pending) = self.pending.get_mut(self.bucket_of[parameter]) else {
            return Err("is in no bucket of the plan".into());
        };
        *pending = pending.saturating_sub(1);
        while self.pending.get(self.announced) == Some(&0) {
            self.sink.ready(self.announced)?;
            self.announced += 1;
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "hooks_tests.rs"]
mod tests;
