//! One package: its paths, checked, and what its folder in the cache says of each of them.
//!
//! Everything read here is hostile until checked. Nothing opens a package's own files: one `statx` a file, below
//! directories that are opened through no symlink, gives all that the inode table needs.

use std::{
    cmp::Ordering,
    io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::{Path, PathBuf},
    sync::Arc,
};

use rattler_conda_types::package::{
    AboutJson, EntryPoint, FileMode, IndexJson, LinkJson, NoArchLinks, PackageFile, PathType,
    PrefixOffsets,
};
use rustix::{fs::FileType, io::Errno};

use super::{
    fetch::CachedPackage,
    paths::{self, ListedPath},
};
use crate::{
    content::{FileStatus, PackageFolder},
    tree::{Owner, Timestamp},
};

/// Longest path component that the kernel takes.
const NAME_MAX: usize = 255;

/// Longest path that the kernel takes in one call; deeper ones could never be opened.
const PATH_MAX: usize = 4095;

/// What is wrong with a package.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PackageError {
    /// Another copy may be better.
    #[error("{0}")]
    Damaged(String),
    /// The package itself is at fault.
    #[error("{0}")]
    Invalid(String),
    /// The system is at fault, not the package.
    #[error(transparent)]
    System(io::Error),
}

/// A package as its folder has it.
#[derive(Debug)]
pub(crate) struct PackageContents {
    pub(crate) folder: PackageFolder,
    pub(crate) noarch_python: bool,
    pub(crate) files: Vec<PackageEntry>,
    pub(crate) entry_points: Vec<EntryPoint>,
    /// The date of files whose prefix is replaced; `None` stands for now.
    pub(crate) modification_time: Option<Timestamp>,
    pub(crate) metadata_identity: u64,
}

/// A path of a package.
#[derive(Debug)]
pub(crate) struct PackageEntry {
    /// Relative to the package's folder; only normal components.
    pub(crate) path: PathBuf,
    /// The file in the package's folder that is served, where it has another path.
    pub(crate) resolved: Option<Box<[u8]>>,
    pub(crate) body: EntryBody,
    pub(crate) mode: u16,
    pub(crate) size: u64,
    pub(crate) mtime: Timestamp,
    /// `None` for what an installation creates anew.
    pub(crate) owner: Option<Owner>,
    pub(crate) identity: u64,
}

/// What stands at a path.
#[derive(Debug)]
pub(crate) enum EntryBody {
    Directory,
    Symlink(Box<[u8]>),
    Stored,
    Patched {
        mode: FileMode,
        placeholder: Arc<str>,
        offsets: Option<Box<PrefixOffsets>>,
    },
}

/// Reads a package.
pub(crate) fn read(package: &CachedPackage) -> Result<PackageContents, PackageError> {
    let folder =
        PackageFolder::open(&package.dir).map_err(damaged("its folder cannot be opened"))?;

    let index = folder
        .metadata::<IndexJson>()
        .map_err(damaged("info/index.json"))?
        .ok_or_else(|| PackageError::Damaged("info/index.json is missing".into()))?;
    let mut entries = paths::read(&folder).map_err(damaged("the list of its files"))?;
    let noarch_python = index.noarch.is_python();
    let entry_points = if noarch_python {
        match folder
            .metadata::<LinkJson>()
            .map_err(damaged("info/link.json"))?
        {
            Some(LinkJson {
                noarch: NoArchLinks::Python(links),
                ..
            }) => links.entry_points,
            _ => Vec::new(),
        }
    } else {
        Vec::new()
    };

    if !entries.is_sorted_by(|a, b| in_order(&a.path, &b.path).is_le()) {
        entries.sort_by(|a, b| in_order(&a.path, &b.path));
    }
    let mut reader = EntryReader {
        folder: &folder,
        directories: Vec::new(),
        placeholders: Vec::new(),
    };
    let mut files = Vec::with_capacity(entries.len());
    for entry in entries {
        files.push(reader.read(entry)?);
    }
    reject_contradictions(&mut files)?;

    Ok(PackageContents {
        modification_time: modification_time(&folder),
        metadata_identity: folder.paths_identity(),
        folder,
        noarch_python,
        files,
        entry_points,
    })
}

/// For `map_err`: the cached copy is at fault, unless it is the system that has run out of something.
fn damaged(what: &str) -> impl Fn(io::Error) -> PackageError + '_ {
    move |error| match Errno::from_io_error(&error) {
        Some(Errno::MFILE | Errno::NFILE | Errno::NOMEM) => PackageError::System(error),
        _ => PackageError::Damaged(format!("{what}: {error}")),
    }
}

/// One second after `info/about.json`, which is written after all packaged files are; `None` where there is none.
fn modification_time(folder: &PackageFolder) -> Option<Timestamp> {
    let about = folder
        .status(AboutJson::package_path().as_os_str().as_bytes())
        .ok()?;
    Some(Timestamp {
        seconds: about.mtime.seconds + 1,
        ..about.mtime
    })
}

/// Order of paths by their components: what is below a directory follows it.
fn in_order(a: &Path, b: &Path) -> Ordering {
    // A slash sorts before all else that a path can hold.
    let rank = |byte: &u8| if *byte == b'/' { 0 } else { *byte };
    let (a, b) = (a.as_os_str().as_bytes(), b.as_os_str().as_bytes());
    a.iter().map(rank).cmp(b.iter().map(rank))
}

/// A path's directory, empty for the root, and its name.
pub(crate) fn split(path: &Path) -> (&[u8], &[u8]) {
    let bytes = path.as_os_str().as_bytes();
    match memchr::memrchr(b'/', bytes) {
        Some(slash) => (&bytes[..slash], &bytes[slash + 1..]),
        None => (&[], bytes),
    }
}

/// Whether `path` is `directory` or below it.
fn is_at_or_below(path: &[u8], directory: &[u8]) -> bool {
    directory.is_empty()
        || path
            .strip_prefix(directory)
            .is_some_and(|rest| rest.is_empty() || rest[0] == b'/')
}

/// Checks that a path stays where it belongs, and that the kernel can take it.
pub(crate) fn check_path(path: &Path) -> Result<(), String> {
    let shown = path.display();
    let bytes = path.as_os_str().as_bytes();
    if bytes.is_empty() {
        return Err("a path is empty".into());
    }
    if bytes.contains(&0) {
        return Err(format!("the path {shown:?} contains a NUL character"));
    }
    if bytes.len() > PATH_MAX {
        let len = bytes.len();
        return Err(format!(
            "a path is {len} bytes long, more than the {PATH_MAX} that the kernel takes"
        ));
    }
    if bytes[0] == b'/' {
        return Err(format!("the path {shown} is absolute"));
    }
    for component in bytes.split(|&byte| byte == b'/') {
        match component {
            b".." => return Err(format!("the path {shown} leads upwards with `..`")),
            b"" | b"." => return Err(format!("the path {shown} has an empty or `.` component")),
            name if name.len() > NAME_MAX => {
                let name = String::from_utf8_lossy(name);
                return Err(format!("the name {name:?} is longer than {NAME_MAX} bytes"));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Two entries for one path have to agree, and nothing stands below a file.
fn reject_contradictions(files: &mut Vec<PackageEntry>) -> Result<(), PackageError> {
    for pair in files.windows(2) {
        let (a, b) = (&pair[0], &pair[1]);
        if a.path == b.path && !a.body.agrees(&b.body) {
            return Err(PackageError::Invalid(format!(
                "two entries for {} disagree",
                a.path.display()
            )));
        }
    }
    files.dedup_by(|b, a| a.path == b.path);
    // Sorted by components, so what is below a path follows it directly.
    let mut above: Option<&PackageEntry> = None;
    for file in files.iter() {
        if let Some(entry) = above
            && is_at_or_below(
                file.path.as_os_str().as_bytes(),
                entry.path.as_os_str().as_bytes(),
            )
        {
            let (below, above) = (file.path.display(), entry.path.display());
            return Err(PackageError::Invalid(format!(
                "{below} is below {above}, which is no directory"
            )));
        }
        if !matches!(file.body, EntryBody::Directory) {
            above = Some(file);
        }
    }
    Ok(())
}

impl EntryBody {
    fn agrees(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Directory, Self::Directory) | (Self::Stored, Self::Stored) => true,
            (Self::Symlink(a), Self::Symlink(b)) => a == b,
            (
                Self::Patched {
                    mode: a_mode,
                    placeholder: a,
                    ..
                },
                Self::Patched {
                    mode: b_mode,
                    placeholder: b,
                    ..
                },
            ) => a_mode == b_mode && a == b,
            _ => false,
        }
    }
}

/// Looks at the files of one package.
struct EntryReader<'f> {
    folder: &'f PackageFolder,
    /// Open directories, each below the one before it.
    directories: Vec<(Vec<u8>, OwnedFd)>,
    placeholders: Vec<Arc<str>>,
}

impl EntryReader<'_> {
    fn read(&mut self, entry: ListedPath) -> Result<PackageEntry, PackageError> {
        check_path(&entry.path).map_err(PackageError::Invalid)?;
        let path = entry.path;
        let shown = path.display();
        let mut status = match self.status(&path) {
            Ok(status) => status,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(PackageError::Damaged(format!("{shown} is missing")));
            }
            Err(error) => return Err(damaged(&shown.to_string())(error)),
        };
        if let Some(size) = entry.size_in_bytes
            && status.kind == FileType::RegularFile
            && size != status.size
        {
            return Err(PackageError::Damaged(format!(
                "{shown} should be {size} bytes long but is {}",
                status.size
            )));
        }
        let mut resolved = None;
        let body = match (entry.path_type, status.kind, entry.placeholder) {
            // A symlink that must not be linked is installed as a copy of what it leads to.
            (PathType::SoftLink | PathType::HardLink, FileType::Symlink, None) if entry.no_link => {
                let file = self.resolve(&path)?;
                let target = self
                    .folder
                    .status(&file)
                    .map_err(damaged("a symlink's target"))?;
                if target.kind != FileType::RegularFile {
                    return Err(PackageError::Damaged(format!("{shown} leads to no file")));
                }
                let link = std::mem::replace(&mut status, target);
                if entry.path_type == PathType::HardLink {
                    status.mtime = link.mtime;
                }
                resolved = Some(file);
                EntryBody::Stored
            }
            (PathType::Directory, FileType::Directory, None) => EntryBody::Directory,
            (PathType::HardLink, FileType::RegularFile, Some(prefix)) => {
                if prefix.placeholder.is_empty() || prefix.placeholder.contains('\0') {
                    return Err(PackageError::Invalid(format!(
                        "the prefix placeholder of {shown} is empty"
                    )));
                }
                if prefix.placeholder.len() as u64 > status.size {
                    return Err(PackageError::Invalid(format!(
                        "the prefix placeholder of {shown} is longer than the file"
                    )));
                }
                EntryBody::Patched {
                    mode: prefix.file_mode,
                    placeholder: self.placeholder(&prefix.placeholder),
                    // Offsets that rattler cannot make sense of are left aside, as in its installer.
                    offsets: prefix
                        .experimental_offsets
                        .and_then(Result::ok)
                        .map(Box::new),
                }
            }
            (PathType::HardLink, FileType::RegularFile, None) => EntryBody::Stored,
            // A hard link to a symlink is that symlink.
            (PathType::SoftLink | PathType::HardLink, FileType::Symlink, None) => {
                let target = self
                    .read_link(&path)
                    .map_err(|error| PackageError::Damaged(format!("{shown}: {error}")))?;
                EntryBody::Symlink(target)
            }
            (_, FileType::Symlink, Some(_)) => {
                return Err(PackageError::Invalid(format!(
                    "{shown} is a symlink with a prefix placeholder"
                )));
            }
            (expected, found, _) => {
                let expected = match expected {
                    PathType::HardLink => "a file",
                    PathType::SoftLink => "a symlink",
                    PathType::Directory => "a directory",
                };
                let found = match found {
                    FileType::RegularFile => "a file",
                    FileType::Directory => "a directory",
                    FileType::Symlink => "a symlink",
                    _ => "a special file",
                };
                return Err(PackageError::Damaged(format!(
                    "{shown} should be {expected} but is {found}"
                )));
            }
        };
        let created = entry.no_link || !matches!(body, EntryBody::Stored);
        Ok(PackageEntry {
            resolved,
            body,
            mode: status.mode,
            size: status.size,
            mtime: status.mtime,
            owner: (!created).then_some(status.owner),
            identity: status.identity,
            path,
        })
    }

    fn status(&mut self, path: &Path) -> io::Result<FileStatus> {
        let (directory, name) = self.parent(path)?;
        FileStatus::at(directory.as_fd(), name)
    }

    fn read_link(&mut self, path: &Path) -> io::Result<Box<[u8]>> {
        let (directory, name) = self.parent(path)?;
        let target = rustix::fs::readlinkat(directory, name, Vec::new())?;
        Ok(target.into_bytes().into_boxed_slice())
    }

    /// Where a symlink leads, as a path below the package's folder.
    fn resolve(&self, path: &Path) -> Result<Box<[u8]>, PackageError> {
        let shown = path.display();
        let folder = self
            .folder
            .path
            .canonicalize()
            .map_err(damaged("its folder"))?;
        let target = folder
            .join(path)
            .canonicalize()
            .map_err(|error| PackageError::Damaged(format!("{shown} leads nowhere: {error}")))?;
        let below = target.strip_prefix(&folder).map_err(|_| {
            PackageError::Invalid(format!(
                "{shown} should be copied, but leads out of the package"
            ))
        })?;
        Ok(below.as_os_str().as_bytes().into())
    }

    /// The directory that holds `path`, opened once, and the name in it.
    fn parent<'p>(&mut self, path: &'p Path) -> io::Result<(&OwnedFd, &'p [u8])> {
        let (parent, name) = split(path);
        while let Some((open, _)) = self.directories.last()
            && !is_at_or_below(parent, open)
        {
            self.directories.pop();
        }
        if self
            .directories
            .last()
            .is_none_or(|(open, _)| open != parent)
        {
            self.directories
                .push((parent.to_vec(), self.folder.directory(parent)?));
        }
        match self.directories.last() {
            Some((_, directory)) => Ok((directory, name)),
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }

    fn placeholder(&mut self, placeholder: &str) -> Arc<str> {
        if let Some(known) = self
            .placeholders
            .iter()
            .find(|known| &***known == placeholder)
        {
            return known.clone();
        }
        let shared: Arc<str> = placeholder.into();
        self.placeholders.push(shared.clone());
        shared
    }
}
