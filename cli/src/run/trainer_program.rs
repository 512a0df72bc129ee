//! Which program the workers are: given, beside our own executable, or on the search path.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// File name of the trainer that comes with gradsync.
pub const TRAINER_NAME: &str = "gradsync-trainer";

/// Finds the trainer: `given` (`--trainer`), else beside `own` (this executable), else on `search_path`
/// (the variable PATH).
///
/// # Errors
/// When the given one does not exist, or none is found: what was searched and how to get one.
pub fn find(
    given: Option<&Path>,
    own: Option<&Path>,
    search_path: Option<&OsStr>,
) -> Result<PathBuf, String> {
    if let Some(given) = given {
        let absolute = std::path::absolute(given).unwrap_or_else(|_| given.to_owned());
        return if is_program(&absolute) {
            Ok(absolute)
        } else {
            Err(format!("--trainer {}: no such executable file", given.display()))
        };
    }
    let beside = own
        .and_then(Path::parent)
        .map(|directory| directory.join(TRAINER_NAME));
    let searched = search_path
        .into_iter()
        .flat_map(std::env::split_paths)
        .map(|directory| directory.join(TRAINER_NAME));
    beside
        .iter()
        .cloned()
        .chain(searched)
        .find(|candidate| is_program(candidate))
        .ok_or_else(|| {
            format!(
                "find {TRAINER_NAME}: it is neither beside gradsync{} nor in PATH; build it with `cargo build --release -p gradsync-trainer` (README: libtorch first) or name one with --trainer",
                beside.and_then(|p| p.parent().map(|d| format!(" ({})", d.display()))).unwrap_or_default()
            )
        })
}

fn is_program(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt as _;
    path.metadata()
        .is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::OpenOptionsExt as _;

    fn program(path: &Path) {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o755)
            .open(path)
            .unwrap();
    }

    #[test]
    fn the_given_one_wins_then_the_neighbour_then_the_path() {
        let place = tempfile::tempdir().unwrap();
        let at = |d: &str| place.path().join(d).join(TRAINER_NAME);
        for d in ["given", "bin", "path"] {
            program(&at(d));
        }
        let own = place.path().join("bin/gradsync");
        let path = place.path().join("path");
        let find = |given: Option<&Path>, own: &Path| find(given, Some(own), Some(path.as_os_str()));
        assert_eq!(find(Some(&at("given")), &own).unwrap(), at("given"));
        assert_eq!(find(None, &own).unwrap(), at("bin"));
        assert_eq!(
            find(None, &place.path().join("elsewhere/gradsync")).unwrap(),
            at("path")
        );
    }

    #[test]
    fn a_missing_trainer_says_how_to_build_one() {
        let place = tempfile::tempdir().unwrap();
        let error = find(None, Some(&place.path().join("gradsync")), None).unwrap_err();
        assert!(
            error.contains("cargo build") && error.contains("--trainer"),
            "{error}"
        );
        let error = find(Some(&place.path().join("nothing")), None, None).unwrap_err();
        assert!(error.contains("nothing"), "{error}");
    }
}
