//! Bringing packages back that vanish from the cache under a live mount.

use std::error::Error;
use std::path::PathBuf;

use rattler_conda_types::RepoDataRecord;
use rattler_fs::PackageSupplier;
use rattler_fs::layout::fetch::PackageFetcher;
use tokio::runtime::Handle;

/// Supplies packages by fetching them again, by hash.
#[derive(Debug)]
pub struct RefetchingSupplier {
    fetcher: PackageFetcher,
    runtime: Handle,
}

impl RefetchingSupplier {
    /// A supplier whose downloads run on `runtime`; it must not be asked from one of its threads.
    #[must_use]
    pub fn new(fetcher: PackageFetcher, runtime: Handle) -> Self {
        Self { fetcher, runtime }
    }
}

impl PackageSupplier for RefetchingSupplier {
    fn supply(&self, record: &RepoDataRecord) -> Result<PathBuf, Box<dyn Error + Send + Sync>> {
        let package = self.runtime.block_on(self.fetcher.refetch(record))?;
        Ok(package.dir)
    }
}
