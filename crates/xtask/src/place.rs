//! Where things are: the target folder, the corpus, the binaries.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use corpus::wheels::{Corpus, Size, make};
use miette::{Context, IntoDiagnostic, bail};

/// The folder of release binaries, this one's.
fn binaries() -> PathBuf {
    let own = std::env::current_exe().expect("the path of a running program is known");
    own.parent().expect("a program is in a folder").to_owned()
}

/// The repository.
fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Where corpora are, and stay, between tasks.
pub(crate) fn corpus_folder() -> PathBuf {
    match std::env::var_os("PIXI_MOUNT_CORPUS") {
        Some(folder) => PathBuf::from(folder),
        None => binaries().join("../corpus"),
    }
}

/// Makes a corpus, saying so on stderr.
pub(crate) fn make_corpus(size: Size, folder: &Path) -> miette::Result<Corpus> {
    fs_err::create_dir_all(folder).into_diagnostic()?;
    let folder = fs_err::canonicalize(folder).into_diagnostic()?;
    make(size, &folder, &|line| eprintln!("{line} …"))
        .into_diagnostic()
        .context("the corpus cannot be made")
}

/// Builds `pixi-mount` and gives its path.
pub(crate) fn pixi_mount() -> miette::Result<PathBuf> {
    cargo(&repository(), &["--bin", "pixi-mount"])?;
    Ok(binaries().join("pixi-mount"))
}

/// Builds the driver of rattler_vfs and gives its path.
pub(crate) fn rattler_vfs() -> miette::Result<PathBuf> {
    let workspace = repository().join("bench/rattler_vfs");
    let workspace = fs_err::canonicalize(workspace).into_diagnostic()?;
    let target = workspace.join("target");
    let target_argument = target.to_string_lossy().into_owned();
    cargo(&workspace, &["--locked", "--target-dir", &target_argument])?;
    Ok(target.join("release/peer_rattler_vfs"))
}

fn cargo(folder: &Path, arguments: &[&str]) -> miette::Result<()> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut build = Command::new(cargo);
    build
        .args(["build", "--release", "--quiet"])
        .args(arguments)
        .current_dir(folder);
    let status = build
        .status()
        .into_diagnostic()
        .context("cargo does not run")?;
    if !status.success() {
        bail!("cargo build {} failed", arguments.join(" "));
    }
    Ok(())
}
