//! Writes a member's run record: one file for each generation, one JSON line for each event.

use crate::step::{Fatal, of_io};
use gradsync_formats::identity::{Generation, JobUid, MemberId, Position};
use gradsync_formats::record::{RecordLine, record_file_name};
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead as _, BufReader, ErrorKind, Write as _};
use std::path::{Path, PathBuf};

/// Brings what was written to a file, or the entries of a directory, to the disk.
pub type ToDisk<'a> = dyn Fn(&Path, &File) -> io::Result<()> + 'a;

/// The system's way to do so. Without the times of the file: only its content counts.
///
/// # Errors
/// When the disk refuses.
pub fn to_disk(_: &Path, file: &File) -> io::Result<()> {
    match file.sync_data() {
        // Some network file systems cannot sync a directory; an entry is durable there by itself.
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => Ok(()),
        synced => synced,
    }
}

/// The open record of one member in one generation; without a directory nothing is written.
#[derive(Debug)]
pub struct Recorder {
    file: Option<(File, PathBuf)>,
    /// Whether the directory, and what it holds of earlier generations, was brought to the disk.
    directory_is_on_disk: bool,
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
            return Ok(Recorder {
                file: None,
                directory_is_on_disk: true,
            });
        };
        std::fs::create_dir_all(directory).map_err(|error| refused("create", directory, &error))?;
        let path = directory.join(record_file_name(generation, member));
        let file = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&path)
            .map_err(|error| refused("open", &path, &error))?;
        Ok(Recorder {
            file: Some((file, path)),
            directory_is_on_disk: false,
        })
    }

    /// Brings all lines so far to the disk: a checkpoint that survives a crash of the machine must not be ahead
    /// of the record that proves it. The first call takes along what the directory holds of earlier generations,
    /// whose writers may be gone.
    ///
    /// # Errors
    /// When the disk refuses.
    pub fn sync(&mut self, to_disk: &ToDisk<'_>) -> Result<(), Fatal> {
        let Some((file, path)) = &self.file else {
            return Ok(());
        };
        if !self.directory_is_on_disk
            && let Some(directory) = path.parent()
        {
            sync_directory(directory, to_disk)?;
            self.directory_is_on_disk = true;
            return Ok(());
        }
        to_disk(path, file).map_err(|error| refused("write to disk", path, &error))
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
            .map_err(|error| refused("write", path, &error))
    }
}

/// Brings all records in `directory` to the disk, and that they are there.
///
/// # Errors
/// When the disk refuses.
pub fn sync_directory(directory: &Path, to_disk: &ToDisk<'_>) -> Result<(), Fatal> {
    for path in files(directory)? {
        match File::open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            opened => opened
                .and_then(|file| to_disk(&path, &file))
                .map_err(|error| refused("write to disk", &path, &error))?,
        }
    }
    for place in [Some(directory), directory.parent()].into_iter().flatten() {
        // The parent of a relative path of one part is written as nothing.
        let place = if place.as_os_str().is_empty() {
            Path::new(".")
        } else {
            place
        };
        File::open(place)
            .and_then(|folder| to_disk(place, &folder))
            .map_err(|error| refused("write to disk", place, &error))?;
    }
    Ok(())
}

/// The newest checkpoint of `job` that the records in `directory` tell of.
///
/// # Errors
/// When a record cannot be read.
pub fn newest_checkpoint(directory: &Path, job: &JobUid) -> Result<Option<(Position, String)>, Fatal> {
    let mut newest: Option<(Position, String)> = None;
    for path in files(directory)? {
        let unread = |error: io::Error| refused("read", &path, &error);
        let mut lines = BufReader::new(File::open(&path).map_err(unread)?).lines();
        let first = lines.next().transpose().map_err(unread)?.unwrap_or_default();
        let of_job = matches!(
            serde_json::from_str(&first),
            Ok(RecordLine::Opened { job_uid, .. }) if job_uid == *job
        );
        if !of_job {
            continue;
        }
        for line in lines {
            let line = line.map_err(unread)?;
            if line.contains("\"checkpointed\"")
                && let Ok(RecordLine::Checkpointed { position, path, .. }) = serde_json::from_str(&line)
                && newest.as_ref().is_none_or(|(known, _)| position > *known)
            {
                newest = Some((position, path));
            }
        }
    }
    Ok(newest)
}

/// The files of records in `directory`.
fn files(directory: &Path) -> Result<Vec<PathBuf>, Fatal> {
    let unread = |error: io::Error| refused("list", directory, &error);
    let entries = match std::fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(vec![]),
        entries => entries.map_err(unread)?,
    };
    let mut files = vec![];
    for entry in entries {
        let path = entry.map_err(unread)?.path();
        if path.extension().is_some_and(|extension| extension == "jsonl") {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

fn refused(action: &str, path: &Path, error: &io::Error) -> Fatal {
    let way_out = match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => "; free space there",
        ErrorKind::FileTooLarge => "; raise the limit on the size of one file (ulimit -f)",
        ErrorKind::NotADirectory | ErrorKind::IsADirectory | ErrorKind::AlreadyExists => {
            "; move away what is in the way there"
        }
        _ => "",
    };
    Fatal {
        kind: of_io(error.kind()),
        message: format!("{action} {}: {error}{way_out}", path.display()),
    }
}
