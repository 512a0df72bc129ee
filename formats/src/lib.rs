//! Versioned formats shared by operator, launcher and trainer: the resolved run configuration, the run
//! record, the checkpoint manifest, the checkpoint store and the audit over them. No torch, no network.
//!
//! Every document carries its version; readers ignore unknown fields and refuse a newer major version.

pub mod audit;
pub mod checkpoint;
pub mod digest;
pub mod environment;
pub mod grid;
pub mod identity;
pub mod lineage;
pub mod manifest;
pub mod order;
pub mod path_map;
pub mod record;
pub mod run_config;
pub mod store;
