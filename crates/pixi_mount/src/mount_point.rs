//! The folder that an environment is mounted on: whether it may be, and leaving it as it was.
//!
//! The mount table is asked before the folder is: a mount whose server died or hangs must not be
//! looked at.

use std::fs::File;
use std::io;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use fs_err as fs;
use rattler_fs::fuse::mount_table::{self, MountEntry, ServerState};
use rattler_fs::fuse::{Unmount, UnmountError};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

/// The file system type of our mounts.
pub const FS_TYPE: &str = "fuse.pixi";

/// How long a server has to give a sign of life.
pub const PATIENCE: Duration = Duration::from_secs(2);

/// Symlinks that are followed before there must be a loop.
const MAX_SYMLINKS: usize = 40;

/// Why a folder cannot be mounted on.
#[derive(Debug, thiserror::Error)]
pub enum MountPointError {
    /// There is something in it.
    #[error("the mount point {} is not empty", .0.display())]
    NotEmpty(PathBuf),

    /// An environment is installed in it.
    #[error("an environment is installed at {}", .0.display())]
    Installed(PathBuf),

    /// An environment is installed in it, and one was moved aside before.
    #[error("cannot move the environment at {} aside: {} exists already", path.display(), aside.display())]
    AsideTaken {
        /// The mount point.
        path: PathBuf,
        /// Where the installed environment would go.
        aside: PathBuf,
    },

    /// It is not a folder.
    #[error("the mount point {} is not a folder", .0.display())]
    NotAFolder(PathBuf),

    /// An environment is mounted there already.
    #[error("{source_name} is already mounted at {}", path.display())]
    AlreadyMounted {
        /// The mount point.
        path: PathBuf,
        /// What is mounted there, as the mount table names it.
        source_name: String,
    },

    /// An environment is mounted there, and its server does not answer.
    #[error("{source_name} is mounted at {}, but its server does not answer", path.display())]
    Unresponsive {
        /// The mount point.
        path: PathBuf,
        /// What is mounted there, as the mount table names it.
        source_name: String,
    },

    /// Another user's mount is there.
    #[error("{source_name} is already mounted at {} by {owner}", path.display())]
    MountedByOther {
        /// The mount point.
        path: PathBuf,
        /// What is mounted there, as the mount table names it.
        source_name: String,
        /// The other user.
        owner: String,
    },

    /// Somebody else is about to mount there.
    #[error("another process is about to mount at {}", .0.display())]
    Taken(PathBuf),

    /// A dead mount is there and will not go.
    #[error("cannot clear the dead mount at {}", path.display())]
    StaysDead {
        /// The mount point.
        path: PathBuf,
        /// Why.
        source: UnmountError,
    },

    /// The system did not let us.
    #[error("cannot use the mount point {}", path.display())]
    Io {
        /// The mount point.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

/// What may happen to what is at the mount point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Replace {
    /// Nothing: it has to be empty.
    Never,
    /// An installed environment is moved aside.
    Installed,
}

/// What [`inspect`] found that may be mounted on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Finding {
    Nothing,
    EmptyFolder,
    Installed,
}

/// A folder that is ours to mount on, until it is released.
///
/// Releasing removes the folders that were made for it and puts an environment that was moved aside
/// back. It happens when this is dropped, too.
#[derive(Debug)]
pub struct MountPoint {
    path: PathBuf,
    /// Folders that were made, the outermost first.
    made: Vec<PathBuf>,
    moved_aside: bool,
    /// Keeps other processes from mounting at the same place at the same time.
    claim: Option<File>,
    released: bool,
}

/// The path without symlinks, found without looking at a mount of ours.
///
/// Parts that do not exist yet are left as they are.
///
/// # Errors
///
/// Where a folder on the way cannot be looked at.
pub fn resolve(path: &Path) -> io::Result<PathBuf> {
    let mounts = mounted_at()?;
    resolve_past(&std::path::absolute(path)?, &mounts, MAX_SYMLINKS)
}

fn mounted_at() -> io::Result<Vec<PathBuf>> {
    let entries = mount_table::read()?.into_iter();
    Ok(entries
        .filter(|entry| entry.fs_type == FS_TYPE)
        .map(|entry| entry.mount_point)
        .collect())
}

fn resolve_past(path: &Path, mounts: &[PathBuf], budget: usize) -> io::Result<PathBuf> {
    let mut resolved = PathBuf::new();
    let mut components = path.components();
    while let Some(component) = components.next() {
        match component {
            Component::ParentDir => {
                resolved.pop();
                continue;
            }
            Component::CurDir => continue,
            other => resolved.push(other),
        }
        if mounts.contains(&resolved) {
            // Whatever follows is inside of a mount.
            resolved.extend(components);
            return Ok(resolved);
        }
        match fs::symlink_metadata(&resolved) {
            Ok(metadata) if metadata.is_symlink() => {
                if budget == 0 {
                    return Err(io::Error::from_raw_os_error(libc::ELOOP));
                }
                let target = fs::read_link(&resolved)?;
                resolved.pop();
                let target = resolved.join(target).join(components.as_path());
                return resolve_past(&target, mounts, budget - 1);
            }
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(resolved)
}

/// Checks whether `path`, which [`resolve`] gave, could be mounted on now. A dead mount of this user
/// is cleared.
///
/// # Errors
///
/// See [`MountPointError`].
pub fn check(path: &Path, replace: Replace) -> Result<(), MountPointError> {
    inspect(path, replace).map(drop)
}

fn inspect(path: &Path, replace: Replace) -> Result<Finding, MountPointError> {
    clear_dead(path)?;
    let failed = |source| MountPointError::Io {
        path: path.to_path_buf(),
        source,
    };
    let entries = match fs::read_dir(path) {
        Ok(entries) => entries,
        Err(error) => {
            return match error.kind() {
                io::ErrorKind::NotFound => Ok(Finding::Nothing),
                io::ErrorKind::NotADirectory => {
                    Err(MountPointError::NotAFolder(path.to_path_buf()))
                }
                _ => Err(failed(error)),
            };
        }
    };
    let mut is_empty = true;
    for entry in entries {
        is_empty = false;
        if entry.map_err(failed)?.file_name() == "conda-meta" {
            if replace == Replace::Never {
                return Err(MountPointError::Installed(path.to_path_buf()));
            }
            let aside = aside(path);
            if aside.exists() {
                return Err(MountPointError::AsideTaken {
                    path: path.to_path_buf(),
                    aside,
                });
            }
            return Ok(Finding::Installed);
        }
    }
    if is_empty {
        Ok(Finding::EmptyFolder)
    } else {
        Err(MountPointError::NotEmpty(path.to_path_buf()))
    }
}

/// Makes sure that no environment is mounted at `path`, clearing mounts of ours whose servers died.
fn clear_dead(path: &Path) -> Result<(), MountPointError> {
    let find = || {
        mount_table::find(path).map_err(|source| MountPointError::Io {
            path: path.to_path_buf(),
            source,
        })
    };
    // Dead mounts can lie on one another.
    while let Some(entry) = find()?.filter(|entry| entry.fs_type == FS_TYPE) {
        let (path, source_name) = (path.to_path_buf(), entry.source.clone());
        if let Some(owner) = other_owner(&entry) {
            return Err(MountPointError::MountedByOther {
                path,
                source_name,
                owner,
            });
        }
        match mount_table::server_state(&path, PATIENCE) {
            ServerState::Alive => {
                return Err(MountPointError::AlreadyMounted { path, source_name });
            }
            ServerState::Unresponsive => {
                return Err(MountPointError::Unresponsive { path, source_name });
            }
            ServerState::Dead => {
                unmount_dead(&path).map_err(|source| MountPointError::StaysDead {
                    path: path.clone(),
                    source,
                })?;
                tracing::info!("cleared a dead mount at {}", path.display());
            }
        }
    }
    Ok(())
}

/// Takes a mount away whose server died: programs that still hold files in it get errors anyway.
///
/// # Errors
///
/// Where the system refuses.
pub fn unmount_dead(path: &Path) -> Result<(), UnmountError> {
    match mount_table::unmount(path, Unmount::Detach) {
        Err(UnmountError::NotMounted) => Ok(()),
        unmounted => unmounted,
    }
}

/// The name of the user whose mount this is, where it is not ours. Nobody is somebody else to root.
#[must_use]
pub fn other_owner(entry: &MountEntry) -> Option<String> {
    let me = rustix::process::getuid();
    let owner = entry.user_id.filter(|&owner| owner != me.as_raw())?;
    (!me.is_root()).then(|| user_name(owner))
}

/// A user's login name, or the number where there is none.
#[must_use]
pub fn user_name(uid: u32) -> String {
    let mut buffer = vec![0; 16 * 1024];
    // SAFETY: `passwd` is plain old data, for which all zeroes is a valid value.
    let mut entry: libc::passwd = unsafe { std::mem::zeroed() };
    let mut result = std::ptr::null_mut();
    // SAFETY: the pointers are to live objects, and the length is the buffer's.
    let code = unsafe {
        libc::getpwuid_r(
            uid,
            &raw mut entry,
            buffer.as_mut_ptr(),
            buffer.len(),
            &raw mut result,
        )
    };
    if code != 0 || result.is_null() {
        return format!("the user {uid}");
    }
    // SAFETY: on success `pw_name` is a string within `buffer`, which is alive.
    let name = unsafe { std::ffi::CStr::from_ptr(entry.pw_name) };
    name.to_string_lossy().into_owned()
}

/// Where an installed environment waits while its place is mounted on.
#[must_use]
pub fn aside(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    name.push(".installed");
    path.with_file_name(name)
}

impl MountPoint {
    /// Makes `path`, which [`resolve`] gave, ready to be mounted on.
    ///
    /// # Errors
    ///
    /// See [`MountPointError`]; nothing has changed then.
    pub fn claim(path: &Path, replace: Replace) -> Result<Self, MountPointError> {
        let failed = |source: io::Error| MountPointError::Io {
            path: path.to_path_buf(),
            source,
        };
        let finding = inspect(path, replace)?;
        let moved_aside = match finding {
            Finding::Installed => {
                fs::rename(path, aside(path)).map_err(failed)?;
                true
            }
            // One that a server left behind when it died.
            Finding::Nothing | Finding::EmptyFolder => aside(path).join("conda-meta").is_dir(),
        };
        let mut made = Vec::new();
        let claim = match make_folders(path, &mut made).and_then(|()| File::open(path)) {
            Ok(claim) => claim,
            Err(error) => {
                if finding == Finding::Installed {
                    let _ = fs::rename(aside(path), path);
                }
                return Err(failed(error));
            }
        };
        // Where locks do not work, there is the mount table.
        if flock(&claim, FlockOperation::NonBlockingLockExclusive) == Err(Errno::WOULDBLOCK) {
            return Err(MountPointError::Taken(path.to_path_buf()));
        }
        let mut mount_point = Self {
            path: path.to_path_buf(),
            made,
            moved_aside,
            claim: Some(claim),
            released: false,
        };
        // Who had the lock before us may have mounted since we looked.
        if let Err(error) = clear_dead(path) {
            mount_point.released = true;
            return Err(error);
        }
        Ok(mount_point)
    }

    /// The folder.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether an installed environment waits beside it.
    #[must_use]
    pub fn moved_aside(&self) -> Option<PathBuf> {
        self.moved_aside.then(|| aside(&self.path))
    }

    /// Something is mounted there: from now on the mount table keeps others away.
    pub fn mounted(&mut self) {
        self.claim = None;
    }

    /// Leaves the folder as it was found. What is mounted on it by then is left alone.
    pub fn release(mut self) {
        self.restore();
    }

    fn restore(&mut self) {
        if std::mem::replace(&mut self.released, true) {
            return;
        }
        if self.moved_aside {
            put_back(&self.path);
        }
        if mount_table::find(&self.path).is_ok_and(|entry| entry.is_none()) {
            for folder in self.made.iter().rev() {
                // Not empty any more is not ours any more.
                if fs::remove_dir(folder).is_err() {
                    break;
                }
            }
        }
    }
}

impl Drop for MountPoint {
    fn drop(&mut self) {
        self.restore();
    }
}

/// Puts an environment that was moved aside back to `path`, where nothing is mounted any more.
pub fn put_back(path: &Path) {
    let aside = aside(path);
    let is_free = mount_table::find(path).is_ok_and(|entry| entry.is_none());
    if !is_free || !aside.join("conda-meta").is_dir() {
        return;
    }
    let result = match fs::remove_dir(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => fs::rename(&aside, path),
    };
    if let Err(error) = result {
        tracing::warn!(
            "the installed environment stays at {}: {error}",
            aside.display()
        );
    }
}

fn make_folders(path: &Path, made: &mut Vec<PathBuf>) -> io::Result<()> {
    let mut missing: Vec<&Path> = path.ancestors().take_while(|path| !path.exists()).collect();
    while let Some(folder) = missing.pop() {
        match fs::create_dir(folder) {
            Ok(()) => made.push(folder.to_path_buf()),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => {
                for folder in made.drain(..).rev() {
                    let _ = fs::remove_dir(folder);
                }
                return Err(error);
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder() -> (tempfile::TempDir, PathBuf) {
        let guard = tempfile::tempdir().unwrap();
        let path = guard.path().canonicalize().unwrap();
        (guard, path)
    }

    fn install(path: &Path) {
        fs::create_dir_all(path.join("conda-meta")).unwrap();
        fs::write(path.join("conda-meta/history"), "installed").unwrap();
    }

    fn is_installed(path: &Path) -> bool {
        path.join("conda-meta/history").exists()
    }

    #[test]
    fn folders_that_were_made_are_gone_afterwards() {
        let (_guard, folder) = folder();
        let path = folder.join("a/b/c");
        let mount_point = MountPoint::claim(&path, Replace::Never).unwrap();
        assert!(path.is_dir());
        mount_point.release();
        assert!(!folder.join("a").exists());

        // What was there stays, and so does what somebody has put there.
        fs::create_dir_all(&path).unwrap();
        drop(MountPoint::claim(&path, Replace::Never).unwrap());
        assert!(path.is_dir());
        fs::remove_dir(&path).unwrap();
        let mount_point = MountPoint::claim(&path, Replace::Never).unwrap();
        fs::write(folder.join("a/b/file"), "").unwrap();
        mount_point.release();
        assert!(!path.exists());
        assert!(folder.join("a/b/file").exists());
    }

    #[test]
    fn an_installed_environment_is_moved_aside_only_when_asked_and_comes_back() {
        let (_guard, folder) = folder();
        let (path, aside) = (folder.join("default"), folder.join("default.installed"));
        install(&path);
        assert!(matches!(
            MountPoint::claim(&path, Replace::Never),
            Err(MountPointError::Installed(_))
        ));
        let mount_point = MountPoint::claim(&path, Replace::Installed).unwrap();
        assert_eq!(mount_point.moved_aside(), Some(aside.clone()));
        assert!(is_installed(&aside) && !is_installed(&path));
        mount_point.release();
        assert!(is_installed(&path) && !aside.exists());

        install(&aside);
        assert!(matches!(
            MountPoint::claim(&path, Replace::Installed),
            Err(MountPointError::AsideTaken { .. })
        ));
        assert!(is_installed(&path) && is_installed(&aside));
    }

    #[test]
    fn one_that_a_dead_server_left_aside_comes_back_too() {
        let (_guard, folder) = folder();
        let (path, aside) = (folder.join("default"), folder.join("default.installed"));
        install(&aside);
        fs::create_dir(&path).unwrap();
        MountPoint::claim(&path, Replace::Never).unwrap().release();
        assert!(is_installed(&path) && !aside.exists());
    }

    #[test]
    fn what_is_not_an_empty_folder_is_refused() {
        let (_guard, folder) = folder();
        let path = folder.join("full");
        fs::create_dir(&path).unwrap();
        fs::write(path.join("file"), "").unwrap();
        for replace in [Replace::Never, Replace::Installed] {
            assert!(matches!(
                check(&path, replace),
                Err(MountPointError::NotEmpty(_))
            ));
            let file = check(&path.join("file"), replace);
            assert!(matches!(file, Err(MountPointError::NotAFolder(_))));
        }
    }

    #[test]
    fn only_one_claims_a_place() {
        let (_guard, folder) = folder();
        let path = folder.join("here");
        let first = MountPoint::claim(&path, Replace::Never).unwrap();
        assert!(matches!(
            MountPoint::claim(&path, Replace::Never),
            Err(MountPointError::Taken(_))
        ));
        assert!(path.is_dir());
        first.release();
        MountPoint::claim(&path, Replace::Never).unwrap();
    }

    #[test]
    fn symlinks_are_resolved_as_far_as_there_is_anything() {
        let (_guard, folder) = folder();
        fs::create_dir_all(folder.join("real/deep")).unwrap();
        std::os::unix::fs::symlink("real/deep", folder.join("link")).unwrap();
        std::os::unix::fs::symlink("loop", folder.join("loop")).unwrap();
        let resolved = |path: &str| resolve(&folder.join(path)).unwrap();
        assert_eq!(resolved("link/new/one"), folder.join("real/deep/new/one"));
        assert_eq!(resolved("link/../x"), folder.join("real/x"));
        assert_eq!(resolved("./real/./deep"), folder.join("real/deep"));
        assert!(resolve(&folder.join("loop/x")).is_err());
    }

    #[test]
    fn users_have_names_where_they_have_one() {
        assert_eq!(user_name(0), "root");
        assert_eq!(user_name(3_999_999_999), "the user 3999999999");
    }
}
