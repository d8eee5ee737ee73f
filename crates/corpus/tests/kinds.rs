//! Every made environment can be locked and installed.

use std::path::Path;

use corpus::{
    compare::Snapshot,
    kinds::{self, Kind},
    package::Built,
    reference::{Environment, fill_package_cache},
    workspace::{Location, LockVersion, Workspace},
};

fn write(kind: &Kind, folder: &Path) -> Vec<Built> {
    let folder = folder.join("packages");
    let packages = kind.packages.iter();
    packages
        .map(|package| package.write(&folder, kind.format).unwrap())
        .collect()
}

fn folder() -> (tempfile::TempDir, std::path::PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().canonicalize().unwrap();
    (folder, path)
}

#[test]
fn two_installations_of_each_are_the_same() {
    let mut failures = Vec::new();
    for kind in kinds::all() {
        let (_guard, folder) = folder();
        let (packages, cache) = (write(&kind, &folder), folder.join("cache"));
        fill_package_cache(&cache, &packages).unwrap();
        let workspace = Workspace::new(&folder.join("workspace")).unwrap();
        let workspace = workspace.environment("default", &packages, &Location::fictive());
        workspace.write().unwrap();
        let environment = Environment::read(&workspace.manifest(), "default").unwrap();

        let prefix = workspace.prefix("default");
        let install = || {
            environment.install(&prefix, &cache).unwrap();
            let snapshot = Snapshot::take(&prefix).unwrap();
            fs_err::remove_dir_all(&prefix).unwrap();
            snapshot
        };
        let (first, second) = (install(), install());
        let lines = Snapshot::differences(&first, &second);
        failures.extend(
            lines
                .into_iter()
                .map(|line| format!("{}: {line}", kind.name)),
        );
    }
    assert!(failures.is_empty(), "{failures:#?}");
}

#[test]
fn every_way_to_lock_a_package_installs_it() {
    let kind = kinds::all()
        .into_iter()
        .find(|kind| kind.name == "noarch-python")
        .unwrap();
    let locations = [
        Location::FileUrl,
        Location::AbsolutePath,
        Location::RelativePath,
    ];
    for version in [LockVersion::V6, LockVersion::V7] {
        for location in &locations {
            let (_guard, folder) = folder();
            let packages = write(&kind, &folder);
            let workspace = Workspace::new(&folder.join("workspace"))
                .unwrap()
                .lock_version(version);
            let workspace = workspace.environment("default", &packages, location);
            workspace.write().unwrap();
            let environment = Environment::read(&workspace.manifest(), "default").unwrap();
            let prefix = workspace.prefix("default");
            environment.install(&prefix, &folder.join("cache")).unwrap();
            let greeting = fs_err::read_to_string(prefix.join("bin/greet")).unwrap();
            assert!(
                greeting.contains("greeter.cli"),
                "{version:?} {location:?}: {greeting}"
            );
        }
    }
}

#[test]
fn both_lock_file_versions_hold_the_same_records() {
    for kind in kinds::all() {
        let (_guard, folder) = folder();
        let packages = write(&kind, &folder);
        let records = [LockVersion::V6, LockVersion::V7].map(|version| {
            let workspace = Workspace::new(&folder.join(format!("{version:?}"))).unwrap();
            let workspace = workspace.lock_version(version);
            let workspace = workspace.environment("default", &packages, &Location::fictive());
            workspace.write().unwrap();
            let environment = Environment::read(&workspace.manifest(), "default").unwrap();
            let mut records: Vec<_> = environment.records().cloned().collect();
            records.sort();
            records
        });
        assert_eq!(records[0], records[1], "{}", kind.name);
    }
}
