//! The agent's last word: a small file that outlives it, read by the launcher, and on a cluster as the
//! container's termination message.

use serde::{Deserialize, Serialize};
use std::path::Path;

/// How the agent ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LastWord {
    /// Its exit code.
    pub code: u8,
    /// The one error that ended it.
    pub error: Option<String>,
}

/// Longest error text: Kubernetes keeps 4096 bytes of a termination message.
const LONGEST: usize = 3000;

impl LastWord {
    /// Writes it to `file`, if there is one. A file that cannot be written is only warned of: the exit
    /// code says the essential.
    pub fn leave(&self, file: Option<&Path>) {
        let Some(file) = file else { return };
        let mut short = self.clone();
        if let Some(error) = &mut short.error
            && error.len() > LONGEST
        {
            let end = (0..=LONGEST)
                .rev()
                .find(|at| error.is_char_boundary(*at))
                .unwrap_or(0);
            error.truncate(end);
        }
        let written = serde_json::to_vec(&short)
            .map_err(std::io::Error::from)
            .and_then(|bytes| std::fs::write(file, bytes));
        if let Err(error) = written {
            tracing::warn!(file = %file.display(), %error, "could not leave the last word");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_error_is_cut_so_that_the_document_stays_whole() {
        let place = tempfile::tempdir().unwrap();
        let file = place.path().join("word");
        let word = LastWord {
            code: 3,
            error: Some("ü".repeat(4000)),
        };
        word.leave(Some(&file));
        let read: LastWord = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
        assert_eq!(read.code, 3);
        assert!(read.error.unwrap().len() <= LONGEST);
    }
}
