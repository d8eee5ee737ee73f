//! From a workspace's lock file to a file system that can be mounted.

use std::path::Path;
use std::sync::Arc;

use rattler_conda_types::RepoDataRecord;
use rattler_fs::EnvironmentFs;
use rattler_fs::layout::fetch::{CachedPackage, FetchError, PackageFetcher};
use rattler_fs::layout::lock_file::{self, LockFileError, LockedEnvironment};
use rattler_fs::layout::{self, DamagedPackage, LayoutError, LayoutOptions};
use rattler_fs::tree::Tree;
use tokio::runtime::Handle;

use crate::marker::environment_files;
use crate::network;
use crate::progress::FetchProgress;
use crate::supply::RefetchingSupplier;
use crate::workspace::host::ThisMachine;
use crate::workspace::{EnvironmentPlatform, Workspace, WorkspaceError};

/// Why an environment cannot be brought together.
#[derive(Debug, thiserror::Error)]
pub enum EnvironmentError {
    /// The workspace does not have it, or not for this machine.
    #[error(transparent)]
    Workspace(#[from] WorkspaceError),

    /// The lock file does not have it.
    #[error(transparent)]
    LockFile(#[from] LockFileError),

    /// A package cannot be had.
    #[error(transparent)]
    Fetch(#[from] FetchError),

    /// The packages do not make an environment.
    #[error(transparent)]
    Layout(#[from] LayoutError),

    /// Nothing says where the package cache is.
    #[error("there is no folder for the package cache: neither HOME nor PIXI_CACHE_DIR is set")]
    NoCache,
}

/// An environment as its lock file has it, on this machine.
#[derive(Debug, Clone)]
pub struct Resolved {
    /// The packages.
    pub locked: LockedEnvironment,
    /// The platform that pixi would use.
    pub found: EnvironmentPlatform,
}

/// Looks the environment up in the workspace's lock file.
///
/// # Errors
///
/// See [`EnvironmentError`].
pub fn resolve(workspace: &Workspace, environment: &str) -> Result<Resolved, EnvironmentError> {
    let path = workspace.lock_file_path();
    let lock = lock_file::read(&path)?;
    let host = ThisMachine(&workspace.surroundings);
    let found = workspace.platform_of(environment, &lock, &host)?;
    Ok(Resolved {
        locked: lock_file::select(&lock, &path, environment, &found.row)?,
        found,
    })
}

/// Brings the packages of an environment together into a file system.
///
/// What is missing from the cache or damaged in it is fetched on `runtime`, as is what vanishes
/// while the file system is in use; `runtime` has to live that long. `prefix` is the path that goes
/// into patched files.
///
/// # Errors
///
/// See [`EnvironmentError`].
pub fn assemble(
    workspace: &Workspace,
    resolved: &Resolved,
    prefix: &Path,
    runtime: &Handle,
) -> Result<EnvironmentFs, EnvironmentError> {
    let cache_dir = (workspace.config)
        .package_cache_dir(&workspace.surroundings)
        .ok_or(EnvironmentError::NoCache)?;
    let client = network::client(
        &workspace.config,
        &workspace.manifest.s3_options,
        &workspace.surroundings,
    );
    let downloads = workspace.config.concurrent_downloads();
    let fetcher = PackageFetcher::new(cache_dir, client, downloads);

    let options = LayoutOptions {
        prefix: prefix.to_path_buf(),
        platform: resolved.found.platform.subdir,
        extra_files: environment_files(
            &workspace.manifest_path,
            &resolved.locked,
            &resolved.found,
            prefix,
        ),
    };
    let records: Vec<RepoDataRecord> = (resolved.locked.packages.iter())
        .map(|package| package.record.clone())
        .collect();
    let reporting = fetcher.clone().with_reporter(FetchProgress::new());
    let tree = runtime.block_on(build(&reporting, records, &options))?;
    let supplier = RefetchingSupplier::new(fetcher, runtime.clone());
    Ok(EnvironmentFs::new(tree, Arc::new(supplier)))
}

async fn build(
    fetcher: &PackageFetcher,
    records: Vec<RepoDataRecord>,
    options: &LayoutOptions,
) -> Result<Tree, EnvironmentError> {
    let packages = fetcher.fetch_all(&records).await?;
    let damaged = match layout::build(packages, options) {
        Err(LayoutError::Damaged(damaged)) => damaged,
        Ok(tree) => {
            let replaced = fetcher.replaced(&records);
            if replaced.is_empty() {
                return Ok(tree);
            }
            (replaced.into_iter())
                .map(|index| DamagedPackage {
                    index,
                    package: records[index].identifier.to_string(),
                    reason: "it was replaced by another program just now".to_string(),
                })
                .collect()
        }
        Err(error) => return Err(error.into()),
    };
    // One more time for those that are damaged: what comes from the archive itself stays so.
    for package in damaged {
        tracing::warn!(
            "fetching {} again, it is damaged in the package cache: {}",
            package.package,
            package.reason
        );
        if let Some(record) = records.get(package.index) {
            fetcher.refetch(record).await?;
        }
    }
    let packages: Vec<CachedPackage> = fetcher.fetch_all(&records).await?;
    Ok(layout::build(packages, options)?)
}
