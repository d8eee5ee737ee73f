//! A mount is what rattler's installer makes at the same place, path by path.
//!
//! `PIXI_MOUNT_TEST_PACKAGES` names a folder of conda archives that are compared too, each on its own and in groups whose
//! names begin alike (packages made to clobber one another).

mod support;

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use corpus::{compare::Snapshot, package::Built, reference::Environment};
use rustix::process::Signal;
use support::{Sandbox, fuse_or_skip};

/// Installs, looks, removes, mounts at the same place, looks again.
fn installed_and_mounted(sandbox: &Sandbox, environment: &Environment) -> (Snapshot, Snapshot) {
    let prefix = sandbox.prefix();
    environment
        .install(&prefix, &sandbox.package_cache())
        .unwrap();
    let installed = Snapshot::take(&prefix).unwrap();
    fs::remove_dir_all(&prefix).unwrap();
    let mounted = sandbox.mount();
    let snapshot = Snapshot::take(&prefix).unwrap();
    let (code, said) = mounted.stop(Signal::INT);
    assert_eq!(code, Some(0), "{said}");
    (installed, snapshot)
}

fn differences(packages: &[Built], sandbox: &Sandbox) -> Vec<String> {
    let environment = sandbox.lock(packages);
    let (installed, mounted) = installed_and_mounted(sandbox, &environment);
    assert!(
        installed.len() > 5,
        "an installation has more than its marker files"
    );
    Snapshot::differences(&installed, &mounted)
}

#[test]
fn every_kind_of_package() {
    if !fuse_or_skip(1) {
        return;
    }
    let mut failures = Vec::new();
    for kind in corpus::kinds::all() {
        let sandbox = Sandbox::new();
        let lines = differences(&sandbox.archives(&kind), &sandbox);
        failures.extend(
            lines
                .into_iter()
                .map(|line| format!("{}: {line}", kind.name)),
        );
    }
    assert!(failures.is_empty(), "{failures:#?}");
}

#[test]
fn packages_of_the_user() {
    let Some(folder) = std::env::var_os("PIXI_MOUNT_TEST_PACKAGES").map(PathBuf::from) else {
        eprintln!("PIXI_MOUNT_TEST_PACKAGES names no folder: 1 test skipped");
        return;
    };
    if !fuse_or_skip(1) {
        return;
    }
    let mut archives: Vec<PathBuf> = fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| {
            path.to_string_lossy().ends_with(".conda")
                || path.to_string_lossy().ends_with(".tar.bz2")
        })
        .collect();
    archives.sort();
    assert!(!archives.is_empty(), "{} has no archives", folder.display());
    let packages: Vec<Built> = archives
        .iter()
        .map(|path| Built::open(path).unwrap())
        .collect();
    let mut sets: BTreeMap<String, Vec<Built>> = BTreeMap::new();
    for built in &packages {
        let name = built.record.package_record.name.as_normalized();
        let family = name
            .trim_end_matches(|last: char| last.is_ascii_digit())
            .trim_end_matches("-a")
            .trim_end_matches("-b");
        sets.entry(format!("only {name}"))
            .or_default()
            .push(built.clone());
        sets.entry(format!("all {family}"))
            .or_default()
            .push(built.clone());
    }
    let mut failures = Vec::new();
    for (set, mut members) in sets {
        let needs_python = members
            .iter()
            .any(|built| built.record.package_record.noarch.is_python());
        let sandbox = Sandbox::new();
        if needs_python && !members.iter().any(is_python) {
            let folder = sandbox.folder.join("archives");
            fs::create_dir_all(&folder).unwrap();
            members.push(
                corpus::kinds::python()
                    .write(&folder, corpus::package::Format::Conda)
                    .unwrap(),
            );
        }
        failures.extend(
            differences(&members, &sandbox)
                .into_iter()
                .map(|line| format!("{set}: {line}")),
        );
    }
    assert!(failures.is_empty(), "{failures:#?}");
}

fn is_python(built: &Built) -> bool {
    built.record.package_record.name.as_normalized() == "python"
}

/// Dates a file.
fn date(path: &Path, modified: SystemTime) {
    let file = fs::File::options().write(true).open(path).unwrap();
    file.set_modified(modified).unwrap();
}

#[test]
fn one_changed_byte_mode_or_date_is_a_difference() {
    if !fuse_or_skip(1) {
        return;
    }
    type Change = fn(&Path);
    let changes: [(&str, Change); 3] = [
        ("byte", |path| {
            let dated = fs::metadata(path).unwrap().modified().unwrap();
            let mut bytes = fs::read(path).unwrap();
            bytes[0] ^= 1;
            // Not in place: the installation is hard links into the cache.
            fs::remove_file(path).unwrap();
            fs::write(path, bytes).unwrap();
            date(path, dated);
        }),
        ("mode", |path| {
            let (bytes, dated) = (
                fs::read(path).unwrap(),
                fs::metadata(path).unwrap().modified().unwrap(),
            );
            fs::remove_file(path).unwrap();
            fs::write(path, bytes).unwrap();
            fs::set_permissions(path, fs::Permissions::from_mode(0o640)).unwrap();
            date(path, dated);
        }),
        ("date", |path| {
            let (bytes, mode) = (
                fs::read(path).unwrap(),
                fs::metadata(path).unwrap().permissions(),
            );
            fs::remove_file(path).unwrap();
            fs::write(path, bytes).unwrap();
            fs::set_permissions(path, mode).unwrap();
            let other = UNIX_EPOCH + Duration::from_secs(1_234_567_890);
            date(path, other);
        }),
    ];
    for (what, change) in changes {
        let sandbox = Sandbox::new();
        let kind = corpus::kinds::all()
            .into_iter()
            .find(|kind| kind.name == "plain")
            .unwrap();
        let environment = sandbox.lock(&sandbox.archives(&kind));
        let prefix = sandbox.prefix();
        environment
            .install(&prefix, &sandbox.package_cache())
            .unwrap();
        change(&prefix.join("share/plain/data.bin"));
        let installed = Snapshot::take(&prefix).unwrap();
        fs::remove_dir_all(&prefix).unwrap();
        let mounted = sandbox.mount();
        let snapshot = Snapshot::take(&prefix).unwrap();
        mounted.stop(Signal::INT);
        let lines = Snapshot::differences(&installed, &snapshot);
        assert_eq!(lines.len(), 1, "{what}: {lines:?}");
        assert!(
            lines[0].starts_with("share/plain/data.bin: "),
            "{what}: {lines:?}"
        );
        assert_eq!(
            Snapshot::differences(&snapshot, &installed).len(),
            1,
            "{what}, the other way round"
        );
    }
}
