//! Every made environment is locked, installed, and the same as a second installation of it.

use std::path::Path;

use corpus::{
    compare::Snapshot,
    kinds::{self, Kind},
    package::Built,
    reference::{Environment, fill_package_cache},
    workspace::{Location, LockVersion, Workspace},
};

fn install(kind: &Kind, folder: &Path, version: LockVersion, location: &Location) -> Snapshot {
    let packages = kind.packages.iter().map(|package| {
        package
            .write(&folder.join("packages"), kind.format)
            .unwrap()
    });
    let packages: Vec<Built> = packages.collect();
    let cache = folder.join("cache");
    fill_package_cache(&cache, &packages).unwrap();

    let workspace = Workspace::new(&folder.join("workspace"))
        .unwrap()
        .lock_version(version);
    let workspace = workspace.environment("default", &packages, location);
    workspace.write().unwrap();
    let prefix = workspace.prefix("default");
    let environment = Environment::read(&workspace.manifest(), "default").unwrap();
    environment.install(&prefix, &cache).unwrap();
    let snapshot = Snapshot::take(&prefix).unwrap();
    fs_err::remove_dir_all(&prefix).unwrap();
    snapshot
}

#[test]
fn installs_the_same_twice() {
    let mut failures = Vec::new();
    for kind in kinds::all() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().canonicalize().unwrap();
        let first = install(&kind, &folder, LockVersion::V7, &Location::fictive());
        let second = install(&kind, &folder, LockVersion::V7, &Location::fictive());
        assert!(first.len() > 4, "{} installs nothing", kind.name);
        let lines = Snapshot::differences(&first, &second);
        failures.extend(
            lines
                .into_iter()
                .map(|line| format!("{}: {line}", kind.name)),
        );
    }
    assert!(failures.is_empty(), "{failures:#?}");
}
