//! The files by which pixi 0.77 takes an environment for an installed one that is up to date.

use std::path::Path;

use rattler_conda_types::{MatchSpec, ParseStrictness, RepoDataRecord};
use rattler_fs::layout::lock_file::{LockedEnvironment, LockedPackage};
use serde::Serialize;
use xxhash_rust::xxh3::Xxh3Default;

use crate::workspace::EnvironmentPlatform;

/// The version of pixi whose files these are.
pub const PIXI_VERSION: &str = "0.77.0";

const HISTORY: &str = "// not relevant for pixi but for `conda run -p`";

const CACHEDIR_TAG: &str = "Signature: 8a477f597d28d172789f06886806bc55
# This file is a cache directory tag created by rattler.
# For information about cache directory tags, see:
#\thttps://bford.info/cachedir/
";

/// `conda-meta/pixi`, in pixi's order of keys.
#[derive(Serialize)]
struct Marker<'a> {
    manifest_path: &'a Path,
    environment_name: &'a str,
    pixi_version: &'a str,
    environment_lock_file_hash: String,
    resolved_platform: ResolvedPlatform,
    minimum_supported_platform: MinimumPlatform,
}

#[derive(Serialize)]
struct ResolvedPlatform {
    subdir: String,
    virtual_packages: Vec<String>,
}

#[derive(Serialize)]
struct MinimumPlatform {
    subdir: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    requirements: Vec<String>,
}

/// The files that belong to an environment and to no package, by path relative to its prefix.
///
/// `found` has the platform that pixi picks from the manifest, which a version 6 lock file does not
/// have.
#[must_use]
pub fn environment_files(
    manifest_path: &Path,
    environment: &LockedEnvironment,
    found: &EnvironmentPlatform,
    prefix: &Path,
) -> Vec<(String, Vec<u8>)> {
    let platform = &found.platform;
    let virtual_packages: Vec<String> = platform
        .virtual_packages
        .iter()
        .map(ToString::to_string)
        .collect();
    let dependencies = (environment.packages.iter())
        .flat_map(|package| &package.record.package_record.depends)
        .map(String::as_str);
    let marker = Marker {
        manifest_path,
        environment_name: &environment.name,
        pixi_version: PIXI_VERSION,
        environment_lock_file_hash: if found.is_fulfilled {
            lock_hash(
                &environment.packages,
                platform.subdir.as_str(),
                &virtual_packages,
            )
        } else {
            // pixi looks for a platform that the machine fulfils, and then hashes nothing.
            format!("{:x}", Xxh3Default::new().digest())
        },
        minimum_supported_platform: MinimumPlatform {
            subdir: platform.subdir.to_string(),
            requirements: requirements(dependencies)
                .iter()
                .map(ToString::to_string)
                .collect(),
        },
        resolved_platform: ResolvedPlatform {
            subdir: platform.subdir.to_string(),
            virtual_packages,
        },
    };
    // Only a manifest path that is not UTF-8 could fail, and then pixi writes no marker either.
    let marker = serde_json::to_vec_pretty(&marker).ok();

    let conda_meta = prefix.join("conda-meta");
    let records = environment.packages.iter().map(|package| &package.record);
    let file = |path: &str, bytes: &[u8]| (path.to_string(), bytes.to_vec());
    let mut files = vec![
        file("CACHEDIR.TAG", CACHEDIR_TAG.as_bytes()),
        file("conda-meta/history", HISTORY.as_bytes()),
        file(
            "conda-meta/pixi_env_prefix",
            conda_meta.to_string_lossy().as_bytes(),
        ),
        file(
            "conda-meta/.pixi-environment-fingerprint",
            fingerprint(records).as_bytes(),
        ),
    ];
    files.extend(marker.map(|marker| ("conda-meta/pixi".to_string(), marker)));
    files
}

/// `environment_lock_file_hash`: a hash of the packages and the platform.
fn lock_hash(packages: &[LockedPackage], subdir: &str, virtual_packages: &[String]) -> String {
    let mut hash = Xxh3Default::new();
    for package in packages {
        let record = &package.record.package_record;
        update_text(&mut hash, &package.location);
        if let Some(sha256) = &record.sha256 {
            update_bytes(&mut hash, sha256);
        } else if let Some(md5) = &record.md5 {
            update_bytes(&mut hash, md5);
        }
    }
    update_text(&mut hash, subdir);
    let mut sorted: Vec<&String> = virtual_packages.iter().collect();
    sorted.sort();
    for virtual_package in sorted {
        update_text(&mut hash, virtual_package);
    }
    format!("{:x}", hash.digest())
}

/// `.pixi-environment-fingerprint`: a hash of the names and hashes of the packages.
fn fingerprint<'a>(records: impl Iterator<Item = &'a RepoDataRecord>) -> String {
    let mut records: Vec<_> = records
        .map(|record| &record.package_record)
        .map(|record| (record.name.as_normalized(), record.sha256.as_ref()))
        .collect();
    records.sort_by_key(|(name, _)| *name);
    let mut hash = Xxh3Default::new();
    for (name, sha256) in records {
        update_text(&mut hash, name);
        match sha256 {
            Some(sha256) => update_bytes(&mut hash, sha256),
            None => hash.update(&[0]),
        }
    }
    format!("{:016x}", hash.digest())
}

/// As `str` hashes itself.
fn update_text(hash: &mut Xxh3Default, text: &str) {
    hash.update(text.as_bytes());
    hash.update(&[0xff]);
}

/// As `[u8]` hashes itself on a little-endian machine of 64 bits.
fn update_bytes(hash: &mut Xxh3Default, bytes: &[u8]) {
    hash.update(&(bytes.len() as u64).to_le_bytes());
    hash.update(bytes);
}

/// What `dependencies` require of the machine: the specs of virtual packages among them, sorted.
///
/// One that cannot be parsed makes pixi see none at all.
#[must_use]
pub fn requirements<'a>(dependencies: impl Iterator<Item = &'a str>) -> Vec<MatchSpec> {
    let specs: Option<Vec<MatchSpec>> = dependencies
        .filter(|dependency| dependency.starts_with("__"))
        .map(|dependency| MatchSpec::from_str(dependency, ParseStrictness::Lenient).ok())
        .collect();
    let mut specs = specs.unwrap_or_default();
    specs.retain(|spec| spec.name.as_exact().is_some());
    specs.sort_by_cached_key(ToString::to_string);
    specs.dedup_by_key(|spec| spec.to_string());
    specs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requirements_are_sorted_and_said_once() {
        let dependencies = [
            "__glibc >=2.28",
            "python >=3.12",
            "__archspec 1 x86_64",
            "__glibc >=2.17",
            "__glibc >=2.28",
        ];
        let spelled = |dependencies: &[&str]| -> Vec<String> {
            let specs = requirements(dependencies.iter().copied());
            specs.iter().map(ToString::to_string).collect()
        };
        assert_eq!(
            spelled(&dependencies),
            ["__archspec ==1 x86_64", "__glibc >=2.17", "__glibc >=2.28"]
        );
        assert!(spelled(&["__glibc >=2.17", "__glibc >>=="]).is_empty());
    }
}
