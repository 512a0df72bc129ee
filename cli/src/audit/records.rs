//! Finds the run records below a directory that a user names.

use anyhow::{Context as _, bail};
use gradsync_formats::audit::RecordFile;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

/// Name of the folder of records, in an output directory and beside checkpoints.
const FOLDER: &str = "records";

/// The records of one job.
#[derive(Debug)]
pub struct Records {
    /// Where they lie.
    pub folder: PathBuf,
    /// The files, sorted by name.
    pub files: Vec<PathBuf>,
}

impl Records {
    /// The records as the audit reads them, named relative to `shown_from`.
    #[must_use]
    pub fn for_audit(&self, shown_from: &Path) -> Vec<RecordFile<'static>> {
        let shown = |path: &Path| {
            path.strip_prefix(shown_from)
                .unwrap_or(path)
                .display()
                .to_string()
        };
        self.files
            .iter()
            .map(|path| {
                let name = shown(path);
                let path = path.clone();
                RecordFile {
                    name,
                    open: Box::new(move || {
                        File::open(&path).map(|file| Box::new(BufReader::new(file)) as Box<dyn BufRead>)
                    }),
                }
            })
            .collect()
    }
}

/// The records that `directory` stands for: it is an output directory of `gradsync run`, a job's folder of
/// checkpoints, a checkpoint directory with a single job in it, or the folder of records itself.
///
/// # Errors
/// When there are none, those of several jobs, or the directory cannot be read.
pub fn find_records(directory: &Path) -> anyhow::Result<Records> {
    let shown = directory.display();
    let mut found = vec![];
    let mut candidates = vec![directory.join(FOLDER), directory.to_owned()];
    for entry in fs::read_dir(directory).with_context(|| format!("read {shown}"))? {
        candidates.push(
            entry
                .with_context(|| format!("read {shown}"))?
                .path()
                .join(FOLDER),
        );
    }
    for folder in candidates {
        let files = record_files(&folder)?;
        if !files.is_empty() {
            found.push(Records { folder, files });
        }
    }
    match found.len() {
        0 => bail!(
            "find run records in {shown}: there are none; give an output directory of `gradsync run`, or a folder that holds {FOLDER}/<generation>-<id>.jsonl"
        ),
        1 => Ok(found.remove(0)),
        _ => {
            let folders: Vec<String> = found.iter().map(|r| r.folder.display().to_string()).collect();
            bail!(
                "find run records in {shown}: there are those of several jobs, audit one at a time: {}",
                folders.join(", ")
            )
        }
    }
}

fn record_files(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut files = vec![];
    // Most candidates are no folders at all.
    if !folder.is_dir() {
        return Ok(files);
    }
    let reading = || format!("read {}", folder.display());
    for entry in fs::read_dir(folder).with_context(reading)? {
        let path = entry.with_context(reading)?.path();
        if path.file_name().is_some_and(is_record) && path.is_file() {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

/// `<generation>-<incarnation>.jsonl`.
fn is_record(name: &OsStr) -> bool {
    let generation = name
        .to_str()
        .and_then(|name| name.strip_suffix(".jsonl"))
        .and_then(|stem| stem.split_once('-'));
    generation.is_some_and(|(generation, _)| generation.parse::<u64>().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn touch(path: &Path) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, b"").unwrap();
    }

    #[test]
    fn records_are_found_from_each_directory_that_stands_for_them() {
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path();
        touch(&out.join("records/1-ab.jsonl"));
        touch(&out.join("records/10-cd.jsonl"));
        touch(&out.join("records/notes.txt"));
        touch(&out.join("metrics.jsonl"));
        touch(&out.join("earlier/job-0/records/1-old.jsonl"));
        for directory in [out.to_owned(), out.join("records")] {
            let found = find_records(&directory).unwrap();
            assert_eq!(found.folder, out.join("records"));
            let names: Vec<String> = found.for_audit(out).into_iter().map(|f| f.name).collect();
            assert_eq!(names, ["records/1-ab.jsonl", "records/10-cd.jsonl"]);
        }

        let checkpoints = tempfile::tempdir().unwrap();
        touch(&checkpoints.path().join("job-1/records/1-ab.jsonl"));
        touch(&checkpoints.path().join("job-1/step-1-g1/manifest.json"));
        assert_eq!(find_records(checkpoints.path()).unwrap().files.len(), 1);
        touch(&checkpoints.path().join("job-2/records/1-ab.jsonl"));
        let error = find_records(checkpoints.path()).unwrap_err().to_string();
        assert!(
            error.contains("several jobs") && error.contains("job-2/records"),
            "{error}"
        );
        assert_eq!(
            find_records(&checkpoints.path().join("job-2"))
                .unwrap()
                .files
                .len(),
            1
        );

        let empty = tempfile::tempdir().unwrap();
        let error = find_records(empty.path()).unwrap_err().to_string();
        assert!(error.contains("there are none"), "{error}");
        assert!(find_records(&empty.path().join("missing")).is_err());
    }
}
