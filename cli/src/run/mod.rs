//! `gradsync run`: one TrainingJob on this machine. The launcher validates and resolves the manifest,
//! holds the rendezvous service, starts one agent for each worker and tells how it goes.

pub mod after_agent;
pub mod agents;
pub mod changes;
pub mod chart;
mod fallbacks;
pub mod finish;
pub mod history;
pub mod idle;
pub mod kept;
pub mod launch;
pub mod launcher;
pub mod live;
pub mod logs;
pub mod output;
pub mod prepare;
pub mod proof;
pub mod set;
pub mod signals;
pub mod summary;
pub mod tail;
pub mod trainer_program;
pub mod verdict;
pub mod view;
pub mod volumes;
