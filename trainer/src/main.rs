//! The trainer that comes with gradsync: all of its own tasks.

use std::process::ExitCode;

fn main() -> ExitCode {
    gradsync_trainer::main(&gradsync_trainer::tasks::builtin())
}
