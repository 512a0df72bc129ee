//! `docs/cli.md` is what the program says of itself.

use std::path::Path;

#[test]
fn the_reference_is_the_programs_own_help() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/cli.md");
    let now = gradsync::reference::markdown();
    if std::env::var_os("GRADSYNC_BLESS").is_some() {
        std::fs::write(&path, &now).unwrap();
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        committed == now,
        "docs/cli.md is not what the program says; write it anew with GRADSYNC_BLESS=1 cargo test -p gradsync --test reference"
    );
}
