//! The kernel adapter.
pub mod mount_table;

use std::{path::PathBuf, sync::Arc};

use crate::EnvironmentFs;

/// How and where to mount.
#[derive(Debug, Clone)]
pub struct MountOptions {
    /// An existing, empty directory, as an absolute path without symlinks.
    pub mount_point: PathBuf,
    /// The mount table's source field, such as `pixi:workspace/environment`.
    pub source: String,
    /// Mount read-only.
    pub read_only: bool,
    /// Let other users in, as far as the files' modes allow.
    pub allow_other: bool,
}

/// Why mounting failed.
#[derive(Debug, thiserror::Error)]
pub enum MountError {}

/// Why unmounting failed.
#[derive(Debug, thiserror::Error)]
pub enum UnmountError {
    /// A process uses the mount.
    #[error("the mount is in use")]
    Busy,
}

/// How to unmount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unmount {
    /// Only when nothing uses the mount.
    Plain,
    /// Take it out of the name space now; programs that use it get errors once the server ends.
    Detach,
}

/// Why serving ended early.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {}

/// A mounted file system, ready to be served.
pub struct Session {
    unmounter: Unmounter,
}

impl Session {
    /// Mounts `fs`.
    ///
    /// # Errors
    /// See [`MountError`].
    pub fn mount(fs: Arc<EnvironmentFs>, options: MountOptions) -> Result<Self, MountError> {
        let _ = (fs, &options);
        Ok(Self {
            unmounter: Unmounter {},
        })
    }

    /// A handle that unmounts from another thread.
    #[must_use]
    pub fn unmounter(&self) -> Unmounter {
        self.unmounter.clone()
    }

    /// Serves requests until the file system is unmounted.
    ///
    /// # Errors
    /// See [`SessionError`].
    pub fn run(self) -> Result<(), SessionError> {
        Ok(())
    }
}

/// Unmounts a [`Session`]'s mount.
#[derive(Debug, Clone)]
pub struct Unmounter {}

impl Unmounter {
    /// Unmounts.
    ///
    /// # Errors
    /// See [`UnmountError`].
    pub fn unmount(&self, how: Unmount) -> Result<(), UnmountError> {
        let _ = how;
        Ok(())
    }
}
