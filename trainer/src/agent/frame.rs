//! Framing of the link between agent and rank: one envelope on each line, of bounded length. Pure: bytes
//! in, messages out, so that the blocking rank and the asynchronous agent share it.

use gradsync_formats::identity::JobUid;
use gradsync_rendezvous::wire::{Envelope, PROTOCOL_VERSION, ProtocolVersion};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

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
    /// The other side speaks another protocol.
    #[error(
        "read a message from the link: its protocol is {0}, this program speaks {PROTOCOL_VERSION}; agent and rank must be the same program"
    )]
    Version(ProtocolVersion),
    /// The other side works for another job.
    #[error("read a message from the link: it is of job {given}, this is job {expected}")]
    WrongJob {
        /// Ours.
        expected: JobUid,
        /// The message's.
        given: JobUid,
    },
}

/// What is read of a line before anything else.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Head {
    protocol: ProtocolVersion,
    job_uid: JobUid,
}

/// `message` as one line, newline included.
///
/// # Errors
/// When it cannot be encoded or is longer than the limit.
pub fn encode<T: Serialize>(job: &JobUid, message: &T) -> Result<Vec<u8>, FrameError> {
    let mut line =
        serde_json::to_vec(&Envelope::new(job.clone(), message)).map_err(FrameError::Unencodable)?;
    line.push(b'\n');
    if line.len() > MAX_LINE_BYTES {
        return Err(FrameError::TooLong);
    }
    Ok(line)
}

/// Collects bytes and yields whole messages.
#[derive(Debug)]
pub struct Decoder {
    job: JobUid,
    buffer: Vec<u8>,
    /// Bytes of `buffer` that were searched for a newline already.
    searched: usize,
}

impl Decoder {
    /// For messages of `job`.
    #[must_use]
    pub fn new(job: JobUid) -> Decoder {
        Decoder {
            job,
            buffer: vec![],
            searched: 0,
        }
    }

    /// Takes bytes as they came.
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// The next whole message, or None until more bytes come.
    ///
    /// # Errors
    /// When the line is too long, is not a message, has another protocol or another job. The line is
    /// consumed.
    pub fn next_message<T: DeserializeOwned>(&mut self) -> Result<Option<T>, FrameError> {
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
        let head: Head = serde_json::from_slice(&line).map_err(FrameError::Malformed)?;
        if !PROTOCOL_VERSION.talks_to(head.protocol) {
            return Err(FrameError::Version(head.protocol));
        }
        if head.job_uid != self.job {
            return Err(FrameError::WrongJob {
                expected: self.job.clone(),
                given: head.job_uid,
            });
        }
        let envelope: Envelope<T> = serde_json::from_slice(&line).map_err(FrameError::Malformed)?;
        Ok(Some(envelope.body))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job() -> JobUid {
        JobUid("j".into())
    }

    #[test]
    fn messages_survive_any_cut_of_the_bytes() {
        let messages = vec!["a".to_owned(), "line\nbreak".to_owned(), "ü".repeat(100)];
        let bytes: Vec<u8> = messages.iter().flat_map(|m| encode(&job(), m).unwrap()).collect();
        for cut in 1..40 {
            let mut decoder = Decoder::new(job());
            let mut got: Vec<String> = vec![];
            for piece in bytes.chunks(cut) {
                decoder.push(piece);
                while let Some(message) = decoder.next_message().unwrap() {
                    got.push(message);
                }
            }
            assert_eq!(got, messages, "pieces of {cut} bytes");
        }
    }

    #[test]
    fn a_line_without_end_is_refused() {
        let mut decoder = Decoder::new(job());
        decoder.push(&vec![b'x'; MAX_LINE_BYTES + 1]);
        assert!(matches!(
            decoder.next_message::<String>(),
            Err(FrameError::TooLong)
        ));
    }

    #[test]
    fn another_protocol_or_job_is_named_before_the_message_is_read() {
        let mut decoder = Decoder::new(job());
        decoder.push(b"{\"protocol\":{\"major\":9,\"minor\":0},\"jobUid\":\"j\",\"body\":{\"unknown\":1}}\n");
        assert!(matches!(decoder.next_message::<String>(), Err(FrameError::Version(v)) if v.major == 9));
        decoder.push(&encode(&JobUid("other".into()), &"x").unwrap());
        assert!(
            matches!(decoder.next_message::<String>(), Err(FrameError::WrongJob { given, .. }) if given.0 == "other")
        );
        decoder.push(b"nonsense\n");
        assert!(matches!(
            decoder.next_message::<String>(),
            Err(FrameError::Malformed(_))
        ));
    }
}
