//! Packages written straight into a folder, as hostile as a test wants them.

#![allow(dead_code, unreachable_pub)]

use std::{
    error::Error,
    path::{Path, PathBuf},
    sync::Arc,
};

use rattler_conda_types::{PackageRecord, RepoDataRecord, Subdir, package::DistArchiveIdentifier};
use rattler_fs::{
    PackageSupplier,
    layout::{LayoutOptions, fetch::CachedPackage},
};
use serde_json::json;

/// A record of this name; nothing else in it matters to a layout.
pub fn record(name: &str) -> RepoDataRecord {
    let identifier: DistArchiveIdentifier = format!("{name}-1.0-0.conda").parse().unwrap();
    let package_record: PackageRecord = serde_json::from_value(json!({
        "name": name, "version": "1.0", "build": "0", "build_number": 0, "subdir": "linux-64", "depends": [],
    }))
    .unwrap();
    RepoDataRecord {
        package_record,
        url: format!("https://channel.invalid/linux-64/{identifier}")
            .parse()
            .unwrap(),
        identifier,
        channel: None,
    }
}

/// A package in the folder `name` below `cache`, with this text as its `paths.json` and these files.
pub fn package(
    cache: &Path,
    name: &str,
    paths_json: &[u8],
    files: &[(&str, &[u8])],
) -> CachedPackage {
    let dir = cache.join(name);
    let info = dir.join("info");
    std::fs::create_dir_all(&info).unwrap();
    let index = json!({
        "name": name, "version": "1.0", "build": "0", "build_number": 0, "subdir": "linux-64", "depends": [],
    });
    std::fs::write(info.join("index.json"), index.to_string()).unwrap();
    std::fs::write(info.join("about.json"), "{}").unwrap();
    std::fs::write(info.join("paths.json"), paths_json).unwrap();
    for (path, bytes) in files {
        let path = dir.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, bytes).unwrap();
    }
    CachedPackage {
        record: record(name),
        dir,
    }
}

/// A `paths.json` of these entries.
pub fn paths_json(entries: &serde_json::Value) -> Vec<u8> {
    json!({ "paths": entries, "paths_version": 1 })
        .to_string()
        .into_bytes()
}

/// A layout at `/the/prefix`.
pub fn options() -> LayoutOptions {
    LayoutOptions {
        prefix: PathBuf::from("/the/prefix"),
        platform: Subdir::Linux64,
        extra_files: Vec::new(),
    }
}

/// A supplier that has nothing.
pub struct NoSupplier;

impl PackageSupplier for NoSupplier {
    fn supply(&self, _: &RepoDataRecord) -> Result<PathBuf, Box<dyn Error + Send + Sync>> {
        Err("there is none".into())
    }
}

/// [`NoSupplier`], ready for use.
pub fn no_supplier() -> Arc<dyn PackageSupplier> {
    Arc::new(NoSupplier)
}
