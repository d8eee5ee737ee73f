//! Where the bytes of packages are: rattler's package cache, filled where something is missing.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures::{StreamExt, TryStreamExt, stream};
use rattler_cache::package_cache::{
    CacheGlobalLock, CacheKey, CacheMetadata, CacheReporter, PackageCache, PackageCacheError,
};
use rattler_cache::validation::{ValidationMode, validate_package_directory_from_paths};
use rattler_conda_types::RepoDataRecord;
use rattler_conda_types::package::{DistArchiveType, PathType, PathsJson};
use rattler_conda_types::utils::ensure_safe_path_component;
use rattler_digest::Sha256Hash;
use rattler_networking::LazyClient;
use rattler_networking::retry_policies::default_retry_policy;
use rattler_package_streaming::{ExtractError, ExtractResult};
use tokio::sync::Semaphore;

/// Cache entries that are looked at concurrently.
const CONCURRENT_LOOKUPS: usize = 32;

/// A package that lies extracted in the package cache.
#[derive(Debug, Clone)]
pub struct CachedPackage {
    /// The record of the lock file.
    pub record: RepoDataRecord,
    /// The folder that the package is extracted to.
    pub dir: PathBuf,
}

/// Is told of the packages that have to be fetched.
pub trait FetchReporter: Send + Sync {
    /// These packages are missing and are about to be fetched.
    fn on_missing(&self, records: &[&RepoDataRecord]);

    /// Gives what is told of the progress of one package.
    fn on_package(&self, record: &RepoDataRecord) -> Option<Arc<dyn CacheReporter>>;

    /// Everything is there, or an error ended the attempt.
    fn on_finished(&self);
}

/// Why a package could not be brought into the cache.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// The package is neither in the cache nor where it comes from.
    #[error("the package `{package}` is not in the package cache, and its file is gone: {}", path.display())]
    Gone {
        /// The package's file name.
        package: String,
        /// Where the lock file says it is.
        path: PathBuf,
    },

    /// The package could not be downloaded or extracted.
    #[error("cannot fetch the package `{package}`: {reason}")]
    Fetch {
        /// The package's file name.
        package: String,
        /// The innermost cause in words.
        reason: String,
        /// What the cache said.
        source: PackageCacheError,
    },

    /// The package cache itself cannot be used.
    #[error("cannot use the package cache {}", path.display())]
    Cache {
        /// The cache's folder.
        path: PathBuf,
        /// What the cache said.
        source: PackageCacheError,
    },

    /// The record has no hash, so nothing could tell the package from another of its name.
    #[error(
        "the package `{package}` has neither a sha256 nor an md5 in the lock file to fetch it by"
    )]
    NoHash {
        /// The package's file name.
        package: String,
    },
}

/// Finds packages in the cache and fetches those that are missing.
///
/// Clones share everything.
#[derive(Clone)]
pub struct PackageFetcher {
    cache_dir: PathBuf,
    client: LazyClient,
    downloads: Arc<Semaphore>,
    reporter: Option<Arc<dyn FetchReporter>>,
}

impl std::fmt::Debug for PackageFetcher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PackageFetcher")
            .field("cache_dir", &self.cache_dir)
            .finish_non_exhaustive()
    }
}

impl PackageFetcher {
    /// A fetcher over the package cache (`pkgs`) at `cache_dir` that downloads with `client`, which
    /// is not built before it is needed, at most `concurrent_downloads` packages at a time.
    pub fn new(cache_dir: PathBuf, client: LazyClient, concurrent_downloads: usize) -> Self {
        Self {
            cache_dir,
            client,
            downloads: Arc::new(Semaphore::new(concurrent_downloads.max(1))),
            reporter: None,
        }
    }

    /// Reports progress to `reporter`.
    #[must_use]
    pub fn with_reporter(mut self, reporter: Arc<dyn FetchReporter>) -> Self {
        self.reporter = Some(reporter);
        self
    }

    /// Brings all packages into the cache; the answer is in the order of `records`.
    ///
    /// What is there is believed by its recorded hash and readable metadata. Nothing is written
    /// and no lock taken where nothing is missing, so a cache that is read-only will do.
    ///
    /// # Errors
    ///
    /// The first package that cannot be had.
    pub async fn fetch_all(
        &self,
        records: &[RepoDataRecord],
    ) -> Result<Vec<CachedPackage>, FetchError> {
        let cache = PackageCache::new(&self.cache_dir);
        let mut found: Vec<Option<CachedPackage>> = stream::iter(records)
            .map(|record| lookup(&cache, record))
            .buffered(CONCURRENT_LOOKUPS)
            .collect()
            .await;

        let missing: Vec<usize> = (0..records.len()).filter(|&i| found[i].is_none()).collect();
        if !missing.is_empty() {
            for &i in &missing {
                ensure_source(&records[i])?;
            }
            let missing_records: Vec<_> = missing.iter().map(|&i| &records[i]).collect();
            if let Some(reporter) = &self.reporter {
                reporter.on_missing(&missing_records);
            }
            let fetched = self.fetch_missing(&cache, &missing_records).await;
            if let Some(reporter) = &self.reporter {
                reporter.on_finished();
            }
            for (i, package) in missing.into_iter().zip(fetched?) {
                found[i] = Some(package);
            }
        }
        Ok(found.into_iter().flatten().collect())
    }

    /// Which of `records` the cache has no longer recorded as its own. Asked after their folders were opened, it tells of
    /// those that another program replaced in between: it takes the record away before it touches a folder.
    #[must_use]
    pub fn replaced(&self, records: &[RepoDataRecord]) -> Vec<usize> {
        let is_replaced = |record: &RepoDataRecord| {
            record.package_record.sha256.is_some()
                && !is_wheel(record)
                && recorded_entry(&self.cache_dir, record).is_none()
        };
        (0..records.len())
            .filter(|&number| is_replaced(&records[number]))
            .collect()
    }

    async fn fetch_missing(
        &self,
        cache: &PackageCache,
        records: &[&RepoDataRecord],
    ) -> Result<Vec<CachedPackage>, FetchError> {
        // Somebody else may have fetched what we miss by the time we have the lock: the cache looks
        // again by itself.
        let _lock = self.lock(cache).await?;
        stream::iter(records.iter().copied())
            .map(|record| async move {
                let reporter = (self.reporter.as_ref()).and_then(|r| r.on_package(record));
                let metadata = self.get_or_fetch(cache, record, reporter).await;
                metadata
                    .map(|metadata| cached(record, &metadata))
                    .map_err(|source| fetch_error(record, source))
            })
            // The downloads are limited by the semaphore.
            .buffered(records.len().max(1))
            .try_collect()
            .await
    }

    /// Takes the lock that everybody who writes to the cache holds.
    async fn lock(&self, cache: &PackageCache) -> Result<CacheGlobalLock, FetchError> {
        cache
            .acquire_global_lock()
            .await
            .map_err(|source| FetchError::Cache {
                path: self.cache_dir.clone(),
                source,
            })
    }

    async fn get_or_fetch(
        &self,
        cache: &PackageCache,
        record: &RepoDataRecord,
        reporter: Option<Arc<dyn CacheReporter>>,
    ) -> Result<CacheMetadata, PackageCacheError> {
        let package = &record.package_record;
        if let Some(path) = local_path(record) {
            return cache
                .get_or_fetch_from_path(&path, Some(package), reporter)
                .await;
        }
        let (url, client) = (record.url.clone(), self.client.clone());
        let (retry, downloads) = (default_retry_policy(), Some(self.downloads.clone()));
        if is_wheel(record) {
            cache
                .get_or_fetch_wheel_from_url_with_retry(
                    package, url, client, retry, reporter, downloads,
                )
                .await
        } else {
            cache
                .get_or_fetch_from_url_with_retry(package, url, client, retry, reporter, downloads)
                .await
        }
    }

    /// Makes sure that the cache holds exactly the package of `record`, for a package that turned
    /// out to be damaged, replaced or gone.
    ///
    /// The entry is kept if its recorded archive hash is the record's and every file has the size
    /// and hash that `paths.json` gives it. Otherwise the package is extracted again from where it
    /// comes from, and replaces the entry only once it is there and its hash is right.
    ///
    /// # Errors
    ///
    /// [`FetchError::NoHash`] where the record carries no hash; otherwise as [`Self::fetch_all`].
    pub async fn refetch(&self, record: &RepoDataRecord) -> Result<CachedPackage, FetchError> {
        let hashes = &record.package_record;
        if hashes.sha256.is_none() && hashes.md5.is_none() {
            return Err(FetchError::NoHash {
                package: record.identifier.to_string(),
            });
        }

        let cache = PackageCache::new(&self.cache_dir);
        // A cache entry does not know the md5 of its archive.
        if hashes.sha256.is_some()
            && let Some(metadata) = validated_entry(&cache, record).await
            && let Some(paths) = metadata.paths_json().cloned()
            && let Some(package) = verified(cached(record, &metadata), paths).await
        {
            return Ok(package);
        }

        ensure_source(record)?;
        let _lock = self.lock(&cache).await?;
        // No entry can have this hash, so whatever is there is taken for another package's.
        let key = cache_key(record).with_sha256(Sha256Hash::default());
        let (client, owned) = (self.client.clone(), record.clone());
        let extract_again = move |destination| extract(client.clone(), owned.clone(), destination);
        let metadata = cache
            .get_or_fetch(key, extract_again, None)
            .await
            .map_err(|source| fetch_error(record, source))?;
        Ok(cached(record, &metadata))
    }
}

/// The entry of `record`, if the cache has one. By its recorded hash where that is possible: the layout
/// reads the package's metadata anyway, and says when it is damaged.
async fn lookup(cache: &PackageCache, record: &RepoDataRecord) -> Option<CachedPackage> {
    for layer in cache.layers() {
        if let Some(dir) = recorded_entry(layer.path(), record) {
            return Some(CachedPackage {
                record: record.clone(),
                dir,
            });
        }
    }
    validated_entry(cache, record)
        .await
        .map(|metadata| cached(record, &metadata))
}

/// The folder of the conda package in a layer of the cache, if the cache recorded the record's hash for
/// it: beside the folder, after a revision of eight bytes (see `rattler_cache`'s `cache_lock`).
fn recorded_entry(layer: &Path, record: &RepoDataRecord) -> Option<PathBuf> {
    const REVISION: usize = 8;
    let package = &record.package_record;
    let sha256 = package.sha256.filter(|_| !is_wheel(record))?;
    let name = format!(
        "{}-{}-{}",
        package.name.as_normalized(),
        package.version,
        package.build
    );
    ensure_safe_path_component(&name).ok()?;
    let recorded = std::fs::read(layer.join(format!("{name}.lock"))).ok()?;
    let same = recorded.get(REVISION..REVISION + sha256.len())? == sha256.as_slice();
    let dir = layer.join(name);
    (same && dir.is_dir()).then_some(dir)
}

/// The entry of `record`, if the cache has one with the right hash and readable metadata.
async fn validated_entry(cache: &PackageCache, record: &RepoDataRecord) -> Option<CacheMetadata> {
    let key = cache_key(record);
    for layer in cache.layers() {
        if let Ok(metadata) = layer.try_validate(&key).await {
            return Some(metadata);
        }
    }
    None
}

fn cached(record: &RepoDataRecord, metadata: &CacheMetadata) -> CachedPackage {
    CachedPackage {
        record: record.clone(),
        dir: metadata.path().to_path_buf(),
    }
}

/// Gives the package back if all its files have the sizes and hashes of its `paths.json`.
async fn verified(package: CachedPackage, paths: PathsJson) -> Option<CachedPackage> {
    let verified = tokio::task::spawn_blocking(move || {
        let problem = (paths.paths.iter())
            // Without a hash nothing says that the bytes are the archive's.
            .find(|entry| {
                entry.path_type == PathType::HardLink
                    && (entry.sha256.is_none() || !is_own_file(&package.dir, &entry.relative_path))
            })
            .map(|entry| entry.relative_path.display().to_string())
            .or_else(|| {
                let full = ValidationMode::Full;
                validate_package_directory_from_paths(&package.dir, &paths, full)
                    .err()
                    .map(|(path, error)| format!("{}: {error}", path.display()))
            });
        if let Some(problem) = problem {
            tracing::warn!(
                "the cached package {} is damaged: {problem}",
                package.dir.display()
            );
            return None;
        }
        Some(package)
    });
    verified.await.ok().flatten()
}

/// Whether `path` is a regular file inside `dir`, so that reading it can neither block nor tell of
/// anything but the package.
fn is_own_file(dir: &Path, path: &Path) -> bool {
    let resolve = || -> io::Result<bool> {
        let file = dir.join(path).canonicalize()?;
        Ok(file.starts_with(dir.canonicalize()?) && file.metadata()?.is_file())
    };
    resolve().unwrap_or(false)
}

/// Extracts the package of `record` to `destination`, without the cache having a say.
async fn extract(
    client: LazyClient,
    record: RepoDataRecord,
    destination: PathBuf,
) -> Result<Option<Sha256Hash>, ExtractError> {
    let package = &record.package_record;
    let result: ExtractResult = match (local_path(&record), is_wheel(&record)) {
        (Some(path), false) => {
            rattler_package_streaming::tokio::fs::extract(&path, &destination).await?
        }
        (Some(path), true) => {
            rattler_package_streaming::tokio::fs::extract_wheel(&path, &destination, package)
                .await?
        }
        (None, wheel) => {
            let (client, url) = (client.client().clone(), record.url.clone());
            let sha256 = package.sha256;
            if wheel {
                rattler_package_streaming::reqwest::tokio::extract_wheel(
                    client,
                    url,
                    &destination,
                    sha256,
                    None,
                    package,
                )
                .await?
            } else {
                rattler_package_streaming::reqwest::tokio::extract(
                    client,
                    url,
                    &destination,
                    sha256,
                    None,
                )
                .await?
            }
        }
    };

    let mismatch = match (package.sha256, package.md5) {
        (Some(sha256), _) if sha256 != result.sha256 => {
            Some((hex::encode(sha256), hex::encode(result.sha256)))
        }
        (None, Some(md5)) if md5 != result.md5 => Some((hex::encode(md5), hex::encode(result.md5))),
        _ => None,
    };
    if let Some((expected, actual)) = mismatch {
        return Err(ExtractError::HashMismatch {
            url: record.identifier.to_string(),
            destination: destination.display().to_string(),
            expected,
            actual,
            total_size: result.total_size,
        });
    }
    Ok(Some(result.sha256))
}

fn cache_key(record: &RepoDataRecord) -> CacheKey {
    if is_wheel(record) {
        CacheKey::from_wheel_record(&record.package_record)
    } else {
        CacheKey::from(&record.package_record)
    }
}

fn is_wheel(record: &RepoDataRecord) -> bool {
    matches!(record.identifier.archive_type, DistArchiveType::Wheel(_))
}

fn local_path(record: &RepoDataRecord) -> Option<PathBuf> {
    (record.url.scheme() == "file")
        .then(|| record.url.to_file_path().ok())
        .flatten()
}

/// Says so in plain words where a local package is not there to be extracted.
fn ensure_source(record: &RepoDataRecord) -> Result<(), FetchError> {
    match local_path(record) {
        Some(path) if !path.exists() => Err(FetchError::Gone {
            package: record.identifier.to_string(),
            path,
        }),
        _ => Ok(()),
    }
}

fn fetch_error(record: &RepoDataRecord, source: PackageCacheError) -> FetchError {
    let mut innermost: &dyn std::error::Error = &source;
    while let Some(next) = innermost.source() {
        innermost = next;
    }
    FetchError::Fetch {
        package: record.identifier.to_string(),
        reason: innermost.to_string(),
        source,
    }
}
