//! Answers whose reader has gone: `gradsync audit DIR | head` ends quietly.

use std::process::{Command, Stdio};

#[test]
fn a_closed_pipe_ends_a_command_without_a_word() {
    let place = tempfile::tempdir().unwrap();
    let manifest = place.path().join("job.yaml");
    std::fs::write(&manifest, "kind: TrainingJob\n").unwrap();
    let manifest = manifest.to_str().unwrap();
    for arguments in [
        vec!["validate", manifest],
        vec!["validate", "--output", "json", manifest],
    ] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = Command::new(env!("CARGO_BIN_EXE_gradsync"))
            .args(&arguments)
            .stdout(writer)
            .stderr(Stdio::piped())
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(141), "{arguments:?}: {text}");
        assert_eq!(text, "", "{arguments:?}");
    }
}

#[test]
fn no_command_writes_by_a_macro_that_panics() {
    let source = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut folders = vec![source];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let text = std::fs::read_to_string(&path).unwrap();
            for line in text.lines().filter(|line| !line.trim_start().starts_with("//")) {
                let panics = ["println!(", "print!("].iter().any(|word| line.contains(word));
                assert!(!panics, "{}: {line}", path.display());
            }
        }
    }
}
