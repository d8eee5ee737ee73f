//! `cargo xtask compare`: an installation and a mount at the same place, path by path.

use std::path::Path;

use corpus::{
    compare::Snapshot,
    kinds,
    package::Built,
    reference::{Environment, fill_package_cache},
    wheels::Size,
    workspace::{Location, Workspace},
};
use miette::{IntoDiagnostic, bail};

use crate::{interruption, mount, place};

/// How many differences are printed.
const SHOWN: usize = 100;

/// Compares a corpus.
pub(crate) fn corpus(size: Size) -> miette::Result<()> {
    let pixi_mount = place::pixi_mount()?;
    let corpus = place::make_corpus(size, &place::corpus_folder())?;
    interruption::watch()?;
    let (paths, lines) = compare(&pixi_mount, &corpus.manifest(), &corpus.cache())?;
    for line in lines.iter().take(SHOWN) {
        println!("{line}");
    }
    if !lines.is_empty() {
        bail!("{} differences in {paths} paths", lines.len());
    }
    println!("No difference in {paths} paths");
    Ok(())
}

/// Compares the environments that are made in code.
pub(crate) fn made() -> miette::Result<()> {
    let pixi_mount = place::pixi_mount()?;
    interruption::watch()?;
    let mut found = 0;
    for kind in kinds::all() {
        interruption::check()?;
        let folder = tempfile::tempdir().into_diagnostic()?;
        let root = fs_err::canonicalize(folder.path()).into_diagnostic()?;
        let packages = kind
            .packages
            .iter()
            .map(|package| package.write(&root.join("packages"), kind.format));
        let packages: Vec<Built> = packages.collect::<Result<_, _>>().into_diagnostic()?;
        let cache = root.join("cache");
        fill_package_cache(&cache.join("pkgs"), &packages).into_diagnostic()?;
        let workspace = Workspace::new(&root.join("workspace")).into_diagnostic()?;
        let workspace = workspace.environment("default", &packages, &Location::fictive());
        workspace.write().into_diagnostic()?;
        match compare(&pixi_mount, &workspace.manifest(), &cache) {
            Ok((paths, lines)) => {
                println!(
                    "{}: {} differences in {paths} paths",
                    kind.name,
                    lines.len()
                );
                lines
                    .iter()
                    .take(SHOWN)
                    .for_each(|line| println!("    {line}"));
                found += lines.len();
            }
            Err(error) => {
                println!("{}: {error}", kind.name);
                found += 1;
            }
        }
    }
    if found > 0 {
        bail!("{found} differences");
    }
    Ok(())
}

/// How many paths were compared, and what differs. The mount is where pixi has the environment; nothing stays there.
fn compare(
    pixi_mount: &Path,
    manifest: &Path,
    cache: &Path,
) -> miette::Result<(usize, Vec<String>)> {
    let environment = Environment::read(manifest, "default").into_diagnostic()?;
    let prefix = manifest.with_file_name(".pixi").join("envs/default");
    if prefix.exists() {
        fs_err::remove_dir_all(&prefix).into_diagnostic()?;
    }
    let installed = environment
        .install(&prefix, &cache.join("pkgs"))
        .and_then(|()| Snapshot::take(&prefix));
    fs_err::remove_dir_all(&prefix).into_diagnostic()?;
    let installed = installed.into_diagnostic()?;

    let state = tempfile::tempdir().into_diagnostic()?;
    let command = mount::pixi_mount(pixi_mount, manifest, &prefix, cache, state.path());
    let server = mount::Server::start(
        command,
        &prefix,
        "conda-meta/history",
        None,
        &state.path().join("output"),
    )?;
    let mounted = Snapshot::take(&prefix).into_diagnostic();
    server.stop()?;
    fs_err::remove_dir(&prefix).into_diagnostic()?;
    let mounted = mounted?;
    Ok((installed.len(), Snapshot::differences(&installed, &mounted)))
}
