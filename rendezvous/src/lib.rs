//! Who is in the group, and from which state it goes on: the membership state machine (pure), the wire
//! types that members and service exchange, the HTTP service around the machine, and the client that an
//! agent uses for all ranks of its pod.
//!
//! Goals: one authority per job; a generation is persisted before anybody learns of it; never two groups
//! that can both commit; a lost or repeated message changes nothing. Not a goal: moving training data,
//! which members do among themselves.

pub mod client;
pub mod membership;
pub mod server;
pub mod wire;
