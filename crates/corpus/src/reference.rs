//! The reference: an environment as rattler's own installer makes it, with the marker files that pixi 0.77 adds.
//!
//! The two formulas are written down here a second time, apart from the product, so that a test of one against the
//! other can find a mistake in either.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use rattler::install::{Installer, InstallerError};
use rattler_cache::package_cache::PackageCache;
use rattler_conda_types::{MatchSpec, ParseStrictness, PrefixRecord, RepoDataRecord};
use rattler_lock::{CondaBinaryData, LockFile, LockedPackage, UrlOrPath};
use serde::Serialize;
use tokio::{sync::Semaphore, task::JoinSet};
use url::Url;
use xxhash_rust::xxh3::Xxh3;

use crate::{Error, package::Built, runtime::block_on, workspace::VIRTUAL_PACKAGES};

/// The version of pixi whose marker files are written.
pub const PIXI_VERSION: &str = "0.77.0";

/// One environment of a lock file, on the lock file's row for this machine (or its only one).
#[derive(Debug, Clone)]
pub struct Environment {
    manifest: PathBuf,
    name: String,
    subdir: String,
    virtual_packages: Vec<String>,
    packages: Vec<(String, RepoDataRecord)>,
}

impl Environment {
    /// Reads the environment `name` from `pixi.lock` beside the manifest (absolute path).
    ///
    /// # Errors
    ///
    /// The lock file cannot be read, has no such environment, no linux-64 row, or packages that are not binary conda
    /// packages.
    pub fn read(manifest: &Path, name: &str) -> Result<Self, Error> {
        let folder = manifest.parent().unwrap_or(Path::new("/"));
        let lock_file = LockFile::from_path(&folder.join("pixi.lock"))?;
        let environment = lock_file
            .environment(name)
            .ok_or_else(|| Error::Locked(format!("the lock file has no environment {name}")))?;
        let platform = lock_file
            .platforms()
            .find(|platform| platform.subdir().as_str() == "linux-64")
            .ok_or_else(|| {
                Error::Locked("the lock file has no platform of the subdir linux-64".to_owned())
            })?;
        let packages = environment
            .packages(platform)
            .into_iter()
            .flatten()
            .map(|package| match package {
                LockedPackage::Conda(package) => {
                    let binary = package.as_binary();
                    let binary = binary.ok_or_else(|| {
                        Error::Locked(format!("{} is a source package", package.location()))
                    })?;
                    Ok((package.location().to_string(), record(binary, folder)?))
                }
                LockedPackage::Pypi(package) => Err(Error::Locked(format!(
                    "{} is a PyPI package",
                    package.location()
                ))),
            });
        let packages = packages.collect::<Result<_, Error>>()?;
        let virtual_packages = match platform.virtual_packages() {
            // A version 6 lock file has no rows: the manifest says `platforms = ["linux-64"]`.
            [] => VIRTUAL_PACKAGES.map(str::to_owned).to_vec(),
            row => row.to_vec(),
        };
        Ok(Self {
            manifest: manifest.to_owned(),
            name: name.to_owned(),
            subdir: platform.subdir().to_string(),
            virtual_packages,
            packages,
        })
    }

    /// The records, in the lock file's order.
    pub fn records(&self) -> impl Iterator<Item = &RepoDataRecord> {
        self.packages.iter().map(|(_, record)| record)
    }

    /// `environment_lock_file_hash` of `conda-meta/pixi`.
    pub fn lock_file_hash(&self) -> String {
        let mut hasher = Xxh3::new();
        let string = |hasher: &mut Xxh3, text: &str| {
            hasher.update(text.as_bytes());
            hasher.update(&[0xff]);
        };
        for (location, record) in &self.packages {
            string(&mut hasher, location);
            let record = &record.package_record;
            let digest: Option<&[u8]> = record
                .sha256
                .as_ref()
                .map(|hash| hash.as_slice())
                .or(record.md5.as_ref().map(|hash| hash.as_slice()));
            if let Some(digest) = digest {
                hasher.update(&(digest.len() as u64).to_le_bytes());
                hasher.update(digest);
            }
        }
        string(&mut hasher, &self.subdir);
        let mut virtual_packages = self.virtual_packages.clone();
        virtual_packages.sort();
        for package in &virtual_packages {
            string(&mut hasher, package);
        }
        format!("{:x}", hasher.digest())
    }

    /// `conda-meta/.pixi-environment-fingerprint`.
    pub fn fingerprint(&self) -> String {
        let mut packages: Vec<_> = self
            .records()
            .map(|record| &record.package_record)
            .collect();
        packages.sort_by(|a, b| a.name.as_normalized().cmp(b.name.as_normalized()));
        let mut hasher = Xxh3::new();
        for record in packages {
            hasher.update(record.name.as_normalized().as_bytes());
            hasher.update(&[0xff]);
            match &record.sha256 {
                Some(digest) => {
                    hasher.update(&(digest.len() as u64).to_le_bytes());
                    hasher.update(digest);
                }
                None => hasher.update(&[0]),
            }
        }
        format!("{:016x}", hasher.digest())
    }

    /// The text of `conda-meta/pixi`.
    ///
    /// # Errors
    ///
    /// A path that is not UTF-8.
    pub fn marker(&self) -> Result<String, Error> {
        let mut requirements: Vec<String> = self
            .records()
            .flat_map(|record| &record.package_record.depends)
            .filter(|dependency| dependency.starts_with("__"))
            .filter_map(|dependency| MatchSpec::from_str(dependency, ParseStrictness::Lenient).ok())
            .map(|specification| specification.to_string())
            .collect();
        requirements.sort();
        requirements.dedup();
        let marker = Marker {
            manifest_path: &self.manifest,
            environment_name: &self.name,
            pixi_version: PIXI_VERSION,
            environment_lock_file_hash: self.lock_file_hash(),
            resolved_platform: ResolvedPlatform {
                subdir: &self.subdir,
                virtual_packages: &self.virtual_packages,
            },
            minimum_supported_platform: MinimumPlatform {
                subdir: &self.subdir,
                requirements,
            },
        };
        Ok(serde_json::to_string_pretty(&marker)?)
    }

    /// Installs the environment with rattler as pixi does, then writes pixi's marker files. `prefix` is an absolute
    /// path without symlinks where nothing is installed, `package_cache` the folder that holds the extracted packages.
    ///
    /// # Errors
    ///
    /// A package is neither in the cache nor where the lock file says, or the installer fails.
    pub fn install(&self, prefix: &Path, package_cache: &Path) -> Result<(), Error> {
        // Where one package's file is another's directory the installer may lose a race with itself: it fails, or leaves
        // the winner in `__clobbers__` where its record does not have it. Such an installation is no reference.
        let mut races_left = 30;
        loop {
            let installed = self.install_once(prefix, package_cache);
            let raced = match &installed {
                Err(InstallerError::LinkError(..)) => true,
                Err(_) => false,
                Ok(()) => prefix.join("__clobbers__").exists() && !is_as_recorded(prefix)?,
            };
            if !raced || races_left == 0 {
                installed?;
                break;
            }
            races_left = usize::saturating_sub(races_left, if installed.is_err() { 10 } else { 1 });
            settle();
            fs_err::remove_dir_all(prefix)?;
        }

        let conda_meta = prefix.join("conda-meta");
        fs_err::write(
            conda_meta.join("history"),
            "// not relevant for pixi but for `conda run -p`",
        )?;
        fs_err::write(
            conda_meta.join("pixi_env_prefix"),
            conda_meta.to_string_lossy().as_bytes(),
        )?;
        fs_err::write(
            conda_meta.join(".pixi-environment-fingerprint"),
            self.fingerprint(),
        )?;
        fs_err::write(conda_meta.join("pixi"), self.marker()?)?;
        Ok(())
    }

    fn install_once(&self, prefix: &Path, package_cache: &Path) -> Result<(), InstallerError> {
        let installer = Installer::new()
            .with_package_cache(PackageCache::new(package_cache))
            .with_execute_link_scripts(false);
        block_on(installer.install(prefix, self.records().cloned())).map(|_| ())
    }
}

/// Waits for what a failed installation still links in rayon's pool: until all that was queued before is taken up, then
/// until every thread has finished what it has.
fn settle() {
    rayon::join(|| (), || ());
    rayon::broadcast(|_| ());
}

fn is_as_recorded(prefix: &Path) -> Result<bool, Error> {
    let records: Vec<PrefixRecord> = PrefixRecord::collect_from_prefix(prefix)?;
    let mut paths = records.iter().flat_map(|record| &record.paths_data.paths);
    Ok(paths.all(|entry| {
        let metadata = fs_err::symlink_metadata(prefix.join(&entry.relative_path));
        metadata.is_ok_and(|metadata| !metadata.is_dir())
    }))
}

/// Extracts archives into a package cache, where a record of any URL with their hashes finds them.
///
/// # Errors
///
/// An archive cannot be extracted.
pub fn fill_package_cache<'a>(
    package_cache: &Path,
    packages: impl IntoIterator<Item = &'a Built>,
) -> Result<(), Error> {
    // As many at once as there may be processors; every one decompresses on a thread of its own.
    let (cache, limit) = (
        PackageCache::new(package_cache),
        Arc::new(Semaphore::new(4)),
    );
    let packages: Vec<Built> = packages.into_iter().cloned().collect();
    block_on(async {
        let mut extractions = JoinSet::new();
        for built in packages {
            let (cache, limit) = (cache.clone(), limit.clone());
            extractions.spawn(async move {
                let _permit = limit.acquire().await;
                cache
                    .get_or_fetch_from_path(&built.path, Some(&built.record.package_record), None)
                    .await
                    .map(drop)
            });
        }
        while let Some(extracted) = extractions.join_next().await {
            extracted.map_err(std::io::Error::other)??;
        }
        Ok(())
    })
}

fn record(binary: &CondaBinaryData, folder: &Path) -> Result<RepoDataRecord, Error> {
    let url = match &binary.location {
        UrlOrPath::Url(url) => url.clone(),
        UrlOrPath::Path(path) => {
            let path = std::path::absolute(folder.join(path.as_str()))?;
            Url::from_file_path(&path)
                .map_err(|()| Error::Locked(format!("{} is no path", path.display())))?
        }
    };
    Ok(RepoDataRecord {
        package_record: binary.package_record.clone(),
        identifier: binary.file_name.clone(),
        url,
        channel: binary.channel.as_ref().map(ToString::to_string),
    })
}

#[derive(Serialize)]
struct Marker<'a> {
    manifest_path: &'a Path,
    environment_name: &'a str,
    pixi_version: &'a str,
    environment_lock_file_hash: String,
    resolved_platform: ResolvedPlatform<'a>,
    minimum_supported_platform: MinimumPlatform<'a>,
}

#[derive(Serialize)]
struct ResolvedPlatform<'a> {
    subdir: &'a str,
    virtual_packages: &'a [String],
}

#[derive(Serialize)]
struct MinimumPlatform<'a> {
    subdir: &'a str,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    requirements: Vec<String>,
}
