//! The command line of gradsync as a library: what `main.rs` wires together and what tests call.
//!
//! `validate` judges a manifest without a cluster; `commands` holds one module for each subcommand.

pub mod audit;
pub mod checkpoint;
pub mod commands;
pub mod reference;
pub mod run;
pub mod terminal;
pub mod validate;
