//! A file system that refuses to take a whole file: the real one, under a limit on the size of files.

use gradsync_formats::store::{DirectoryStore, Store, StoreError};
use std::process::Command;

const DIRECTORY: &str = "GRADSYNC_TEST_LIMITED_DIRECTORY";

/// Runs only as the limited child of the test below; by itself it has nothing to show.
#[test]
fn child_with_a_limit_on_file_size() {
    let Ok(directory) = std::env::var(DIRECTORY) else {
        return;
    };
    let store = DirectoryStore::new(directory);
    let error = store.put("u/big", &vec![7; 1 << 20]).unwrap_err();
    assert!(matches!(error, StoreError::Io { action: "write", .. }), "{error}");
    let text = error.to_string();
    assert!(text.contains("u/big") && text.contains("ulimit -f"), "{text}");
    store.put("u/small", b"fits").unwrap();
}

#[test]
fn a_file_that_does_not_fit_leaves_nothing_half_written() {
    let dir = tempfile::tempdir().unwrap();
    // Ignored signals and limits are inherited; the library itself touches neither.
    let status = Command::new("sh")
        .args([
            "-c",
            r#"trap '' XFSZ; ulimit -f 64; exec "$0" --exact child_with_a_limit_on_file_size"#,
        ])
        .arg(std::env::current_exe().unwrap())
        .env(DIRECTORY, dir.path())
        .status()
        .unwrap();
    assert!(status.success());
    let files: Vec<String> = std::fs::read_dir(dir.path().join("u"))
        .unwrap()
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .collect();
    assert_eq!(files, ["small"], "no leftover, and the child did run");
}
