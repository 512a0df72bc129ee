//! Writes a member's run record: one file for each generation, one JSON line for each event.

use crate::step::Fatal;
use gradsync_formats::identity::{Generation, MemberId};
use gradsync_formats::record::{RecordLine, record_file_name};
use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};

/// The open record of one member in one generation; without a directory nothing is written.
#[derive(Debug)]
pub struct Recorder {
    file: Option<(File, PathBuf)>,
}

impl Recorder {
    /// Opens `<directory>/<g>-<incarnation>.jsonl`.
    ///
    /// # Errors
    /// When the directory or the file cannot be made.
    pub fn open(
        directory: Option<&Path>,
        generation: Generation,
        member: &MemberId,
    ) -> Result<Recorder, Fatal> {
        let Some(directory) = directory else {
            return Ok(Recorder { file: None });
        };
        std::fs::create_dir_all(directory)
            .map_err(|error| Fatal::user(format!("create {}: {error}", directory.display())))?;
        let path = directory.join(record_file_name(generation, member));
        let file = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&path)
            .map_err(|error| Fatal::user(format!("open {}: {error}", path.display())))?;
        Ok(Recorder {
            file: Some((file, path)),
        })
    }

    /// Appends a line. It reaches the operating system before this returns, so that the death of this
    /// process cannot lose it.
    ///
    /// # Errors
    /// When it cannot be written: a step without its record must not commit.
    pub fn write(&mut self, line: &RecordLine) -> Result<(), Fatal> {
        let Some((file, path)) = &mut self.file else {
            return Ok(());
        };
        let mut text = serde_json::to_vec(line)
            .map_err(|error| Fatal::process(format!("encode a record line: {error}")))?;
        text.push(b'\n');
        file.write_all(&text)
            .map_err(|error| Fatal::user(format!("write {}: {error}; free space there", path.display())))
    }
}
