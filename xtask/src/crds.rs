//! `cargo xtask crds`: writes the CustomResourceDefinition that the API types make, or says that the file in the
//! repository is another one.

use anyhow::{Context as _, bail};
use std::path::Path;

/// Arguments of `cargo xtask crds`.
#[derive(Debug, clap::Args)]
pub(crate) struct CrdsArgs {
    /// Write nothing; exit with 1 if the file differs from what the types make.
    #[arg(long)]
    check: bool,
}

const HEADER: &str = "# Made by `cargo xtask crds` from the types in crds/src: edit those.\n";

/// The file's text.
pub(crate) fn render() -> anyhow::Result<String> {
    let yaml = serde_saphyr::to_string(&gradsync_crds::crd()).context("write the definition as YAML")?;
    Ok(format!("{HEADER}{yaml}"))
}

/// Writes or checks `crds/trainingjobs.gradsync.dev.yaml`.
pub(crate) fn run(root: &Path, args: &CrdsArgs) -> anyhow::Result<()> {
    let path = root.join("crds").join(gradsync_crds::FILE_NAME);
    let made = render()?;
    let there = match std::fs::read_to_string(&path) {
        Ok(text) => Some(text),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
        Err(error) => return Err(error).with_context(|| format!("read {}", path.display())),
    };
    if there.as_deref() == Some(made.as_str()) {
        println!("{}: up to date", path.display());
        return Ok(());
    }
    if args.check {
        bail!(
            "{} differs from what the types in crds/src make: run `cargo xtask crds` and commit",
            path.display()
        );
    }
    std::fs::write(&path, made).with_context(|| format!("write {}", path.display()))?;
    println!("{}: written", path.display());
    Ok(())
}
