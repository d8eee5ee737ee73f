//! A package's folder in the cache, and whether it still is the one that the layout was made from.
//!
//! The folder is held open, so that its inode cannot be reused while the environment lives: a folder that was removed,
//! or replaced by another under the same name, is noticed at the next open. A file inside is known by what `statx` says
//! of it: inode, size, date and birth. Files are opened strictly below the folder, through no symlink.

use std::{
    error::Error,
    fs::File,
    hash::Hasher,
    io::{self, Read},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::{Mutex, RwLock};
use rattler_conda_types::{
    RepoDataRecord,
    package::{Files, HasPrefix, LinkJson, NoLink, NoSoftlink, PackageFile, PathType, PathsJson},
};
use rustc_hash::FxHasher;
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, Statx, StatxFlags};

use crate::tree::{Owner, Timestamp};

/// Brings a package back whose cached copy vanished or changed under a live mount.
pub trait PackageSupplier: Send + Sync {
    /// Makes sure that the cache holds exactly the package of `record`, verified by hash, and returns its folder.
    /// Blocks for as long as that takes.
    ///
    /// # Errors
    /// When the package cannot be had or cannot be verified.
    fn supply(&self, record: &RepoDataRecord) -> Result<PathBuf, Box<dyn Error + Send + Sync>>;
}

/// How long a package that could not be brought back is left alone before it is tried again.
const RETRY_AFTER: Duration = Duration::from_secs(10);

/// A package of an environment.
#[derive(Debug)]
pub(crate) struct Package {
    pub(crate) record: RepoDataRecord,
    pub(crate) noarch_python: bool,
    /// Paths in the environment, as the package alone would have them, that another package won; sorted.
    pub(crate) clobbered: Vec<String>,
    /// Identity of the metadata that lists the package's paths.
    pub(crate) metadata: Mutex<u64>,
    folder: RwLock<Arc<PackageFolder>>,
    failure: Mutex<Option<Instant>>,
}

impl Package {
    /// A package that was found in `folder`.
    pub(crate) fn new(
        record: RepoDataRecord,
        noarch_python: bool,
        mut clobbered: Vec<String>,
        metadata: u64,
        folder: PackageFolder,
    ) -> Self {
        clobbered.sort_unstable();
        Self {
            record,
            noarch_python,
            clobbered,
            metadata: Mutex::new(metadata),
            folder: RwLock::new(Arc::new(folder)),
            failure: Mutex::new(None),
        }
    }

    /// The folder as it was last found.
    pub(crate) fn folder(&self) -> Arc<PackageFolder> {
        self.folder.read().clone()
    }

    /// Brings the package back after `seen` turned out to be gone or changed. `adopt` is given the new folder and
    /// compares it with what the environment promised. One thread does the work, others wait for it.
    ///
    /// # Errors
    /// When the package cannot be brought back, now or shortly before.
    pub(crate) fn recover(
        &self,
        seen: &Arc<PackageFolder>,
        supplier: &dyn PackageSupplier,
        adopt: impl FnOnce(&PackageFolder),
    ) -> Result<(), Box<dyn Error + Send + Sync>> {
        let mut failure = self.failure.lock();
        if !Arc::ptr_eq(seen, &self.folder.read()) {
            return Ok(());
        }
        if failure.is_some_and(|when| when.elapsed() < RETRY_AFTER) {
            return Err("the package could not be brought back a moment ago".into());
        }
        let supplied = supplier
            .supply(&self.record)
            .and_then(|path| PackageFolder::open(&path).map_err(Into::into));
        match supplied {
            Ok(folder) => {
                adopt(&folder);
                *self.folder.write() = Arc::new(folder);
                *failure = None;
                Ok(())
            }
            Err(error) => {
                *failure = Some(Instant::now());
                Err(error)
            }
        }
    }

    /// Makes [`Package::recover`] fail for a while: what came back is not what the environment was made from.
    pub(crate) fn give_up(&self) {
        *self.failure.lock() = Some(Instant::now());
    }
}

/// An extracted package, held open.
#[derive(Debug)]
pub(crate) struct PackageFolder {
    pub(crate) path: PathBuf,
    root: OwnedFd,
}

impl PackageFolder {
    /// Opens the folder at `path`.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let root = rustix::fs::openat(CWD, path, directory_flags(), Mode::empty())?;
        Ok(Self {
            path: path.to_path_buf(),
            root,
        })
    }

    /// Opens a folder below this one, to look at many of its files.
    pub(crate) fn directory(&self, path: &[u8]) -> io::Result<OwnedFd> {
        if path.is_empty() {
            return self.root.try_clone();
        }
        Ok(openat2(self.root.as_fd(), path, directory_flags())?)
    }

    /// Opens a file for reading.
    pub(crate) fn file(&self, path: &[u8]) -> io::Result<File> {
        // Non-blocking, so that a fifo in a package stops nobody.
        let flags =
            OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
        Ok(openat2(self.root.as_fd(), path, flags)?.into())
    }

    /// Status of a file, a symlink itself.
    pub(crate) fn status(&self, path: &[u8]) -> io::Result<FileStatus> {
        match path.iter().rposition(|&byte| byte == b'/') {
            Some(slash) => {
                FileStatus::at(self.directory(&path[..slash])?.as_fd(), &path[slash + 1..])
            }
            None => FileStatus::at(self.root.as_fd(), path),
        }
    }

    /// The whole of a metadata file.
    pub(crate) fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.file(path.as_os_str().as_encoded_bytes())?
            .read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    /// A metadata file of the package, `None` where it has none.
    pub(crate) fn metadata<M: PackageFile>(&self) -> io::Result<Option<M>> {
        match self.read(M::package_path()) {
            Ok(bytes) => M::from_slice(&bytes).map(Some),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The paths of the package: `info/paths.json`, or for old packages what stood before it.
    pub(crate) fn paths_json(&self) -> io::Result<PathsJson> {
        if let Some(paths) = self.metadata::<PathsJson>()? {
            return Ok(paths);
        }
        let files = self.metadata::<Files>()?.ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::NotFound,
                "there is neither info/paths.json nor info/files",
            )
        })?;
        PathsJson::from_deprecated(
            files,
            self.metadata::<HasPrefix>()?,
            self.metadata::<NoLink>()?,
            self.metadata::<NoSoftlink>()?,
            |path| {
                let status = self.status(path.as_os_str().as_encoded_bytes())?;
                Ok(match status.kind {
                    FileType::Symlink => PathType::SoftLink,
                    FileType::Directory => PathType::Directory,
                    _ => PathType::HardLink,
                })
            },
        )
    }

    /// Identity of the metadata that [`PackageFolder::paths_json`] reads.
    pub(crate) fn paths_identity(&self) -> u64 {
        let mut hasher = FxHasher::default();
        for path in [
            PathsJson::package_path(),
            Files::package_path(),
            HasPrefix::package_path(),
            NoLink::package_path(),
            NoSoftlink::package_path(),
            LinkJson::package_path(),
        ] {
            let identity = self
                .status(path.as_os_str().as_encoded_bytes())
                .map_or(0, |status| status.identity);
            hasher.write_u64(identity);
        }
        hasher.finish()
    }
}

/// What `statx` says of a file.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FileStatus {
    pub(crate) kind: FileType,
    pub(crate) mode: u16,
    pub(crate) size: u64,
    pub(crate) mtime: Timestamp,
    pub(crate) owner: Owner,
    /// Differs from that of any other file that could stand at the same path.
    pub(crate) identity: u64,
}

impl FileStatus {
    /// Status of `name` in `directory`, a symlink itself.
    pub(crate) fn at(directory: BorrowedFd<'_>, name: &[u8]) -> io::Result<Self> {
        let status = rustix::fs::statx(
            directory,
            name,
            AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT,
            StatxFlags::BASIC_STATS | StatxFlags::BTIME,
        )?;
        Ok(Self::new(&status))
    }

    /// Status of an open file.
    pub(crate) fn of(file: &File) -> io::Result<Self> {
        let status = rustix::fs::statx(
            file,
            c"",
            AtFlags::EMPTY_PATH,
            StatxFlags::BASIC_STATS | StatxFlags::BTIME,
        )?;
        Ok(Self::new(&status))
    }

    fn new(status: &Statx) -> Self {
        let mut hasher = FxHasher::default();
        hasher.write_u64(status.stx_ino);
        hasher.write_u64(status.stx_size);
        hasher.write_i64(status.stx_mtime.tv_sec);
        hasher.write_u32(status.stx_mtime.tv_nsec);
        // The change time is no part of it: a hard link to the file, as an installation makes, changes it.
        if status.stx_mask & StatxFlags::BTIME.bits() != 0 {
            hasher.write_i64(status.stx_btime.tv_sec);
            hasher.write_u32(status.stx_btime.tv_nsec);
        }
        Self {
            kind: FileType::from_raw_mode(status.stx_mode.into()),
            mode: status.stx_mode & 0o7777,
            size: status.stx_size,
            mtime: Timestamp {
                seconds: status.stx_mtime.tv_sec,
                nanoseconds: status.stx_mtime.tv_nsec,
            },
            owner: Owner {
                uid: status.stx_uid,
                gid: status.stx_gid,
            },
            identity: hasher.finish(),
        }
    }
}

fn directory_flags() -> OFlags {
    OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC
}

/// Opens strictly below `root`: a package is not trusted to keep its symlinks inside itself.
fn openat2(root: BorrowedFd<'_>, path: &[u8], flags: OFlags) -> rustix::io::Result<OwnedFd> {
    loop {
        let resolve =
            ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        match rustix::fs::openat2(root, path, flags, Mode::empty(), resolve) {
            // A rename somewhere raced with the walk.
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
            result => return result,
        }
    }
}
