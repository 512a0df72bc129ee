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
    read: BTreeMap<String, u64>,
    malformed: u64,
}

/// Most bytes taken from one file in one call, so that one call never takes long.
const CHUNK: u64 = 4 << 20;

impl RecordTail {
    /// Follows `directory` from the first line of every file.
    #[must_use]
    pub fn new(directory: &Path) -> RecordTail {
        RecordTail {
            directory: directory.to_owned(),
            read: BTreeMap::new(),
            malformed: 0,
        }
    }

    /// Whole lines that were not record lines, such as those of a newer version.
    #[must_use]
    pub fn malformed(&self) -> u64 {
        self.malformed
    }

    /// Hands every line that is new to `take`, with its file's name, and says whether there was one. A
    /// last line without its end is left until it is whole.
    ///
    /// # Errors
    /// When the directory or a file cannot be read.
    pub fn poll(&mut self, mut take: impl FnMut(&str, RecordLine)) -> std::io::Result<bool> {
        let mut names: Vec<String> = fs::read_dir(&self.directory)?
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .filter(|name| name.ends_with(".jsonl"))
            .collect();
        names.sort();
        let mut any = false;
        for name in names {
            let start = self.read.get(&name).copied().unwrap_or(0);
            let path = self.directory.join(&name);
            if fs::metadata(&path)?.len() <= start {
                continue;
            }
            let mut file = File::open(&path)?;
            file.seek(SeekFrom::Start(start))?;
            let mut bytes = vec![];
            file.take(CHUNK).read_to_end(&mut bytes)?;
            let whole = bytes.iter().rposition(|b| *b == b'\n').map_or(0, |end| end + 1);
            for line in bytes[..whole].split(|b| *b == b'\n').filter(|l| !l.is_empty()) {
                match serde_json::from_slice(line) {
                    Ok(line) => {
                        any = true;
                        take(&name, line);
                    }
                    Err(_) => self.malformed += 1,
                }
            }
            self.read.insert(name, start + whole as u64);
        }
        Ok(any)
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
}
