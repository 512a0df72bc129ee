//! Moves bytes between the members of one generation, and knows no torch.
//!
//! A [`Communicator`] is a member's set of connections for one generation: made anew when the
//! generation changes, never repaired. Two transports implement it, [`in_process`] for tests and
//! [`tcp`] for everything else; both add the ranks' contributions to each element in rank order, so
//! they agree bit for bit and a result does not depend on how a message was cut up on its way.
//!
//! Beside it stands the pure data that members agree on: the [`bucket_plan`], the fold of the
//! [`control`] records that travel beside each step, and the [`agreement`] hashes.

pub mod agreement;
pub mod bucket_plan;
pub mod control;
pub mod in_process;
pub mod tcp;

mod buffer;
mod communicator;
mod element;
mod error;
mod operation;
mod pending;
mod reduce;
#[allow(unsafe_code)]
mod region;
mod sequence;

pub use buffer::{Buffer, BufferError, Readiness};
pub use communicator::{Communicator, GroupIdentity, Issued, partition};
pub use element::{DType, Element};
pub use error::{AbortCause, CollectiveError};
pub use operation::{Channel, Operation, OperationKind, ReduceOp, WireType};
pub use pending::{Moved, Pending};
pub use region::{MemoryKind, Region};
