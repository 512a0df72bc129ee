//! Framing of the link between agent and rank: one JSON document on each line, with a version, of bounded
//! length. Pure: bytes in, messages out, so that the blocking rank and the asynchronous agent share it.

use serde::{Deserialize, Serialize, de::DeserializeOwned};

/// Version of the link's messages.
pub const LINK_VERSION: u32 = 1;
/// Longest line in bytes: a plan with its list of peers fits many times over.
pub const MAX_LINE_BYTES: usize = 4 << 20;

/// Why bytes from the link are not a message.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    /// A line does not end within the limit.
    #[error("read a message from the link: a line of more than {MAX_LINE_BYTES} bytes")]
    TooLong,
    /// A line is not a message.
    #[error("read a message from the link: {0}")]
    Malformed(serde_json::Error),
    /// A message cannot be encoded.
    #[error("write a message to the link: {0}")]
    Unencodable(serde_json::Error),
    /// The other side speaks another version.
    #[error(
        "read a message from the link: it has version {0}, this program speaks {LINK_VERSION}; agent and rank must be the same program"
    )]
    Version(u32),
}

#[derive(Serialize, Deserialize)]
struct Envelope<T> {
    v: u32,
    m: T,
}

#[derive(Deserialize)]
struct VersionOnly {
    v: u32,
}

/// `message` as one line, newline included.
///
/// # Errors
/// When it cannot be encoded or is longer than the limit.
pub fn encode<T: Serialize>(message: &T) -> Result<Vec<u8>, FrameError> {
    let mut line = serde_json::to_vec(&Envelope {
        v: LINK_VERSION,
        m: message,
    })
    .map_err(FrameError::Unencodable)?;
    line.push(b'\n');
    if line.len() > MAX_LINE_BYTES {
        return Err(FrameError::TooLong);
    }
    Ok(line)
}

/// Collects bytes and yields whole messages.
#[derive(Debug, Default)]
pub struct Decoder {
    buffer: Vec<u8>,
    /// Bytes of `buffer` that were searched for a newline already.
    searched: usize,
}

impl Decoder {
    /// Takes bytes as they came.
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// The next whole message, or None until more bytes come.
    ///
    /// # Errors
    /// When the line is too long, is not a message, or has another version. The line is consumed.
    pub fn next<T: DeserializeOwned>(&mut self) -> Result<Option<T>, FrameError> {
        let Some(end) = self.buffer[self.searched..].iter().position(|b| *b == b'\n') else {
            self.searched = self.buffer.len();
            if self.buffer.len() > MAX_LINE_BYTES {
                return Err(FrameError::TooLong);
            }
            return Ok(None);
        };
        let end = self.searched + end;
        let line: Vec<u8> = self.buffer.drain(..=end).collect();
        self.searched = 0;
        let version: VersionOnly = serde_json::from_slice(&line).map_err(FrameError::Malformed)?;
        if version.v != LINK_VERSION {
            return Err(FrameError::Version(version.v));
        }
        let envelope: Envelope<T> = serde_json::from_slice(&line).map_err(FrameError::Malformed)?;
        Ok(Some(envelope.m))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_survive_any_cut_of_the_bytes() {
        let messages = vec!["a".to_owned(), "line\nbreak".to_owned(), "ü".repeat(100)];
        let bytes: Vec<u8> = messages.iter().flat_map(|m| encode(m).unwrap()).collect();
        for cut in 1..40 {
            let mut decoder = Decoder::default();
            let mut got: Vec<String> = vec![];
            for piece in bytes.chunks(cut) {
                decoder.push(piece);
                while let Some(message) = decoder.next().unwrap() {
                    got.push(message);
                }
            }
            assert_eq!(got, messages, "pieces of {cut} bytes");
        }
    }

    #[test]
    fn a_line_without_end_is_refused_before_it_takes_memory() {
        let mut decoder = Decoder::default();
        decoder.push(&vec![b'x'; MAX_LINE_BYTES + 1]);
        assert!(matches!(decoder.next::<String>(), Err(FrameError::TooLong)));
    }

    #[test]
    fn another_version_is_named() {
        let mut decoder = Decoder::default();
        decoder.push(b"{\"v\":9,\"m\":{\"unknown\":1}}\n");
        assert!(matches!(decoder.next::<String>(), Err(FrameError::Version(9))));
        decoder.push(b"nonsense\n");
        assert!(matches!(decoder.next::<String>(), Err(FrameError::Malformed(_))));
    }
}
