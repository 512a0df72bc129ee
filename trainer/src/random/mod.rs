//! Randomness as a pure function of (seed, domain, position). Every draw can be computed alone, on any
//! member, in any order, so results do not depend on who computed what. libtorch's global generator is
//! never used.
//!
//! Draw `i` of a key takes the same 64 random bits in fp32 and fp64, so a run in one precision sees the
//! same initial weights and dropout masks as a run in the other, up to rounding.

mod fill;
mod key;
mod philox;
mod tensors;

pub use fill::{bernoulli_mask, fill_normal, fill_uniform_f32, fill_uniform_f64};
pub use key::Key;
pub use philox::philox4x32_10;
pub use tensors::{bernoulli, normal, uniform};
