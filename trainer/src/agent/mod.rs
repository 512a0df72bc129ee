//! The agent: the first process of a worker. It starts one rank process for each device, holds the one
//! connection to the rendezvous service for all of them, starts crashed ranks again in place and forwards
//! signals. Ranks speak with it over an inherited socket ([`link`]).

pub mod after_exit;
#[allow(unsafe_code)]
mod at_once;
pub mod environment;
pub mod exit_code;
pub mod frame;
pub mod last_word;
pub mod link;
pub mod news;
pub mod oom;
pub mod process;
pub mod rank_start;
pub mod run;
mod service;
pub mod supervisor;
