//! Follows the members' record files as they grow.

use gradsync_formats::record::RecordLine;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};

/// Reads each `*.jsonl` file of a directory from where it stopped the last time.
#[derive(Debug)]
pub struct RecordTail {
    directory: PathBuf,
    read: BTreeMap<String, Place>,
    malformed: u64,
    chunk: u64,
}

/// How far a file was read.
#[derive(Debug, Default)]
struct Place {
    offset: u64,
    /// Whether the line at `offset` is the rest of one that was too long.
    skipping: bool,
}

/// Most bytes taken from one file in one call, so that one call never takes long: a line that is longer is
/// none that could be shown.
const CHUNK: u64 = 4 << 20;

impl RecordTail {
    /// Follows `directory` from the first line of every file.
    #[must_use]
    pub fn new(directory: &Path) -> RecordTail {
        RecordTail {
            directory: directory.to_owned(),
            read: BTreeMap::new(),
            malformed: 0,
            chunk: CHUNK,
        }
    }

    /// Whole lines that were not record lines, such as those of a newer version.
    #[must_use]
    pub fn malformed(&self) -> u64 {
        self.malformed
    }

    /// Hands every line that is new to `take`, with its file's name, and says whether anything was read. A
    /// last line without its end is left until it is whole; one longer than a line can be is skipped, with a
    /// warning in the log.
    ///
    /// # Errors
    /// When the directory or a file cannot be read; the other files were read all the same.
    pub fn poll(&mut self, mut take: impl FnMut(&str, RecordLine)) -> std::io::Result<bool> {
        let mut names: Vec<String> = fs::read_dir(&self.directory)?
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .filter(|name| name.ends_with(".jsonl"))
            .collect();
        names.sort();
        let mut result = Ok(false);
        for name in names {
            match (self.poll_file(&name, &mut take), &mut result) {
                (Ok(read), Ok(any)) => *any |= read,
                (Err(error), Ok(_)) => result = Err(error),
                (_, Err(_)) => {}
            }
        }
        result
    }

    fn poll_file(&mut self, name: &str, take: &mut impl FnMut(&str, RecordLine)) -> std::io::Result<bool> {
        let place = self.read.entry(name.to_owned()).or_default();
        let path = self.directory.join(name);
        if fs::metadata(&path)?.len() <= place.offset {
            return Ok(false);
        }
        let mut file = File::open(&path)?;
        file.seek(SeekFrom::Start(place.offset))?;
        let mut bytes = vec![];
        file.take(self.chunk).read_to_end(&mut bytes)?;
        let whole = bytes.iter().rposition(|b| *b == b'\n').map_or(0, |end| end + 1);
        if whole == 0 {
            let full = bytes.len() as u64 == self.chunk;
            if full {
                if !std::mem::replace(&mut place.skipping, true) {
                    tracing::warn!(
                        file = name,
                        at = place.offset,
                        "skipping a record line that is too long"
                    );
                    self.malformed += 1;
                }
                place.offset += bytes.len() as u64;
            }
            return Ok(full);
        }
        let mut lines = bytes[..whole].split(|b| *b == b'\n');
        if std::mem::take(&mut place.skipping) {
            // The rest of the long line.
            lines.next();
        }
        for line in lines.filter(|l| !l.is_empty()) {
            match serde_json::from_slice(line) {
                Ok(line) => take(name, line),
                Err(_) => self.malformed += 1,
            }
        }
        place.offset += whole as u64;
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gradsync_formats::identity::Position;
    use std::io::Write as _;

    #[test]
    fn a_line_is_handed_over_once_and_only_when_it_is_whole() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("1-a.jsonl");
        let line = serde_json::to_string(&RecordLine::Agreed {
            position: Position::INITIAL,
            digest: "d".into(),
        })
        .unwrap();
        let (head, rest) = line.split_at(10);
        let mut file = File::create(&path).unwrap();
        let mut tail = RecordTail::new(place.path());
        let mut seen = vec![];
        write!(file, "{line}\nnot a record\n{head}").unwrap();
        assert!(tail.poll(|name, _| seen.push(name.to_owned())).unwrap());
        assert_eq!(seen.len(), 1);
        assert!(!tail.poll(|name, _| seen.push(name.to_owned())).unwrap());
        writeln!(file, "{rest}").unwrap();
        assert!(tail.poll(|name, _| seen.push(name.to_owned())).unwrap());
        assert_eq!(seen, ["1-a.jsonl", "1-a.jsonl"]);
        assert_eq!(tail.malformed(), 1);
    }

    #[test]
    fn a_line_that_is_too_long_is_skipped_and_what_follows_it_is_read() {
        let place = tempfile::tempdir().unwrap();
        let line = serde_json::to_string(&RecordLine::Agreed {
            position: Position::INITIAL,
            digest: "d".into(),
        })
        .unwrap();
        let mut file = File::create(place.path().join("1-a.jsonl")).unwrap();
        let mut tail = RecordTail::new(place.path());
        tail.chunk = 256;
        let long = "x".repeat(1000);
        write!(file, "{line}\n{long}\n{line}\n{line}\n").unwrap();
        let mut seen = 0;
        while tail.poll(|_, _| seen += 1).unwrap() {}
        assert_eq!((seen, tail.malformed()), (3, 1));
    }

    #[test]
    fn a_file_that_cannot_be_read_does_not_keep_the_others_from_being_read() {
        let place = tempfile::tempdir().unwrap();
        std::fs::create_dir(place.path().join("0-a.jsonl")).unwrap();
        let mut file = File::create(place.path().join("1-a.jsonl")).unwrap();
        writeln!(file, "not a record").unwrap();
        let mut tail = RecordTail::new(place.path());
        tail.poll(|_, _| {}).unwrap_err();
        assert_eq!(tail.malformed(), 1);
    }
}
