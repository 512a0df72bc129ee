//! gradsync.
fn main() {}
