//! The generated files in the repository are the ones that the code makes now. (A package with a test like this one
//! also has its program built by `cargo test`, which `scripts/drift` uses.)

use std::process::Command;

#[test]
fn the_committed_definition_is_what_the_types_make() {
    let output = Command::new(env!("CARGO_BIN_EXE_xtask"))
        .args(["crds", "--check"])
        .output()
        .expect("start xtask");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}
