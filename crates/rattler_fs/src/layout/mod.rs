//! Which paths an environment has, and where each one's bytes come from.
//!
//! [`lock_file`] says which packages, [`fetch`] brings them into the cache, and [`build`] merges them into a [`Tree`]
//! as rattler's installer would have merged them into a folder. Where several packages own a path, the one that comes
//! last in rattler's topological order has it; the others keep their file below `__clobbers__/<package>/`.

pub mod fetch;
pub mod lock_file;
mod package;
mod paths;

use std::{
    borrow::Cow,
    ffi::OsStr,
    fs,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
    time::{SystemTime, UNIX_EPOCH},
};

use rattler::install::{PythonInfo, python_entry_point_template};
use rattler_conda_types::{PackageRecord, RepoDataRecord, Subdir, package::FileMode};
use rayon::prelude::*;

use crate::{
    content::{
        Environment, GeneratedFile, Package, PatchError, PatchedFile, clobber_path, find_edits,
    },
    tree::{NewBody, NewNode, NodeId, Owner, ROOT, Timestamp, Tree, TreeBuilder},
};
use fetch::CachedPackage;
use package::{EntryBody, PackageContents, PackageEntry, PackageError, check_path, split};

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
    /// Name of the package's archive.
    pub package: String,
    /// What is wrong with it.
    pub reason: String,
}

/// Why a layout cannot be built.
#[derive(Debug, thiserror::Error)]
pub enum LayoutError {
    /// Packages that are incomplete or damaged in the cache; fetching them again may help.
    #[error("damaged in the package cache: {}", .0.iter().map(|damaged| format!("{}: {}", damaged.package, damaged.reason)).collect::<Vec<_>>().join("; "))]
    Damaged(Vec<DamagedPackage>),

    /// A package that no installer should accept.
    #[error("the package {package} is invalid: {reason}")]
    InvalidPackage {
        /// Name of the package's archive.
        package: String,
        /// What is wrong with it.
        reason: String,
    },

    /// The system ran out of something, descriptors most likely: each package takes one.
    #[error("the package {package} cannot be read")]
    System {
        /// Name of the package's archive.
        package: String,
        /// What the system said.
        source: std::io::Error,
    },

    /// A `noarch: python` package in an environment without Python.
    #[error("the package {package} is `noarch: python`, but the environment has no python")]
    MissingPython {
        /// Name of the package's archive.
        package: String,
    },

    /// The version of the environment's Python is no version of Python.
    #[error("the version of the environment's python is invalid")]
    InvalidPython(#[source] Box<dyn std::error::Error + Send + Sync>),

    /// Two packages of one name.
    #[error("the environment has two packages called {0}")]
    DuplicatePackage(String),

    /// The prefix is not UTF-8, or not absolute.
    #[error("the path of the environment, {}, is not an absolute path in UTF-8", .0.display())]
    UnusablePrefix(PathBuf),

    /// The prefix does not fit into a binary.
    #[error(
        "the path of the environment is too long for the package {package}: {} has room for {room} bytes, {} has {}",
        file.display(), prefix, prefix.len()
    )]
    PrefixTooLong {
        /// Name of the package's archive.
        package: String,
        /// The binary that holds the placeholder, relative to the prefix.
        file: PathBuf,
        /// Length of the placeholder in bytes.
        room: usize,
        /// The path of the environment.
        prefix: String,
    },
}

/// Builds the environment's tree from packages in the cache.
///
/// # Errors
/// See [`LayoutError`].
pub fn build(packages: Vec<CachedPackage>, options: &LayoutOptions) -> Result<Tree, LayoutError> {
    let prefix = options
        .prefix
        .to_str()
        .filter(|_| options.prefix.is_absolute())
        .ok_or_else(|| LayoutError::UnusablePrefix(options.prefix.clone()))?;
    let order = priority_order(&packages)?;
    let python = packages
        .iter()
        .map(|package| &package.record.package_record)
        .find(|record| record.name.as_normalized() == "python")
        .map(|record| PythonInfo::from_python_record(record, options.platform))
        .transpose()
        .map_err(|error| LayoutError::InvalidPython(Box::new(error)))?;
    let environment = Environment {
        prefix: prefix.to_owned(),
        platform: options.platform,
        python,
        owner: Owner {
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
        },
        created: now(),
    };

    let contents = read_packages(&packages)?;
    let mut merge = Merge::new(environment);
    let mut merged: Vec<Option<Package>> = Vec::new();
    merged.resize_with(packages.len(), || None);
    let mut contents: Vec<Option<PackageContents>> = contents.into_iter().map(Some).collect();
    // What belongs to the environment itself is never a package's to decide.
    merge.add_environment_files(&packages, options)?;
    for number in order {
        let (Some(contents), record) = (contents[number].take(), packages[number].record.clone())
        else {
            continue;
        };
        merged[number] = Some(merge.add_package(number as u32, record, contents)?);
    }
    Ok(merge
        .builder
        .finish(merged.into_iter().flatten().collect(), merge.environment))
}

/// Positions of the packages, those that win a path first.
fn priority_order(packages: &[CachedPackage]) -> Result<Vec<usize>, LayoutError> {
    #[derive(Clone)]
    struct Numbered<'p>(usize, &'p RepoDataRecord);
    impl AsRef<PackageRecord> for Numbered<'_> {
        fn as_ref(&self) -> &PackageRecord {
            &self.1.package_record
        }
    }

    let mut names: Vec<&str> = packages
        .iter()
        .map(|package| package.record.package_record.name.as_normalized())
        .collect();
    names.sort_unstable();
    if let Some(pair) = names.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(LayoutError::DuplicatePackage(pair[0].to_owned()));
    }
    let numbered = packages
        .iter()
        .enumerate()
        .map(|(number, package)| Numbered(number, &package.record))
        .collect();
    let sorted: Vec<Numbered<'_>> = PackageRecord::sort_topologically(numbered);
    Ok(sorted
        .into_iter()
        .rev()
        .map(|numbered| numbered.0)
        .collect())
}

/// Looks at all packages, in parallel.
fn read_packages(packages: &[CachedPackage]) -> Result<Vec<PackageContents>, LayoutError> {
    let results: Vec<_> = packages.par_iter().map(package::read).collect();
    let mut contents = Vec::with_capacity(results.len());
    let mut damaged = Vec::new();
    for (index, result) in results.into_iter().enumerate() {
        let package = || packages[index].record.identifier.to_string();
        match result {
            Ok(content) => contents.push(content),
            Err(PackageError::Damaged(reason)) => {
                damaged.push(DamagedPackage {
                    index,
                    package: package(),
                    reason,
                });
            }
            Err(PackageError::System(source)) => {
                return Err(LayoutError::System {
                    package: package(),
                    source,
                });
            }
            Err(PackageError::Invalid(reason)) => {
                return Err(LayoutError::InvalidPackage {
                    package: package(),
                    reason,
                });
            }
        }
    }
    if damaged.is_empty() {
        Ok(contents)
    } else {
        Err(LayoutError::Damaged(damaged))
    }
}

/// Where a path of a package stands in the environment; `python` for `noarch: python` packages only.
pub(crate) fn path_in_environment<'p>(
    path: &'p Path,
    python: Option<&PythonInfo>,
) -> Cow<'p, Path> {
    match python {
        // Collected anew, since joining nothing leaves a slash at the end.
        Some(python) => match python.get_python_noarch_target_path(path) {
            Cow::Owned(path) => Cow::Owned(path.components().collect()),
            path => path,
        },
        None => Cow::Borrowed(path),
    }
}

/// The tree while packages are added, those first that win a path.
struct Merge {
    builder: TreeBuilder,
    environment: Environment,
    /// Permission bits of what an installation creates.
    directory_mode: u16,
    file_mode: u16,
}

/// Where the files of one of a package's directories go.
struct TargetFolder {
    /// The directory's path in the package.
    stored_at: Vec<u8>,
    /// The number that the tree has for it.
    source: u32,
    /// Where its files stand in the environment.
    path: PathBuf,
    state: FolderState,
}

/// What is known of a directory of the environment.
#[derive(Clone, Copy)]
enum FolderState {
    There(NodeId),
    Missing,
    /// Something else stands in the way.
    Blocked(Conflict),
}

/// What stands in the way of a new path.
#[derive(Clone, Copy)]
enum Conflict {
    /// A file or symlink of a package, or a directory that one needs.
    Package,
    /// A node that is no package's file, so that the installer keeps no copy of what it replaces.
    Generated,
}

impl Merge {
    fn new(environment: Environment) -> Self {
        let umask = umask();
        let mut merge = Self {
            builder: TreeBuilder::new(NewNode {
                body: NewBody::Directory,
                mode: 0o777 & !umask,
                mtime: environment.created,
                owner: environment.owner,
                size: Some(DIRECTORY_SIZE),
                identity: 0,
            }),
            environment,
            directory_mode: 0o777 & !umask,
            file_mode: 0o666 & !umask,
        };
        merge.add_directory(ROOT, b"conda-meta");
        merge
    }

    fn add_environment_files(
        &mut self,
        packages: &[CachedPackage],
        options: &LayoutOptions,
    ) -> Result<(), LayoutError> {
        for (number, package) in packages.iter().enumerate() {
            let name = record_name(&package.record);
            let invalid = |reason| LayoutError::InvalidPackage {
                package: package.record.identifier.to_string(),
                reason,
            };
            if name.contains('/') {
                return Err(invalid(format!("its record would be called {name}")));
            }
            let path = Path::new("conda-meta").join(&name);
            check_path(&path).map_err(invalid)?;
            // Written through a private temporary file by the installer.
            let node = self.created(
                NewBody::Generated(GeneratedFile::Record(number as u32)),
                0o600,
                None,
            );
            self.place(&path, node)
                .map_err(|_| LayoutError::DuplicatePackage(name))?;
        }
        for (path, bytes) in &options.extra_files {
            let size = bytes.len() as u64;
            let body = NewBody::Generated(GeneratedFile::Bytes(bytes.as_slice().into()));
            let node = self.created(body, self.file_mode, Some(size));
            let placed =
                check_path(Path::new(path)).is_ok() && self.place(Path::new(path), node).is_ok();
            assert!(placed, "extra files are the program's own, and distinct");
        }
        Ok(())
    }

    fn add_package(
        &mut self,
        number: u32,
        record: RepoDataRecord,
        contents: PackageContents,
    ) -> Result<Package, LayoutError> {
        let archive = record.identifier.to_string();
        let invalid = |reason| LayoutError::InvalidPackage {
            package: archive.clone(),
            reason,
        };
        let package_name = record.package_record.name.as_normalized().to_owned();
        let python = match (contents.noarch_python, &self.environment.python) {
            (false, _) => None,
            (true, Some(python)) => Some(python.clone()),
            (true, None) => return Err(LayoutError::MissingPython { package: archive }),
        };
        let patched_time = contents
            .modification_time
            .unwrap_or(self.environment.created);

        let mut clobbered = Vec::new();
        let mut folder: Option<TargetFolder> = None;
        for entry in contents.files {
            if let EntryBody::Directory = entry.body {
                // An explicit directory fits wherever a directory is or can be.
                let path = path_in_environment(&entry.path, python.as_ref());
                check_path(&path).map_err(invalid)?;
                let _ = self.directory(&path);
                continue;
            }
            if let EntryBody::Patched {
                mode: FileMode::Binary,
                placeholder,
                ..
            } = &entry.body
                && self.environment.prefix.len() > placeholder.len()
            {
                self.check_room(&archive, &contents.folder, &entry, placeholder)?;
            }
            // Files come grouped by directory, so most of the way is the same as for the file before.
            let (parent, name) = split(&entry.path);
            let name = name.to_vec();
            if folder
                .as_ref()
                .is_none_or(|folder| folder.stored_at != parent)
            {
                let stored_at = parent.to_vec();
                let path =
                    path_in_environment(Path::new(OsStr::from_bytes(parent)), python.as_ref());
                folder = Some(TargetFolder {
                    state: self.folder_state(&path).map_err(invalid)?,
                    source: self.builder.source(number, parent, false),
                    path: path.into_owned(),
                    stored_at,
                });
            }
            let Some(folder) = &mut folder else {
                continue;
            };
            let node = self.package_node(number, folder.source, entry, patched_time);
            match self.conflict(folder.state, &name) {
                None => {
                    let id = match folder.state {
                        FolderState::There(id) => id,
                        _ => self
                            .directory(&folder.path)
                            .map_err(|_| invalid("its paths contradict".into()))?,
                    };
                    folder.state = FolderState::There(id);
                    self.builder.add(id, &name, node);
                }
                Some(Conflict::Generated) => {}
                Some(Conflict::Package) => {
                    let path = folder.path.join(OsStr::from_bytes(&name));
                    let kept = clobber_path(&package_name, &path);
                    check_path(&kept).map_err(invalid)?;
                    self.place(&kept, node)
                        .map_err(|_| invalid(format!("it has files below {}", kept.display())))?;
                    clobbered.push(path.into_os_string().into_string().map_err(|path| {
                        invalid(format!("the path {} is not UTF-8", path.display()))
                    })?);
                }
            }
        }

        if let Some(python) = &python {
            for entry_point in &contents.entry_points {
                let script = python_entry_point_template(
                    &self.environment.prefix,
                    false,
                    entry_point,
                    python,
                );
                let path = python.bin_dir.join(&entry_point.command);
                check_path(&path).map_err(invalid)?;
                let size = script.len() as u64;
                let body =
                    NewBody::Generated(GeneratedFile::EntryPoint(script.into_bytes().into()));
                let node = self.created(body, 0o775, Some(size));
                self.place_entry_point(number, &path, node)
                    .map_err(invalid)?;
            }
        }

        Ok(Package::new(
            record,
            contents.noarch_python,
            clobbered,
            contents.metadata_identity,
            contents.folder,
        ))
    }

    /// Entry points replace the package's own file, and give way to what came before.
    fn place_entry_point(&mut self, number: u32, path: &Path, node: NewNode) -> Result<(), String> {
        let (parent, name) = split(path);
        let state = self.folder_state(Path::new(OsStr::from_bytes(parent)))?;
        let FolderState::There(parent) = state else {
            if let FolderState::Missing = state {
                let _ = self.place(path, node);
            }
            return Ok(());
        };
        match self.builder.child(parent, name) {
            None => drop(self.builder.add(parent, name, node)),
            Some(id) if self.builder.is_directory(id) => {
                return Err(format!("its entry point {} is a directory", path.display()));
            }
            Some(id) if self.builder.package_of(id) == Some(number) => {
                self.builder.replace(id, node)
            }
            Some(_) => {}
        }
        Ok(())
    }

    /// Refuses a prefix that is longer than a placeholder which a binary really holds.
    fn check_room(
        &self,
        archive: &str,
        folder: &crate::content::PackageFolder,
        entry: &PackageEntry,
        placeholder: &Arc<str>,
    ) -> Result<(), LayoutError> {
        let file = PatchedFile {
            mode: FileMode::Binary,
            placeholder: placeholder.clone(),
            offsets: None,
            source_size: entry.size,
            source_mtime: entry.mtime,
            sha256: OnceLock::new(),
        };
        let searched = folder
            .file(entry.path.as_os_str().as_bytes())
            .map_err(PatchError::Io)
            .and_then(|source| {
                find_edits(
                    &source,
                    &file,
                    &self.environment.prefix,
                    self.environment.platform,
                )
            });
        match searched {
            Err(PatchError::PrefixTooLong) => Err(LayoutError::PrefixTooLong {
                package: archive.to_owned(),
                file: entry.path.clone(),
                room: placeholder.len(),
                prefix: self.environment.prefix.clone(),
            }),
            // What cannot be read now gives EIO when it is.
            Ok(_) | Err(PatchError::Io(_)) => Ok(()),
        }
    }

    /// A node for a package's file, which is in the folder `source` under its own name unless it says otherwise.
    fn package_node(
        &mut self,
        number: u32,
        source: u32,
        entry: PackageEntry,
        patched_time: Timestamp,
    ) -> NewNode {
        let owner = entry.owner.unwrap_or(self.environment.owner);
        let source = match &entry.resolved {
            Some(file) => self.builder.source(number, file, true),
            None => source,
        };
        match entry.body {
            EntryBody::Directory => unreachable!("directories are placed on their own"),
            EntryBody::Symlink(target) => NewNode {
                size: Some(target.len() as u64),
                body: NewBody::Symlink(target),
                mode: 0o777,
                mtime: entry.mtime,
                owner,
                identity: 0,
            },
            EntryBody::Stored => NewNode {
                body: NewBody::Stored { source },
                mode: entry.mode,
                mtime: entry.mtime,
                owner,
                size: Some(entry.size),
                identity: entry.identity,
            },
            EntryBody::Patched {
                mode,
                placeholder,
                offsets,
            } => NewNode {
                // Replacement in a binary keeps the length.
                size: (mode == FileMode::Binary).then_some(entry.size),
                body: NewBody::Patched {
                    source,
                    file: PatchedFile {
                        mode,
                        placeholder,
                        offsets,
                        source_size: entry.size,
                        source_mtime: entry.mtime,
                        sha256: OnceLock::new(),
                    },
                },
                mode: entry.mode,
                mtime: patched_time,
                owner,
                identity: entry.identity,
            },
        }
    }

    /// A node for what an installation creates.
    fn created(&self, body: NewBody, mode: u16, size: Option<u64>) -> NewNode {
        NewNode {
            body,
            mode,
            mtime: self.environment.created,
            owner: self.environment.owner,
            size,
            identity: 0,
        }
    }

    /// What is known of the directory at `path`, which is checked.
    fn folder_state(&self, path: &Path) -> Result<FolderState, String> {
        let mut parent = ROOT;
        if !path.as_os_str().is_empty() {
            check_path(path)?;
        }
        for component in path.components() {
            match self.builder.child(parent, component.as_os_str().as_bytes()) {
                Some(id) if self.builder.is_directory(id) => parent = id,
                Some(id) => return Ok(FolderState::Blocked(self.conflict_with(id))),
                None => return Ok(FolderState::Missing),
            }
        }
        Ok(FolderState::There(parent))
    }

    /// What keeps a file from standing in a directory under `name`.
    fn conflict(&self, folder: FolderState, name: &[u8]) -> Option<Conflict> {
        match folder {
            FolderState::There(id) => self
                .builder
                .child(id, name)
                .map(|id| self.conflict_with(id)),
            FolderState::Missing => None,
            FolderState::Blocked(conflict) => Some(conflict),
        }
    }

    fn conflict_with(&self, id: NodeId) -> Conflict {
        if self.builder.is_generated(id) {
            Conflict::Generated
        } else {
            Conflict::Package
        }
    }

    /// Adds a node, and the directories above it.
    fn place(&mut self, path: &Path, node: NewNode) -> Result<(), NodeId> {
        let (parent, name) = match (path.parent(), path.file_name()) {
            (Some(parent), Some(name)) => (self.directory(parent)?, name.as_bytes()),
            _ => return Err(ROOT),
        };
        if let Some(id) = self.builder.child(parent, name) {
            return Err(id);
        }
        self.builder.add(parent, name, node);
        Ok(())
    }

    /// The directory at `path`, created where it is missing.
    fn directory(&mut self, path: &Path) -> Result<NodeId, NodeId> {
        let mut parent = ROOT;
        for component in path.components() {
            let name = component.as_os_str().as_bytes();
            parent = match self.builder.child(parent, name) {
                Some(id) if self.builder.is_directory(id) => id,
                Some(id) => return Err(id),
                None => self.add_directory(parent, name),
            };
        }
        Ok(parent)
    }

    fn add_directory(&mut self, parent: NodeId, name: &[u8]) -> NodeId {
        let node = self.created(
            NewBody::Directory,
            self.directory_mode,
            Some(DIRECTORY_SIZE),
        );
        self.builder.add(parent, name, node)
    }
}

/// Size of a directory: a block, as on most disks.
const DIRECTORY_SIZE: u64 = 4096;

/// File name of a package's record, as `PrefixRecord::file_name` has it.
fn record_name(record: &RepoDataRecord) -> String {
    let record = &record.package_record;
    format!(
        "{}-{}-{}.json",
        record.name.as_normalized(),
        record.version,
        record.build
    )
}

fn now() -> Timestamp {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    Timestamp {
        seconds: now.as_secs().cast_signed(),
        nanoseconds: now.subsec_nanos(),
    }
}

/// The process's umask. The system call that reads it also sets it, for all threads; `/proc` only tells.
fn umask() -> u16 {
    const USUAL: u16 = 0o022;
    let Ok(status) = fs::read_to_string("/proc/self/status") else {
        return USUAL;
    };
    status
        .lines()
        .find_map(|line| line.strip_prefix("Umask:"))
        .and_then(|umask| u16::from_str_radix(umask.trim(), 8).ok())
        .unwrap_or(USUAL)
}
