//! gradsync.
