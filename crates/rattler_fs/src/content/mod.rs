//! Producing a file's bytes: as stored, prefix replaced, or generated.
//!
//! [`EnvironmentFs`] is the file system's meaning: what a look-up, a listing or a read of the environment gives. It
//! knows nothing of FUSE.

mod bounded_cache;
mod environment_fs;
mod package;
mod prefix;
mod record;
mod sink;

use std::sync::{Arc, OnceLock};

use rattler::install::PythonInfo;
use rattler_conda_types::{
    Subdir,
    package::{FileMode, PrefixOffsets},
};
use rattler_digest::Sha256Hash;

pub use environment_fs::{Attributes, DirectoryEntry, EnvironmentFs, FileKind, Inode, ROOT_INODE};
pub use package::PackageSupplier;
pub(crate) use package::{FileStatus, Package, PackageFolder};
pub(crate) use prefix::{PatchError, find_edits};
pub(crate) use record::clobber_path;
pub use sink::ReadSink;

use crate::tree::{Owner, Timestamp};

/// What is true for a whole environment.
#[derive(Debug)]
pub(crate) struct Environment {
    /// Absolute path of the environment: it replaces the placeholders.
    pub(crate) prefix: String,
    pub(crate) platform: Subdir,
    /// The environment's Python, for `noarch: python` packages.
    pub(crate) python: Option<PythonInfo>,
    /// Who would own what an installation creates.
    pub(crate) owner: Owner,
    /// When the layout was made: the date of what an installation creates.
    pub(crate) created: Timestamp,
}

/// A package file whose placeholder is replaced by the prefix when it is read.
#[derive(Debug)]
pub(crate) struct PatchedFile {
    pub(crate) mode: FileMode,
    pub(crate) placeholder: Arc<str>,
    /// Where the placeholder stands, if the package says so.
    pub(crate) offsets: Option<Box<PrefixOffsets>>,
    /// Size in bytes of the file as stored.
    pub(crate) source_size: u64,
    /// Date of the file as stored.
    pub(crate) source_mtime: Timestamp,
    /// Hash of the patched bytes, once somebody asked for it.
    pub(crate) sha256: OnceLock<Sha256Hash>,
}

/// A file whose bytes no package holds.
#[derive(Debug)]
pub(crate) enum GeneratedFile {
    /// These bytes.
    Bytes(Arc<[u8]>),
    /// The script of a Python entry point: these bytes.
    EntryPoint(Arc<[u8]>),
    /// The `conda-meta` record of the package with this number.
    Record(u32),
}
