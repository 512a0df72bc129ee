//! What must survive the service, and the file that keeps it in `gradsync run`.

use crate::membership::{Ending, Formed, Restarts, Saved};
use gradsync_formats::identity::{Generation, JobUid};
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions, TryLockError};
use std::future::Future;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Where membership is kept so that it outlives the service. What a method has accepted must survive a
/// crash of the machine; what it has refused may still arrive later, which the machine allows for.
pub trait Persist: Send + 'static {
    /// What is kept.
    ///
    /// # Errors
    /// When it cannot be read.
    fn load(&mut self) -> impl Future<Output = Result<Saved, PersistError>> + Send;

    /// Keeps `formed`, if the newest generation kept is `follows`.
    ///
    /// # Errors
    /// [`PersistError::Conflict`] if another one is kept; otherwise when it cannot be written.
    fn form(
        &mut self,
        follows: Generation,
        formed: &Formed,
    ) -> impl Future<Output = Result<(), PersistError>> + Send;

    /// Keeps the end of the job. The first one counts.
    ///
    /// # Errors
    /// When it cannot be written.
    fn latch(&mut self, ending: &Ending) -> impl Future<Output = Result<(), PersistError>> + Send;

    /// Keeps the counted restarts.
    ///
    /// # Errors
    /// When they cannot be written.
    fn save_restarts(&mut self, restarts: &Restarts)
    -> impl Future<Output = Result<(), PersistError>> + Send;
}

/// Why something could not be kept or read.
#[derive(Debug, thiserror::Error)]
pub enum PersistError {
    /// Another service has gone on.
    #[error(
        "save membership: {place} holds generation {found}, expected {expected}; another service is at work"
    )]
    Conflict {
        /// Where.
        place: String,
        /// The generation that was expected there.
        expected: Generation,
        /// The one that is there.
        found: Generation,
    },
    /// The file is another job's.
    #[error("use {place}: it belongs to job {found}, not to job {expected}; choose another output directory")]
    OtherJob {
        /// Where.
        place: String,
        /// This job.
        expected: JobUid,
        /// Its job.
        found: JobUid,
    },
    /// The file cannot be understood.
    #[error("read {place}: {problem}; restore the file, or start in another output directory")]
    Corrupt {
        /// Where.
        place: String,
        /// What is wrong.
        problem: String,
    },
    /// The system refuses.
    #[error("{action} {place}: {source}")]
    Io {
        /// What was tried.
        action: &'static str,
        /// Where.
        place: String,
        /// The system's reason.
        source: io::Error,
    },
    /// The service is shutting down.
    #[error("save membership: the service is shutting down")]
    Closing,
}

/// Name of the file within the output directory.
pub const MEMBERSHIP_FILE: &str = "membership.json";
const LOCK_FILE: &str = "membership.lock";
const VERSION: u32 = 1;
/// Another writer holds the lock for one write only; longer means that it hangs.
const LOCK_DEADLINE: Duration = Duration::from_secs(10);
const LOCK_POLL: Duration = Duration::from_millis(5);

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Document {
    version: u32,
    job_uid: JobUid,
    #[serde(flatten)]
    saved: Saved,
}

/// Keeps membership in `membership.json` of the output directory: written under a temporary name, flushed
/// to the disk and renamed, under a file lock, after looking that nobody else has gone on.
#[derive(Clone, Debug)]
pub struct FilePersist {
    directory: PathBuf,
    job_uid: JobUid,
}

impl FilePersist {
    /// The file in `directory`, which must exist. Its job's UID is kept; without a file a fresh one is made
    /// and written at once.
    ///
    /// # Errors
    /// When the file cannot be read, understood or written.
    pub fn open(directory: &Path) -> Result<FilePersist, PersistError> {
        let fresh = JobUid(uuid::Uuid::new_v4().to_string());
        let mut file = FilePersist {
            directory: directory.to_owned(),
            job_uid: fresh,
        };
        let _lock = file.lock()?;
        match file.read()? {
            Some(document) => file.job_uid = document.job_uid,
            None => file.write(&Saved::default())?,
        }
        Ok(file)
    }

    /// The job's UID.
    #[must_use]
    pub fn job_uid(&self) -> &JobUid {
        &self.job_uid
    }

    /// What is kept, read at once: for those who only look.
    ///
    /// # Errors
    /// When the file cannot be read or understood, or is another job's.
    pub fn saved(&self) -> Result<Saved, PersistError> {
        match self.read()? {
            None => Ok(Saved::default()),
            Some(document) if document.job_uid == self.job_uid => Ok(document.saved),
            Some(document) => Err(PersistError::OtherJob {
                place: self.place(),
                expected: self.job_uid.clone(),
                found: document.job_uid,
            }),
        }
    }

    fn path(&self) -> PathBuf {
        self.directory.join(MEMBERSHIP_FILE)
    }

    fn place(&self) -> String {
        self.path().display().to_string()
    }

    fn error(&self, action: &'static str) -> impl FnOnce(io::Error) -> PersistError + use<> {
        let place = self.place();
        move |source| PersistError::Io {
            action,
            place,
            source,
        }
    }

    fn lock(&self) -> Result<File, PersistError> {
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(self.directory.join(LOCK_FILE))
            .map_err(self.error("open the lock of"))?;
        let start = Instant::now();
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(file),
                Err(TryLockError::WouldBlock) if start.elapsed() < LOCK_DEADLINE => {
                    std::thread::sleep(LOCK_POLL)
                }
                Err(TryLockError::WouldBlock) => {
                    return Err(self.error("lock")(io::Error::other(
                        "another process holds the lock",
                    )));
                }
                Err(TryLockError::Error(source)) => return Err(self.error("lock")(source)),
            }
        }
    }

    fn read(&self) -> Result<Option<Document>, PersistError> {
        let bytes = match std::fs::read(self.path()) {
            Ok(bytes) => bytes,
            Err(source) if source.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(self.error("read")(source)),
        };
        let corrupt = |problem: String| PersistError::Corrupt {
            place: self.place(),
            problem,
        };
        let document: Document = serde_json::from_slice(&bytes).map_err(|e| corrupt(e.to_string()))?;
        if document.version > VERSION {
            return Err(corrupt(format!(
                "format version {} is newer than {VERSION}",
                document.version
            )));
        }
        Ok(Some(document))
    }

    fn write(&self, saved: &Saved) -> Result<(), PersistError> {
        let document = Document {
            version: VERSION,
            job_uid: self.job_uid.clone(),
            saved: saved.clone(),
        };
        let bytes =
            serde_json::to_vec_pretty(&document).map_err(|e| self.error("encode")(io::Error::other(e)))?;
        let temporary = self.directory.join(format!("{MEMBERSHIP_FILE}.tmp"));
        let written = File::create(&temporary)
            .map_err(self.error("write"))
            .and_then(|mut file| {
                file.write_all(&bytes).map_err(self.error("write"))?;
                file.sync_all().map_err(self.error("flush"))?;
                std::fs::rename(&temporary, self.path()).map_err(self.error("rename"))
            });
        if written.is_err() {
            // The first error counts.
            let _ = std::fs::remove_file(&temporary);
        }
        written?;
        let directory = File::open(&self.directory).map_err(self.error("flush the directory of"))?;
        directory.sync_all().map_err(self.error("flush the directory of"))
    }

    /// Reads, changes and writes under the lock. A change that leaves all as it was is not written.
    fn update(
        &self,
        change: impl FnOnce(&mut Saved) -> Result<(), PersistError>,
    ) -> Result<(), PersistError> {
        let _lock = self.lock()?;
        let before = self.saved()?;
        let mut after = before.clone();
        change(&mut after)?;
        match after == before {
            true => Ok(()),
            false => self.write(&after),
        }
    }

    /// Runs `work` where waiting for the disk holds nobody up.
    async fn aside<T: Send + 'static>(
        &self,
        work: impl FnOnce(FilePersist) -> Result<T, PersistError> + Send + 'static,
    ) -> Result<T, PersistError> {
        let own = self.clone();
        tokio::task::spawn_blocking(move || work(own))
            .await
            .unwrap_or(Err(PersistError::Closing))
    }
}

impl Persist for FilePersist {
    async fn load(&mut self) -> Result<Saved, PersistError> {
        self.aside(|own| own.saved()).await
    }

    async fn form(&mut self, follows: Generation, formed: &Formed) -> Result<(), PersistError> {
        let formed = formed.clone();
        let change = move |own: FilePersist| {
            let place = own.place();
            own.update(|saved| {
                let found = saved.formed.as_ref().map_or(Generation::NONE, |f| f.generation);
                if found != follows {
                    let expected = follows;
                    return Err(PersistError::Conflict {
                        place,
                        expected,
                        found,
                    });
                }
                saved.formed = Some(formed);
                Ok(())
            })
        };
        self.aside(change).await
    }

    async fn latch(&mut self, ending: &Ending) -> Result<(), PersistError> {
        let ending = ending.clone();
        let change = |own: FilePersist| {
            own.update(|saved| {
                saved.ending.get_or_insert(ending);
                Ok(())
            })
        };
        self.aside(change).await
    }

    async fn save_restarts(&mut self, restarts: &Restarts) -> Result<(), PersistError> {
        let restarts = restarts.clone();
        let change = |own: FilePersist| {
            own.update(|saved| {
                saved.restarts = restarts;
                Ok(())
            })
        };
        self.aside(change).await
    }
}
