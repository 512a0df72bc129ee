//! The reference of the command line, as Markdown: `docs/cli.md`. It is the help texts themselves, so that
//! the two cannot differ; a test compares the file with this.

use crate::commands::Cli;
use clap::{Command, CommandFactory as _};
use std::fmt::Write as _;

/// Width of the help texts in the reference.
const WIDTH: usize = 100;

/// The whole reference.
#[must_use]
pub fn markdown() -> String {
    let mut text = String::from(
        "# The command line\n\n\
         Generated from the program's own help (`GRADSYNC_BLESS=1 cargo test -p gradsync --test reference` \
         writes it anew). Installed as `kubectl-gradsync` it is also `kubectl gradsync`.\n",
    );
    let mut command = Cli::command().term_width(WIDTH).disable_help_subcommand(true);
    command.build();
    describe(&command, &mut text);
    text
}

fn describe(command: &Command, text: &mut String) {
    let name = command.get_bin_name().unwrap_or_else(|| command.get_name());
    let level = "#".repeat(name.split(' ').count().min(3) + 1);
    let help = command.clone().term_width(WIDTH).render_long_help().to_string();
    let lines: Vec<&str> = help.lines().map(str::trim_end).collect();
    let _ = write!(
        text,
        "\n{level} {name}\n\n```text\n{}\n```\n",
        lines.join("\n").trim_end()
    );
    for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set()) {
        describe(sub, text);
    }
}
