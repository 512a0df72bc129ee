//! A store in a directory: one file for each object.
//!
//! `put` writes a temporary file beside the final one, syncs it, renames it and syncs the folder, so that
//! a crash at any moment leaves the old object or the new one. Temporaries of writers that died are never
//! listed, and `sweep` removes them.

use super::{Store, StoreError, check_key};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use uuid::Uuid;

/// A temporary is named `.<writer>.<number>.part`: no object has such a name.
const TEMPORARY_SUFFIX: &str = ".part";
/// How often a `put` makes its folder anew when a concurrent `delete` just took it away as empty.
const FOLDER_TRIES: u32 = 8;

/// Objects as files below a root. Symbolic links below the root are not followed when listing.
#[derive(Debug)]
pub struct DirectoryStore {
    root: PathBuf,
    writer: Uuid,
    puts: AtomicU64,
}

impl DirectoryStore {
    /// The store below `root`, which the first `put` makes if need be.
    #[must_use]
    pub fn new(root: impl Into<PathBuf>) -> DirectoryStore {
        DirectoryStore {
            root: root.into(),
            writer: Uuid::new_v4(),
            puts: AtomicU64::new(0),
        }
    }

    /// The root directory.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    fn file_of(&self, key: &str) -> Result<PathBuf, StoreError> {
        check_key(key)?;
        if key.split('/').any(is_temporary) {
            return Err(StoreError::BadKey { key: key.to_owned() });
        }
        Ok(self.root.join(key))
    }

    fn write_whole(&self, file: &Path, bytes: &[u8]) -> Result<(), StoreError> {
        let folder = file.parent().unwrap_or(&self.root);
        let number = self.puts.fetch_add(1, Ordering::Relaxed);
        let temporary = folder.join(format!(".{}.{number}{TEMPORARY_SUFFIX}", self.writer.simple()));
        let mut open = self
            .create(folder, &temporary)
            .inspect_err(|_| self.remove_empty(folder))?;
        let written = open
            .write_all(bytes)
            .map_err(io_error("write", file))
            .and_then(|()| open.sync_all().map_err(io_error("write to disk", file)))
            .and_then(|()| {
                drop(open);
                fs::rename(&temporary, file).map_err(io_error("put in place", file))
            });
        if written.is_err() {
            // The first error counts; what cannot be removed now is a leftover that is never listed.
            let _ = fs::remove_file(&temporary);
            self.remove_empty(folder);
        }
        written?;
        sync_folder(folder)
    }

    fn create(&self, folder: &Path, temporary: &Path) -> Result<File, StoreError> {
        for _ in 0..FOLDER_TRIES {
            make_folders(&self.root, folder)?;
            match OpenOptions::new().write(true).create_new(true).open(temporary) {
                Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                opened => return opened.map_err(io_error("create", temporary)),
            }
        }
        Err(io_error("create", temporary)(io::ErrorKind::NotFound.into()))
    }

    /// Removes `folder` and those above it as long as they are empty; one that is in use again stays, by the
    /// system's own check.
    fn remove_empty(&self, folder: &Path) {
        let mut folder = Some(folder);
        while let Some(empty) = folder.filter(|f| *f != self.root && f.starts_with(&self.root)) {
            if fs::remove_dir(empty).is_err() {
                break;
            }
            folder = empty.parent();
        }
    }

    /// Visits all files below `folder`, temporaries too, as (path, key).
    fn visit(
        &self,
        folder: &Path,
        found: &mut dyn FnMut(&Path, String) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        let entries = match fs::read_dir(folder) {
            Ok(entries) => entries,
            // Others may remove what we walk over.
            Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                return Ok(());
            }
            Err(e) => return Err(io_error("list", folder)(e)),
        };
        for entry in entries {
            let entry = entry.map_err(io_error("list", folder))?;
            let path = entry.path();
            let kind = match entry.file_type() {
                Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
                kind => kind.map_err(io_error("list", &path))?,
            };
            if kind.is_dir() {
                self.visit(&path, found)?;
            } else if kind.is_file()
                && let Some(key) = path.strip_prefix(&self.root).ok().and_then(Path::to_str)
            {
                // A name that is not text was never a key of ours.
                let key = key.to_owned();
                found(&path, key)?;
            }
        }
        Ok(())
    }

    /// The deepest folder that holds every key with this prefix.
    fn folder_of_prefix(&self, prefix: &str) -> Result<PathBuf, StoreError> {
        match prefix.rsplit_once('/') {
            None => Ok(self.root.clone()),
            Some((folder, _)) => {
                check_key(folder)?;
                Ok(self.root.join(folder))
            }
        }
    }
}

impl Store for DirectoryStore {
    fn put(&self, key: &str, bytes: &[u8]) -> Result<(), StoreError> {
        self.write_whole(&self.file_of(key)?, bytes)
    }

    fn get(&self, key: &str) -> Result<Vec<u8>, StoreError> {
        let file = self.file_of(key)?;
        fs::read(&file).map_err(|e| match e.kind() {
            // A folder of this name is no object either.
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory | io::ErrorKind::IsADirectory => {
                StoreError::NotFound {
                    key: key.to_owned(),
                    place: self.describe(),
                }
            }
            _ => io_error("read", &file)(e),
        })
    }

    fn list(&self, prefix: &str) -> Result<Vec<String>, StoreError> {
        let mut keys = vec![];
        self.visit(&self.folder_of_prefix(prefix)?, &mut |path, key| {
            if key.starts_with(prefix) && !is_temporary_file(path) {
                keys.push(key);
            }
            Ok(())
        })?;
        keys.sort();
        Ok(keys)
    }

    fn delete(&self, key: &str) -> Result<(), StoreError> {
        let file = self.file_of(key)?;
        match fs::remove_file(&file) {
            Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                return Ok(());
            }
            removed => removed.map_err(io_error("delete", &file))?,
        }
        // Deletions reach the disk in the order in which they were asked for: a manifest never outlives
        // the parts that are deleted after it.
        if let Some(folder) = file.parent() {
            sync_folder(folder)?;
            self.remove_empty(folder);
        }
        Ok(())
    }

    fn sweep(&self, prefix: &str) -> Result<u64, StoreError> {
        let own = format!(".{}.", self.writer.simple());
        let mut removed = 0;
        let mut folders = vec![];
        self.visit(&self.folder_of_prefix(prefix)?, &mut |path, key| {
            let name = path.file_name().and_then(|n| n.to_str()).unwrap_or_default();
            if !is_temporary(name) || name.starts_with(&own) || !key.starts_with(prefix) {
                return Ok(());
            }
            match fs::remove_file(path) {
                Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
                removed => removed.map_err(io_error("delete", path))?,
            }
            removed += 1;
            folders.extend(path.parent().map(Path::to_owned));
            Ok(())
        })?;
        for folder in folders.iter().filter(|f| **f != self.root) {
            // A folder that held nothing but the leftover goes with it.
            let _ = fs::remove_dir(folder);
        }
        Ok(removed)
    }

    fn describe(&self) -> String {
        self.root.display().to_string()
    }
}

fn is_temporary(name: &str) -> bool {
    name.starts_with('.') && name.ends_with(TEMPORARY_SUFFIX)
}

fn is_temporary_file(path: &Path) -> bool {
    path.file_name()
        .and_then(|n| n.to_str())
        .is_some_and(is_temporary)
}

fn io_error(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> StoreError {
    let path = path.display().to_string();
    move |source| StoreError::Io { action, path, source }
}

/// Makes `folder` and its parents up to `root`, each recorded on disk in its parent.
fn make_folders(root: &Path, folder: &Path) -> Result<(), StoreError> {
    if folder.is_dir() {
        return Ok(());
    }
    if folder == root {
        return fs::create_dir_all(root).map_err(io_error("create directory", root));
    }
    if let Some(parent) = folder.parent() {
        make_folders(root, parent)?;
        match fs::create_dir(folder) {
            // Another member made it, or its parent went away again: the caller tries once more.
            Err(e) if matches!(e.kind(), io::ErrorKind::AlreadyExists | io::ErrorKind::NotFound) => {}
            made => {
                made.map_err(io_error("create directory", folder))?;
                sync_folder(parent)?;
            }
        }
    }
    Ok(())
}

fn sync_folder(folder: &Path) -> Result<(), StoreError> {
    match File::open(folder).and_then(|f| f.sync_all()) {
        // Another member removed the empty folder: nothing of ours was in it.
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        // Some network file systems cannot sync a folder; a rename is durable there by itself.
        Err(e) if e.kind() == io::ErrorKind::InvalidInput => Ok(()),
        synced => synced.map_err(io_error("write to disk", folder)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store() -> (tempfile::TempDir, DirectoryStore) {
        let dir = tempfile::tempdir().unwrap();
        let store = DirectoryStore::new(dir.path().join("made/when/needed"));
        (dir, store)
    }

    #[test]
    fn objects_come_back_whole_and_lists_are_sorted() {
        let (_dir, s) = store();
        assert_eq!(s.list("").unwrap(), Vec::<String>::new());
        for key in ["b/two", "a", "b/one", "bb/x"] {
            s.put(key, key.as_bytes()).unwrap();
        }
        s.put("a", b"again").unwrap();
        assert_eq!(s.get("a").unwrap(), b"again");
        assert_eq!(s.list("").unwrap(), ["a", "b/one", "b/two", "bb/x"]);
        assert_eq!(s.list("b").unwrap(), ["b/one", "b/two", "bb/x"]);
        assert_eq!(s.list("b/").unwrap(), ["b/one", "b/two"]);
        assert_eq!(s.list("b/t").unwrap(), ["b/two"]);
        assert_eq!(s.list("none/").unwrap(), Vec::<String>::new());
        assert_eq!(s.list("a/x").unwrap(), Vec::<String>::new(), "a is a file");
        let missing = s.get("b/three").unwrap_err();
        assert!(matches!(missing, StoreError::NotFound { .. }));
        assert!(missing.to_string().contains("b/three"), "{missing}");
        assert!(matches!(s.get("a/x").unwrap_err(), StoreError::NotFound { .. }));
    }

    #[test]
    fn deleting_the_last_object_of_a_folder_takes_the_folder_but_not_the_root() {
        let (_dir, s) = store();
        s.put("u/one/x", b"1").unwrap();
        s.put("u/two/x", b"1").unwrap();
        s.delete("u/one/x").unwrap();
        s.delete("u/one/x").unwrap();
        assert!(!s.root().join("u/one").exists());
        assert!(s.root().join("u/two").exists());
        s.delete("u/two/x").unwrap();
        assert!(!s.root().join("u").exists());
        assert!(s.root().exists());
    }

    #[test]
    fn leftovers_of_a_dead_writer_are_never_listed_and_sweep_removes_them() {
        let (_dir, s) = store();
        s.put("u/step-1-g1/manifest.json", b"{}").unwrap();
        let dead = DirectoryStore::new(s.root());
        let leftover = |folder: &str| {
            s.root()
                .join(format!("{folder}/.{}.0.part", dead.writer.simple()))
        };
        fs::create_dir_all(s.root().join("u/step-2-g1")).unwrap();
        for folder in ["u/step-1-g1", "u/step-2-g1"] {
            fs::write(leftover(folder), b"half").unwrap();
        }
        let own = s.root().join(format!("u/.{}.7.part", s.writer.simple()));
        fs::write(&own, b"in flight").unwrap();
        assert_eq!(s.list("").unwrap(), ["u/step-1-g1/manifest.json"]);
        assert_eq!(s.sweep("v/").unwrap(), 0);
        assert_eq!(s.sweep("u/").unwrap(), 2);
        assert!(!leftover("u/step-1-g1").exists());
        assert!(!s.root().join("u/step-2-g1").exists(), "held nothing else");
        assert!(own.exists(), "a put of this process may be in flight");
        let key = format!("u/.{}.0.part", s.writer.simple());
        assert!(matches!(s.put(&key, b"").unwrap_err(), StoreError::BadKey { .. }));
    }

    #[test]
    fn keys_do_not_escape() {
        let (dir, s) = store();
        fs::write(dir.path().join("secret"), b"s").unwrap();
        for key in ["../../../secret", "/etc/passwd", "a/../../b", ""] {
            assert!(
                matches!(s.get(key).unwrap_err(), StoreError::BadKey { .. }),
                "{key}"
            );
            assert!(
                matches!(s.put(key, b"x").unwrap_err(), StoreError::BadKey { .. }),
                "{key}"
            );
            assert!(
                matches!(s.delete(key).unwrap_err(), StoreError::BadKey { .. }),
                "{key}"
            );
        }
        assert!(s.list("../").is_err());
        assert_eq!(fs::read(dir.path().join("secret")).unwrap(), b"s");
    }

    #[test]
    fn a_put_into_a_place_that_is_no_directory_names_it() {
        let (_dir, s) = store();
        s.put("a", b"file").unwrap();
        let error = s.put("a/b", b"x").unwrap_err().to_string();
        assert!(error.contains("when/needed/a"), "{error}");
        assert_eq!(s.get("a").unwrap(), b"file");
    }

    #[test]
    fn a_put_that_cannot_be_finished_leaves_no_folder() {
        let (_dir, s) = store();
        let name = "x".repeat(300);
        s.put(&format!("u/step-1-g1/{name}"), b"x").unwrap_err();
        assert!(!s.root().join("u").exists());
        s.put("u/step-1-g1/a", b"x").unwrap();
        s.put(&format!("u/step-1-g1/{name}"), b"x").unwrap_err();
        assert_eq!(s.list("").unwrap(), ["u/step-1-g1/a"]);
    }

    #[test]
    fn puts_and_deletes_at_once_never_lose_a_put() {
        let (_dir, s) = store();
        std::thread::scope(|scope| {
            for member in 0..4 {
                let s = &s;
                scope.spawn(move || {
                    for round in 0..40 {
                        let key = format!("u/folder/{member}-{round}");
                        s.put(&key, key.as_bytes()).unwrap();
                        assert_eq!(s.get(&key).unwrap(), key.as_bytes());
                        s.delete(&key).unwrap();
                    }
                });
            }
        });
        assert_eq!(s.list("").unwrap(), Vec::<String>::new());
    }
}
