//! The files by which pixi knows an installed environment, against what pixi 0.77 wrote.

use std::fs;
use std::path::{Path, PathBuf};

use pixi_config::Surroundings;
use pixi_mount::marker::environment_files;
use pixi_mount::workspace::Workspace;
use pixi_mount::workspace::platform::{Host, VirtualPackage};
use rattler_conda_types::Subdir;
use rattler_fs::layout::lock_file;

/// The machine that the files come from.
struct Linux;

impl Host for Linux {
    fn subdir(&self) -> Option<Subdir> {
        Some(Subdir::Linux64)
    }

    fn virtual_packages(&self) -> Vec<VirtualPackage> {
        let packages = ["__unix=0=0", "__linux=6.18", "__glibc=2.36=0"];
        packages
            .iter()
            .filter_map(|text| VirtualPackage::parse(text))
            .collect()
    }
}

fn data() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/pixi-0.77")
}

/// The files of an environment of a workspace that was at `/home/user`.
fn files(workspace_name: &str, environment: &str) -> Vec<(String, Vec<u8>)> {
    let folder = data().join(workspace_name);
    let surroundings = Surroundings {
        variables: [("PIXI_NO_CONFIG".into(), "1".into())].into(),
        ..Surroundings::default()
    };
    let workspace = Workspace::find(Some(&folder), &surroundings).unwrap();
    assert_eq!(workspace.name, workspace_name);
    let lock_path = workspace.lock_file_path();
    let lock = lock_file::read(&lock_path).unwrap();
    let found = workspace.platform_of(environment, &lock, &Linux).unwrap();
    let locked = lock_file::select(&lock, &lock_path, environment, &found.row).unwrap();

    let root = Path::new("/home/user").join(workspace_name);
    let prefix = root.join(".pixi/envs").join(environment);
    environment_files(&root.join("pixi.toml"), &locked, &found, &prefix)
}

fn file<'a>(files: &'a [(String, Vec<u8>)], path: &str) -> &'a [u8] {
    let (_, bytes) = files.iter().find(|(name, _)| name == path).unwrap();
    bytes
}

#[test]
fn the_marker_and_the_fingerprint_of_every_environment_are_pixis() {
    let mut checked = 0;
    for workspace in fs::read_dir(data()).unwrap().map(Result::unwrap) {
        let workspace_name = workspace.file_name().into_string().unwrap();
        for written in fs::read_dir(workspace.path()).unwrap().map(Result::unwrap) {
            let name = written.file_name().into_string().unwrap();
            let Some(environment) = name.strip_suffix("-conda-meta-pixi.json") else {
                continue;
            };
            let files = files(&workspace_name, environment);
            let marker = fs::read_to_string(written.path()).unwrap();
            let ours = String::from_utf8_lossy(file(&files, "conda-meta/pixi"));
            assert_eq!(ours, marker, "{workspace_name}/{environment}");

            let fingerprint = workspace.path().join(format!("{environment}-fingerprint"));
            assert_eq!(
                file(&files, "conda-meta/.pixi-environment-fingerprint"),
                fs::read(fingerprint).unwrap(),
                "{workspace_name}/{environment}"
            );
            checked += 1;
        }
    }
    assert_eq!(checked, 6, "every environment of the data");
}

#[test]
fn the_other_files_are_pixis() {
    let files = files("ws", "default");
    for (ours, pixis) in [
        ("CACHEDIR.TAG", "CACHEDIR.TAG"),
        ("conda-meta/history", "history"),
        ("conda-meta/pixi_env_prefix", "pixi_env_prefix"),
    ] {
        let expected = fs::read(data().join("ws").join(pixis)).unwrap();
        assert_eq!(file(&files, ours), expected, "{ours}");
    }
}
