//! What look-ups, listings and reads of an environment give.

use std::{
    fs::File,
    io,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
};

use rattler_digest::Sha256Hash;
use rustix::{fs::FileType, io::Errno};

use super::{
    FileStatus, GeneratedFile, PackageFolder, PackageSupplier, PatchError, ReadSink,
    bounded_cache::BoundedCache, find_edits, prefix::Edits, sink::Sha256Sink,
};
use crate::tree::{Body, Node, NodeId, ROOT, Source, Timestamp, Tree};

/// An inode number. They are the same each time the same layout is mounted.
pub type Inode = u64;

/// The root directory's inode number.
pub const ROOT_INODE: Inode = 1;

/// How many bytes of edit lists are remembered. One for a file with a placeholder takes some hundred bytes.
const EDITS_BOUND: usize = 8 << 20;

/// How many bytes of records are remembered between the look-up that asks for the size and the read.
const RECORDS_BOUND: usize = 4 << 20;

/// How much is read at a time where nobody says.
const READ_SIZE: usize = 256 << 10;

/// What kind of file a node is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileKind {
    /// A directory.
    Directory,
    /// A regular file.
    Regular,
    /// A symlink.
    Symlink,
}

/// What `stat` gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attributes {
    /// Inode number.
    pub inode: Inode,
    /// Kind of file.
    pub kind: FileKind,
    /// Permission bits, with set-user-id, set-group-id and sticky.
    pub mode: u16,
    /// Size in bytes.
    pub size: u64,
    /// Number of links.
    pub links: u32,
    /// Owner's user id.
    pub uid: u32,
    /// Owner's group id.
    pub gid: u32,
    /// Date of the last change of the contents.
    pub mtime: Timestamp,
}

/// One entry of a listing.
#[derive(Debug, Clone, Copy)]
pub struct DirectoryEntry<'n> {
    /// Name, one path component; `.` and `..` come first.
    pub name: &'n [u8],
    /// Inode number.
    pub inode: Inode,
    /// Kind of file.
    pub kind: FileKind,
    /// Where a listing goes on after this entry.
    pub cookie: u64,
    /// What a look-up of the name would give, where that is known without looking at the file's bytes.
    pub attributes: Option<Attributes>,
}

/// Cookies of the entries that every directory has.
const DOT: u64 = 1;
const DOT_DOT: u64 = 2;

/// The file system of an environment.
pub struct EnvironmentFs {
    tree: Tree,
    supplier: Arc<dyn PackageSupplier>,
    edits: BoundedCache<Edits>,
    records: BoundedCache<[u8]>,
    warned: AtomicBool,
    before_blocking: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

impl EnvironmentFs {
    /// A file system over `tree`; `supplier` is asked when a package's folder is no longer what it was.
    pub fn new(tree: Tree, supplier: Arc<dyn PackageSupplier>) -> Self {
        Self {
            tree,
            supplier,
            edits: BoundedCache::new(EDITS_BOUND),
            records: BoundedCache::new(RECORDS_BOUND),
            warned: AtomicBool::new(false),
            before_blocking: OnceLock::new(),
        }
    }

    /// Has `call` called by each thread that is about to wait for a package to be fetched again, so that a transport can
    /// have another thread serve in its place. The first call counts.
    pub fn before_blocking(&self, call: impl Fn() + Send + Sync + 'static) {
        let _ = self.before_blocking.set(Box::new(call));
    }

    /// The inode table.
    #[must_use]
    pub fn tree(&self) -> &Tree {
        &self.tree
    }

    /// The attributes of `name` in the directory `parent`; `None` where there is no such name.
    ///
    /// # Errors
    /// `ENOENT` for an unknown inode; `EIO` where the size cannot be settled.
    pub fn lookup(&self, parent: Inode, name: &[u8]) -> io::Result<Option<Attributes>> {
        let (parent, _) = self.node(parent)?;
        match self.tree.child(parent, name) {
            Some(id) => self.settled_attributes(id).map(Some),
            None => Ok(None),
        }
    }

    /// The attributes of an inode.
    ///
    /// # Errors
    /// As [`EnvironmentFs::lookup`].
    pub fn attributes(&self, inode: Inode) -> io::Result<Attributes> {
        let (id, _) = self.node(inode)?;
        self.settled_attributes(id)
    }

    /// Lists a directory from `cookie` on, 0 for its beginning, until `take` returns false. The entry for which it does
    /// so counts as not taken.
    ///
    /// # Errors
    /// `ENOENT` for an unknown inode, `ENOTDIR` for a file; whatever `take` reports.
    pub fn list(
        &self,
        inode: Inode,
        cookie: u64,
        take: &mut dyn FnMut(DirectoryEntry<'_>) -> io::Result<bool>,
    ) -> io::Result<()> {
        let (id, node) = self.node(inode)?;
        if !node.is_directory() {
            return Err(Errno::NOTDIR.into());
        }
        for (own, name, target) in [
            (DOT, b".".as_slice(), id),
            (DOT_DOT, b"..".as_slice(), node.parent),
        ] {
            let entry = DirectoryEntry {
                name,
                inode: inode_of(target),
                kind: FileKind::Directory,
                cookie: own,
                attributes: None,
            };
            if cookie < own && !take(entry)? {
                return Ok(());
            }
        }
        // A child's cookie is its own number, moved past those two.
        let children = self.tree.children(node);
        let next = u32::try_from(cookie.saturating_sub(DOT_DOT)).map_or(children.end, |last| {
            last.saturating_add(1).clamp(children.start, children.end)
        });
        for child_id in next..children.end {
            let child = &self.tree.node(child_id).ok_or(Errno::IO)?;
            let entry = DirectoryEntry {
                name: self.tree.name(child),
                inode: inode_of(child_id),
                kind: kind_of(child),
                cookie: u64::from(child_id) + DOT_DOT,
                attributes: child
                    .size()
                    .map(|size| self.attributes_of(child_id, child, size)),
            };
            if !take(entry)? {
                return Ok(());
            }
        }
        Ok(())
    }

    /// A symlink's target.
    ///
    /// # Errors
    /// `EINVAL` for anything but a symlink.
    pub fn read_link(&self, inode: Inode) -> io::Result<&[u8]> {
        let (_, node) = self.node(inode)?;
        self.tree.target(node).ok_or_else(|| Errno::INVAL.into())
    }

    /// Reads up to `len` bytes of a file from `offset` on into `sink`. Returns how many; fewer only at the end.
    ///
    /// # Errors
    /// `EIO` where the bytes cannot be had as the environment promised them, `EISDIR` for a directory.
    pub fn read(
        &self,
        inode: Inode,
        offset: u64,
        len: usize,
        sink: &mut dyn ReadSink,
    ) -> io::Result<usize> {
        let (id, _) = self.node(inode)?;
        self.read_node(id, offset, len, sink)
    }

    /// Number of nodes, for `statfs`.
    #[must_use]
    pub fn inode_count(&self) -> u64 {
        self.tree.len() as u64
    }

    fn node(&self, inode: Inode) -> io::Result<(NodeId, &Node)> {
        let id = inode
            .checked_sub(ROOT_INODE)
            .and_then(|id| NodeId::try_from(id).ok())
            .ok_or(Errno::NOENT)?;
        Ok((id, self.tree.node(id).ok_or(Errno::NOENT)?))
    }

    fn settled_attributes(&self, id: NodeId) -> io::Result<Attributes> {
        let size = self.size(id)?;
        let node = self.tree.node(id).ok_or(Errno::NOENT)?;
        Ok(self.attributes_of(id, node, size))
    }

    fn attributes_of(&self, id: NodeId, node: &Node, size: u64) -> Attributes {
        let owner = self.tree.owner(node);
        Attributes {
            inode: inode_of(id),
            kind: kind_of(node),
            mode: node.mode,
            size,
            links: match node.body {
                Body::Directory { subdirectories, .. } => 2 + subdirectories,
                _ => 1,
            },
            uid: owner.uid,
            gid: owner.gid,
            mtime: node.mtime,
        }
    }

    /// The size of a node, settled if it was not.
    pub(super) fn size(&self, id: NodeId) -> io::Result<u64> {
        let node = self.tree.node(id).ok_or(Errno::NOENT)?;
        if let Some(size) = node.size() {
            return Ok(size);
        }
        let size = match node.body {
            Body::Patched { patched, .. } => self.edits(id, patched)?.size(),
            Body::Generated { generated } => self.generated(generated)?.len() as u64,
            _ => return Err(Errno::IO.into()),
        };
        node.settle_size(size);
        Ok(size)
    }

    fn read_node(
        &self,
        id: NodeId,
        offset: u64,
        len: usize,
        sink: &mut dyn ReadSink,
    ) -> io::Result<usize> {
        let node = self.tree.node(id).ok_or(Errno::NOENT)?;
        match node.body {
            Body::Stored { .. } => {
                let size = self.size(id)?;
                let len = size.saturating_sub(offset).min(len as u64) as usize;
                if len > 0 {
                    let mut file = self.open(id, node)?;
                    sink.copy_from(&mut file, offset, len)
                        .map_err(|error| self.unreadable(id, &error))?;
                }
                Ok(len)
            }
            Body::Patched { patched, .. } => {
                let edits = self.edits(id, patched)?;
                let mut file = self.open(id, node)?;
                edits
                    .read(&mut file, offset, len, sink)
                    .map_err(|error| self.unreadable(id, &error))
            }
            Body::Generated { generated } => {
                let bytes = self.generated(generated)?;
                let start =
                    usize::try_from(offset).map_or(bytes.len(), |offset| offset.min(bytes.len()));
                let end = bytes.len().min(start.saturating_add(len));
                sink.put(&bytes[start..end])?;
                Ok(end - start)
            }
            Body::Directory { .. } => Err(Errno::ISDIR.into()),
            Body::Symlink { .. } => Err(Errno::INVAL.into()),
        }
    }

    /// Reads the whole of a file.
    pub(super) fn read_all(&self, id: NodeId, sink: &mut dyn ReadSink) -> io::Result<()> {
        let mut offset = 0;
        loop {
            match self.read_node(id, offset, READ_SIZE, sink)? {
                0 => return Ok(()),
                read => offset += read as u64,
            }
        }
    }

    /// The hash of a patched file, computed once.
    pub(super) fn patched_hash(&self, id: NodeId) -> io::Result<Sha256Hash> {
        let Some(Node {
            body: Body::Patched { patched, .. },
            ..
        }) = self.tree.node(id)
        else {
            return Err(Errno::INVAL.into());
        };
        let file = &self.tree.patched[*patched as usize];
        if let Some(hash) = file.sha256.get() {
            return Ok(*hash);
        }
        let mut sink = Sha256Sink::default();
        self.read_all(id, &mut sink)?;
        Ok(*file.sha256.get_or_init(|| sink.finish()))
    }

    /// What prefix replacement changes in a file.
    fn edits(&self, id: NodeId, patched: u32) -> io::Result<Arc<Edits>> {
        if let Some(edits) = self.edits.get(patched) {
            return Ok(edits);
        }
        let node = self.tree.node(id).ok_or(Errno::NOENT)?;
        let source = self.open(id, node)?;
        let file = &self.tree.patched[patched as usize];
        let environment = &self.tree.environment;
        let edits = find_edits(&source, file, &environment.prefix, environment.platform).map_err(
            |error| match error {
                PatchError::Io(error) => self.unreadable(id, &error),
                PatchError::PrefixTooLong => {
                    self.report(id, &error);
                    Errno::IO.into()
                }
            },
        )?;
        let edits = Arc::new(edits);
        self.edits.insert(patched, edits.clone(), edits.weight());
        Ok(edits)
    }

    fn generated(&self, number: u32) -> io::Result<Arc<[u8]>> {
        if let Some(bytes) = self.records.get(number) {
            return Ok(bytes);
        }
        let bytes: Arc<[u8]> = match &self.tree.generated[number as usize] {
            GeneratedFile::Bytes(bytes) | GeneratedFile::EntryPoint(bytes) => return Ok(bytes.clone()),
            GeneratedFile::Record(package) => self
                .record(*package)
                .inspect_err(|error| {
                    let record = &self.tree.packages[*package as usize].record;
                    tracing::error!(package = %record.identifier, %error, "the conda-meta record cannot be made");
                })
                .map_err(|error| match Errno::from_io_error(&error) {
                    Some(Errno::MFILE | Errno::NFILE | Errno::NOMEM) => error,
                    // Whatever its package lacks, the record itself is there.
                    _ => Errno::IO.into(),
                })?
                .into(),
        };
        self.records.insert(number, bytes.clone(), bytes.len());
        Ok(bytes)
    }

    /// Opens the package file behind a node, and makes sure that it is the one that the layout was made from.
    fn open(&self, id: NodeId, node: &Node) -> io::Result<File> {
        let source = self.tree.source(node).ok_or(Errno::INVAL)?;
        let package = &self.tree.packages[source.package as usize];
        let folder = package.folder();
        match self.open_in(&folder, node, source) {
            Err(error) if changed(&error) => {
                self.recover(source.package, &folder)?;
                self.open_in(&package.folder(), node, source)
                    .map_err(|error| {
                        // The package came back, but not this file as it was.
                        package.give_up();
                        self.unreadable(id, &error)
                    })
            }
            Err(error) => Err(self.unreadable(id, &error)),
            Ok(file) => Ok(file),
        }
    }

    fn open_in(&self, folder: &PackageFolder, node: &Node, source: &Source) -> io::Result<File> {
        let file = folder.file(&source.file(self.tree.name(node)))?;
        if FileStatus::of(&file)?.identity == node.identity() {
            Ok(file)
        } else {
            Err(Errno::STALE.into())
        }
    }

    /// Fetches a package again, and takes over those of its files that are what the environment promised.
    pub(super) fn recover(&self, number: u32, seen: &Arc<PackageFolder>) -> io::Result<()> {
        if let Some(call) = self.before_blocking.get() {
            call();
        }
        let package = &self.tree.packages[number as usize];
        let identifier = &package.record.identifier;
        tracing::warn!(package = %identifier, folder = %seen.path.display(), "the package in the cache vanished or changed; fetching it again");
        let adopt = |folder: &PackageFolder| {
            for (node, source) in self.tree.files_of(number) {
                let Ok(status) = folder.status(&source.file(self.tree.name(node))) else {
                    continue;
                };
                let same = match node.body {
                    Body::Patched { patched, .. } => {
                        let file = &self.tree.patched[patched as usize];
                        status.size == file.source_size && status.mtime == file.source_mtime
                    }
                    _ => Some(status.size) == node.size() && status.mtime == node.mtime,
                };
                if same && status.kind == FileType::RegularFile && status.mode == node.mode {
                    node.set_identity(status.identity);
                }
            }
            *package.metadata.lock() = folder.paths_identity();
        };
        package.recover(seen, &*self.supplier, adopt).map_err(|error| {
            tracing::error!(package = %identifier, %error, "the package cannot be had again: its files give EIO");
            Errno::IO.into()
        })
    }

    /// Logs why a file cannot be read; the caller's error is `EIO`.
    fn unreadable(&self, id: NodeId, error: &io::Error) -> io::Error {
        // Running out of descriptors or memory is no fault of the file's, and passes.
        if let Some(Errno::NFILE | Errno::MFILE | Errno::NOMEM) = Errno::from_io_error(error) {
            if !self.warned.swap(true, Ordering::Relaxed) {
                tracing::warn!(%error, "out of resources");
            }
            return io::Error::from_raw_os_error(error.raw_os_error().unwrap_or(libc::EIO));
        }
        self.report(id, error);
        Errno::IO.into()
    }

    fn report(&self, id: NodeId, error: &dyn std::fmt::Display) {
        let source = self.tree.node(id).and_then(|node| self.tree.source(node));
        let package = source.map(|source| {
            let record = &self.tree.packages[source.package as usize].record;
            record.identifier.to_string()
        });
        let package = package.unwrap_or_default();
        tracing::error!(path = %self.tree.path(id).display(), %package, %error, "the file cannot be read");
    }
}

/// Whether an error says that a package's folder is no longer what it was.
pub(super) fn changed(error: &io::Error) -> bool {
    matches!(
        Errno::from_io_error(error),
        Some(
            Errno::NOENT
                | Errno::NOTDIR
                | Errno::LOOP
                | Errno::XDEV
                | Errno::STALE
                | Errno::ISDIR
                | Errno::NXIO
        )
    ) || error.kind() == io::ErrorKind::NotFound
}

fn inode_of(id: NodeId) -> Inode {
    u64::from(id - ROOT) + ROOT_INODE
}

fn kind_of(node: &Node) -> FileKind {
    match node.body {
        Body::Directory { .. } => FileKind::Directory,
        Body::Symlink { .. } => FileKind::Symlink,
        _ => FileKind::Regular,
    }
}
