//! What commands say: answers on standard output, everything else on standard error. Nothing here panics
//! when the reader has gone, as `println!` does.

use anyhow::Context as _;
use std::io::{self, Write as _};

/// Exit code of a program that ended because nobody reads its answer any more: that of SIGPIPE in a shell.
pub const PIPE_CLOSED: u8 = 141;

/// Nobody reads the answer any more (`gradsync audit DIR | head`): the command ends, without a word.
#[derive(Debug, thiserror::Error)]
#[error("write the answer: its reader has gone")]
pub struct ReaderGone;

/// Writes a command's answer to standard output.
///
/// # Errors
/// [`ReaderGone`] for a closed pipe; otherwise when it cannot be written.
pub fn answer(text: &str) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Err(ReaderGone.into()),
        written => written.context("write the answer to standard output"),
    }
}

/// Prints on standard error. Whoever closed it does not want to read: training goes on without.
pub fn put(text: &str) {
    let _ = io::stderr().write_all(text.as_bytes());
}

/// An error with its causes. A cause that the text before it states already is not said twice: most
/// messages of ours end with the system's reason and carry it as their source, too.
#[must_use]
pub fn with_causes(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if text.is_empty() {
            text = cause;
        } else if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("listen on port 80: {source}; choose another")]
    struct Listen {
        source: io::Error,
    }

    #[test]
    fn a_reason_that_a_message_contains_is_not_said_again() {
        let source = io::Error::other("it is taken");
        let error = anyhow::Error::from(Listen { source }).context("start the service");
        assert_eq!(
            with_causes(&error),
            "start the service: listen on port 80: it is taken; choose another"
        );
        let plain = anyhow::Error::from(io::Error::other("no such file")).context("read a.yaml");
        assert_eq!(with_causes(&plain), "read a.yaml: no such file");
    }
}
