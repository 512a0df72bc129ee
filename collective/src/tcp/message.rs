//! Reads one message of the handshake from a non-blocking socket, and never a byte beyond it: what
//! follows belongs to the group.

use std::io::{self, IoSlice, Read};
use std::net::TcpStream;

use crate::tcp::hello::{self, HEADER, Kind};
use crate::tcp::socket::{Progress, received, send};

/// A message on its way in.
#[derive(Default)]
pub(super) struct MessageReader {
    header: [u8; HEADER],
    filled: usize,
    payload: Vec<u8>,
    wanted: Option<(Kind, usize)>,
}

impl MessageReader {
    /// The next message if it is complete, `None` if more bytes must come. Foreign bytes and the end
    /// of the stream are errors.
    pub(super) fn read(&mut self, mut stream: &TcpStream) -> io::Result<Option<(Kind, Vec<u8>)>> {
        loop {
            let Some((kind, length)) = self.wanted else {
                match progress(received(stream.read(&mut self.header[self.filled..])))? {
                    None => return Ok(None),
                    Some(bytes) => self.filled += bytes,
                }
                if self.filled == HEADER {
                    let parsed = hello::parse_header(&self.header);
                    self.wanted = Some(parsed.ok_or_else(|| io::Error::other("it speaks another protocol"))?);
                    self.payload.clear();
                }
                continue;
            };
            if self.payload.len() == length {
                self.filled = 0;
                self.wanted = None;
                return Ok(Some((kind, std::mem::take(&mut self.payload))));
            }
            let have = self.payload.len();
            self.payload.resize(length, 0);
            let result = received(stream.read(&mut self.payload[have..]));
            let bytes = match &result {
                Ok(Progress::Bytes(bytes)) => *bytes,
                _ => 0,
            };
            self.payload.truncate(have + bytes);
            if progress(result)?.is_none() {
                return Ok(None);
            }
        }
    }
}

fn progress(result: io::Result<Progress>) -> io::Result<Option<usize>> {
    match result? {
        Progress::Bytes(bytes) => Ok(Some(bytes)),
        Progress::Blocked => Ok(None),
        Progress::End => Err(io::Error::other("it closed the connection")),
    }
}

/// Sends a whole message of a handshake. It is small and the first on its way, so that a socket
/// which does not take it at once is as good as broken.
pub(super) fn send_message(stream: &TcpStream, bytes: &[u8]) -> io::Result<()> {
    match send(stream, &[IoSlice::new(bytes)])? {
        Progress::Bytes(sent) if sent == bytes.len() => Ok(()),
        _ => Err(io::Error::other("it does not take the handshake")),
    }
}
