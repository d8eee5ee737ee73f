use std::path::PathBuf;

/// What can go wrong when packages, workspaces and installations are made.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Reading or writing a file failed.
    #[error(transparent)]
    Io(#[from] std::io::Error),

    /// Metadata could not be written or read as JSON.
    #[error(transparent)]
    Json(#[from] serde_json::Error),

    /// A zip archive could not be written or read.
    #[error(transparent)]
    Zip(#[from] zip::result::ZipError),

    /// A channel could not be indexed.
    #[error("the channel at {channel} could not be indexed: {reason}")]
    Index {
        /// The channel's folder.
        channel: PathBuf,
        /// What `rattler_index` said.
        reason: String,
    },

    /// A lock file could not be read.
    #[error(transparent)]
    LockFile(#[from] rattler_lock::ParseCondaLockError),

    /// A lock file does not have what was asked for.
    #[error("{0}")]
    Locked(String),

    /// The installer failed.
    #[error(transparent)]
    Installer(#[from] rattler::install::InstallerError),

    /// The package cache could not be filled.
    #[error(transparent)]
    PackageCache(#[from] rattler_cache::package_cache::PackageCacheError),

    /// A program that is needed failed or is missing.
    #[error("{program}: {reason}")]
    Program {
        /// What was run.
        program: String,
        /// What it said.
        reason: String,
    },

    /// No Python 3.11 that owns its prefix was found.
    #[error("no usable Python 3.11: {0}")]
    Python(String),
}
