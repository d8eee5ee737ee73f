//! Arbitrary bytes as a lock file: each environment on each platform gives packages or an error, and those a layout or an
//! error.
#![no_main]

use std::{fs, path::PathBuf, sync::LazyLock};

use libfuzzer_sys::fuzz_target;
use rattler_conda_types::Subdir;
use rattler_fs::layout::{self, LayoutOptions, fetch::CachedPackage, lock_file};
use tempfile::TempDir;

static FOLDER: LazyLock<TempDir> = LazyLock::new(|| tempfile::tempdir().expect("a temporary folder"));

fuzz_target!(|data: &[u8]| {
    let path = FOLDER.path().join("pixi.lock");
    fs::write(&path, data).expect("the lock file is written");
    let Ok(lock) = lock_file::read(&path) else {
        return;
    };
    let environments: Vec<String> = lock.environments().map(|(name, _)| name.to_owned()).collect();
    let platforms: Vec<String> = lock.platforms().map(|platform| platform.name().to_string()).collect();
    for environment in environments.iter().map(String::as_str).chain(["default"]) {
        for platform in platforms.iter().map(String::as_str).chain(["linux-64"]) {
            let Ok(selected) = lock_file::select(&lock, &path, environment, platform) else {
                continue;
            };
            let packages = selected.packages.into_iter().map(|package| CachedPackage {
                record: package.record,
                dir: FOLDER.path().join("no such package"),
            });
            let options = LayoutOptions {
                prefix: PathBuf::from("/a/prefix"),
                platform: Subdir::Linux64,
                extra_files: Vec::new(),
            };
            let _ = layout::build(packages.collect(), &options);
        }
    }
});
