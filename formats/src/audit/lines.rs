//! One record file, read line by line.

use super::AuditError;
use super::verdict::Place;
use crate::identity::Position;
use crate::record::{RECORD_VERSION, RecordLine};
use serde_json::Value;
use std::fmt;
use std::io::{self, BufRead, Read as _};

/// No line of a record is longer: what is, is no record.
const LONGEST_LINE: u64 = 1 << 28;

/// A record to be audited: its name for messages, and how to read it.
pub struct RecordFile<'a> {
    /// Name, such as `records/1-5f0c.jsonl`.
    pub name: String,
    /// Opens it at its beginning. Called twice: for the first line, and when its generation's turn has
    /// come, so that no more files are open at once than a generation has members.
    pub open: Box<dyn Fn() -> io::Result<Box<dyn BufRead + 'a>> + 'a>,
}

impl fmt::Debug for RecordFile<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RecordFile").field(&self.name).finish()
    }
}

/// A line about a step, with its place.
#[derive(Debug)]
pub(super) struct Event {
    pub(super) place: Place,
    pub(super) position: Position,
    pub(super) line: RecordLine,
}

/// Reads the lines about steps; others are passed by.
pub(super) struct Reader<'f, 'a> {
    file: &'f RecordFile<'a>,
    input: Input<'a>,
    line: u64,
    peeked: Option<Event>,
    torn: bool,
}

enum Input<'a> {
    NotOpen,
    Open(Box<dyn BufRead + 'a>),
    Ended,
}

impl<'f, 'a> Reader<'f, 'a> {
    /// Reads the first line of `file`, which says who wrote it. None: the file is empty, or that line is
    /// torn.
    pub(super) fn open(file: &'f RecordFile<'a>) -> Result<(Option<RecordLine>, Reader<'f, 'a>), AuditError> {
        let mut reader = Reader {
            file,
            input: Input::NotOpen,
            line: 0,
            peeked: None,
            torn: false,
        };
        match reader.read()? {
            None => Ok((None, reader)),
            Some(opened @ RecordLine::Opened { version, .. }) => {
                if version > RECORD_VERSION {
                    return Err(AuditError::Newer {
                        file: file.name.clone(),
                        found: version,
                    });
                }
                reader.input = Input::NotOpen;
                Ok((Some(opened), reader))
            }
            Some(_) => Err(reader.malformed("the first line does not say who wrote the record".into())),
        }
    }

    pub(super) fn name(&self) -> &str {
        &self.file.name
    }

    /// Whether the file ended in a torn line.
    pub(super) fn is_torn(&self) -> bool {
        self.torn
    }

    /// The next line about a step, without consuming it.
    pub(super) fn peek(&mut self) -> Result<Option<&Event>, AuditError> {
        while self.peeked.is_none() {
            let Some(line) = self.read()? else { break };
            let position = match &line {
                RecordLine::Computed { position, .. }
                | RecordLine::Committed { position, .. }
                | RecordLine::Agreed { position, .. } => *position,
                RecordLine::Opened { .. } => {
                    return Err(self.malformed("a second first line: two members wrote one file".into()));
                }
                RecordLine::Evaluated { .. }
                | RecordLine::Checkpointed { .. }
                | RecordLine::Recovered { .. } => continue,
            };
            self.peeked = Some(Event {
                place: self.place(),
                position,
                line,
            });
        }
        Ok(self.peeked.as_ref())
    }

    /// The next line about a step.
    pub(super) fn next(&mut self) -> Result<Option<Event>, AuditError> {
        self.peek()?;
        Ok(self.peeked.take())
    }

    fn place(&self) -> Place {
        Place {
            file: self.file.name.clone(),
            line: self.line,
        }
    }

    fn malformed(&self, problem: String) -> AuditError {
        AuditError::Malformed {
            file: self.file.name.clone(),
            line: self.line,
            problem,
        }
    }

    /// The next line that this version knows. A last line without its line end that does not parse is what
    /// a killed member was writing: the end.
    fn read(&mut self) -> Result<Option<RecordLine>, AuditError> {
        loop {
            let mut bytes = vec![];
            self.read_bytes(&mut bytes).map_err(|source| AuditError::Io {
                file: self.file.name.clone(),
                source,
            })?;
            if bytes.is_empty() {
                self.input = Input::Ended;
                return Ok(None);
            }
            self.line += 1;
            if bytes.len() as u64 == LONGEST_LINE {
                return Err(self.malformed("the line is too long for a record".into()));
            }
            let ended = bytes.last() == Some(&b'\n');
            match parse(&bytes) {
                Ok(Some(line)) => return Ok(Some(line)),
                Ok(None) => {}
                Err(_) if !ended => {
                    self.torn = true;
                    self.input = Input::Ended;
                    return Ok(None);
                }
                Err(problem) => return Err(self.malformed(problem)),
            }
        }
    }

    /// The next line's bytes, none at the end. Opens the file, past the lines that were read before.
    fn read_bytes(&mut self, bytes: &mut Vec<u8>) -> io::Result<()> {
        if matches!(self.input, Input::NotOpen) {
            let mut input = (self.file.open)()?;
            for _ in 0..self.line {
                input.skip_until(b'\n')?;
            }
            self.input = Input::Open(input);
        }
        match &mut self.input {
            Input::Open(input) => input.take(LONGEST_LINE).read_until(b'\n', bytes).map(|_| ()),
            Input::NotOpen | Input::Ended => Ok(()),
        }
    }
}

/// None: a kind of line that a later version added, or one that the audit does not need in a form that
/// this version cannot read (a metric that is no number).
fn parse(bytes: &[u8]) -> Result<Option<RecordLine>, String> {
    let problem = match serde_json::from_slice(bytes) {
        Ok(line) => return Ok(Some(line)),
        Err(problem) => problem.to_string(),
    };
    let needed = ["opened", "computed", "committed", "agreed"];
    match serde_json::from_slice::<Value>(bytes) {
        Ok(line) => match line.get("type").and_then(Value::as_str) {
            Some(kind) if !needed.contains(&kind) => Ok(None),
            _ => Err(problem),
        },
        Err(_) => Err(problem),
    }
}
