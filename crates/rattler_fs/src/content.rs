//! Producing a file's bytes.
use std::{error::Error, path::PathBuf, sync::Arc};

use rattler_conda_types::RepoDataRecord;

use crate::tree::Tree;

/// Brings a package back whose cached copy vanished or changed under a live mount.
pub trait PackageSupplier: Send + Sync {
    /// Makes sure that the cache holds exactly the package of `record`, verified by hash, and returns its folder.
    /// Blocks for as long as that takes.
    ///
    /// # Errors
    /// When the package cannot be had or cannot be verified.
    fn supply(&self, record: &RepoDataRecord) -> Result<PathBuf, Box<dyn Error + Send + Sync>>;
}

/// The file system of an environment.
pub struct EnvironmentFs {
    /// The inode table.
    pub tree: Tree,
}

impl EnvironmentFs {
    /// A file system over `tree`; `supplier` is asked when a package's folder is no longer what it was.
    pub fn new(tree: Tree, supplier: Arc<dyn PackageSupplier>) -> Self {
        let _ = supplier;
        Self { tree }
    }
}
