//! Whose fault an error is: the one place that decides whether starting the process again can help.
//!
//! The user is to blame only for what would happen again: data that is missing or corrupt, parameters that a
//! task refuses, a state that does not fit, a directory that is not shared, a disk that is full, and a file that
//! is in the way. Whatever else the operating system or libtorch refuses (no memory, no descriptors, a network
//! file system that is away) may be over when a fresh process comes.

use super::{Fatal, FatalKind};
use crate::parameters::BuildError;
use crate::task::{DataError, ParameterError, TaskError};
use gradsync_formats::checkpoint::{CheckpointError, NonceError};
use gradsync_formats::store::StoreError;
use std::io::{self, ErrorKind};

/// An error that can say whose fault it is.
pub trait Blame: std::fmt::Display {
    /// Whether it would happen again.
    fn kind(&self) -> FatalKind;
}

/// What is to blame when the operating system refuses to read or write with `kind`.
#[must_use]
pub fn of_io(kind: ErrorKind) -> FatalKind {
    match kind {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge => FatalKind::User,
        // A file lies where a directory belongs, or the other way round: nothing but a user puts it there.
        ErrorKind::NotADirectory | ErrorKind::IsADirectory | ErrorKind::AlreadyExists => FatalKind::User,
        _ => FatalKind::Process,
    }
}

/// What is to blame when a file of the user's cannot be read.
fn of_input(kind: ErrorKind) -> FatalKind {
    match kind {
        ErrorKind::NotFound => FatalKind::User,
        other => of_io(other),
    }
}

impl Blame for io::Error {
    fn kind(&self) -> FatalKind {
        of_io(io::Error::kind(self))
    }
}

impl Blame for StoreError {
    fn kind(&self) -> FatalKind {
        match self {
            StoreError::Io { source, .. } => of_io(source.kind()),
            // What was there a moment ago: a volume that went away.
            StoreError::NotFound { .. } => FatalKind::Process,
            StoreError::BadKey { .. } => FatalKind::User,
        }
    }
}

impl Blame for CheckpointError {
    fn kind(&self) -> FatalKind {
        match self {
            CheckpointError::Store(error) => error.kind(),
            CheckpointError::Damaged(_)
            | CheckpointError::Mismatch { .. }
            | CheckpointError::Unsavable { .. }
            | CheckpointError::Conflict { .. }
            | CheckpointError::BadPath { .. } => FatalKind::User,
        }
    }
}

impl Blame for NonceError {
    fn kind(&self) -> FatalKind {
        match self {
            NonceError::NotShared { .. } => FatalKind::User,
            NonceError::Store(error) => error.kind(),
        }
    }
}

impl Blame for ParameterError {
    fn kind(&self) -> FatalKind {
        FatalKind::User
    }
}

impl Blame for DataError {
    fn kind(&self) -> FatalKind {
        match self {
            DataError::Read { source, .. } => of_input(source.kind()),
            DataError::Content { .. } | DataError::NoSuchSample { .. } => FatalKind::User,
            DataError::Torch(_) => FatalKind::Process,
        }
    }
}

impl Blame for BuildError {
    fn kind(&self) -> FatalKind {
        match self {
            BuildError::Torch { .. } => FatalKind::Process,
            BuildError::Duplicate { .. }
            | BuildError::Name { .. }
            | BuildError::Shape { .. }
            | BuildError::Finished { .. } => FatalKind::User,
        }
    }
}

impl Blame for TaskError {
    fn kind(&self) -> FatalKind {
        match self {
            TaskError::Torch(_) => FatalKind::Process,
            TaskError::Build(error) => error.kind(),
            TaskError::Data(error) => error.kind(),
            TaskError::Parameter(error) => error.kind(),
            TaskError::Other(_) => FatalKind::User,
        }
    }
}

impl Fatal {
    /// The end of this process by `error`, of the kind that it has.
    pub fn of(error: impl Blame) -> Fatal {
        Fatal {
            kind: error.kind(),
            message: error.to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::torch::TorchError;
    use gradsync_formats::checkpoint::{Damage, Mismatch};
    use gradsync_formats::identity::Position;

    /// As the operating system numbers them.
    const USERS: [i32; 6] = [
        libc::ENOSPC,
        libc::EDQUOT,
        libc::EFBIG,
        libc::ENOTDIR,
        libc::EISDIR,
        libc::EEXIST,
    ];
    const PLATFORMS: [i32; 11] = [
        libc::EIO,
        libc::ESTALE,
        libc::EMFILE,
        libc::ENFILE,
        libc::ENOMEM,
        libc::ETIMEDOUT,
        libc::EACCES,
        libc::EROFS,
        libc::EINTR,
        libc::ENXIO,
        libc::EREMOTEIO,
    ];

    fn os(number: i32) -> io::Error {
        io::Error::from_raw_os_error(number)
    }

    fn store(number: i32) -> StoreError {
        StoreError::Io {
            action: "read",
            path: "/x".into(),
            source: os(number),
        }
    }

    fn data(number: i32) -> DataError {
        DataError::Read {
            path: "/x".into(),
            source: os(number),
            hint: String::new(),
        }
    }

    /// The same number of the system in everything that carries it.
    fn everywhere(number: i32) -> Vec<FatalKind> {
        vec![
            Fatal::of(os(number)).kind,
            Fatal::of(store(number)).kind,
            Fatal::of(CheckpointError::Store(store(number))).kind,
            Fatal::of(NonceError::Store(store(number))).kind,
            Fatal::of(data(number)).kind,
            Fatal::of(TaskError::Data(data(number))).kind,
        ]
    }

    #[test]
    fn a_full_disk_and_a_file_in_the_way_are_the_users_and_everything_else_the_platforms() {
        for number in USERS {
            assert_eq!(everywhere(number), [FatalKind::User; 6], "{}", os(number));
        }
        for number in PLATFORMS {
            assert_eq!(everywhere(number), [FatalKind::Process; 6], "{}", os(number));
        }
    }

    #[test]
    fn a_file_that_is_not_there_is_the_users_only_where_it_is_input() {
        assert_eq!(Fatal::of(data(libc::ENOENT)).kind, FatalKind::User);
        assert_eq!(Fatal::of(store(libc::ENOENT)).kind, FatalKind::Process);
    }

    #[test]
    fn what_would_happen_again_is_the_users_and_what_libtorch_refuses_is_not() {
        let position = Position::INITIAL;
        let path = || "p".to_owned();
        let users: Vec<Box<dyn Blame>> = vec![
            Box::new(CheckpointError::Damaged(Damage::MissingPart { file: path() })),
            Box::new(CheckpointError::Mismatch {
                path: path(),
                mismatch: Mismatch::Layout { difference: path() },
            }),
            Box::new(CheckpointError::Unsavable {
                path: path(),
                problem: path(),
            }),
            Box::new(CheckpointError::Conflict {
                path: path(),
                position,
                there: path(),
                now: path(),
            }),
            Box::new(NonceError::NotShared {
                place: path(),
                sees: "does not see",
            }),
            Box::new(ParameterError::new("model", "unknown")),
            Box::new(DataError::Content {
                path: "p".into(),
                problem: path(),
            }),
            Box::new(DataError::NoSuchSample { index: 1, len: 1 }),
            Box::new(TaskError::other("no such thing")),
            Box::new(TaskError::Parameter(ParameterError::new("model", "unknown"))),
            Box::new(TaskError::Build(BuildError::Duplicate { name: path() })),
        ];
        for error in users {
            assert_eq!(error.kind(), FatalKind::User, "{error}");
        }
        let torch = || TorchError::new("CUDA out of memory");
        let platforms: Vec<Box<dyn Blame>> = vec![
            Box::new(TaskError::Torch(torch())),
            Box::new(TaskError::Data(DataError::Torch(torch()))),
            Box::new(DataError::Torch(torch())),
            Box::new(BuildError::Torch {
                name: path(),
                source: torch(),
            }),
        ];
        for error in platforms {
            assert_eq!(error.kind(), FatalKind::Process, "{error}");
        }
    }
}
