//! The immutable inode table of an environment.
//!
//! Nodes are numbered breadth first with every directory's children side by side and sorted by name, so that inode
//! numbers and listing cookies follow from the layout alone and are the same each time it is mounted. Names are found
//! through one hash table keyed by parent and name: constant time in a directory of any size, without a system call.
//!
//! Two things settle after the tree is built, each once and never back: the size of a file whose bytes are made on the
//! fly, and the identity of a package file that had to be fetched again.

mod builder;

use std::{
    ffi::OsStr,
    hash::Hasher,
    ops::Range,
    os::unix::ffi::OsStrExt,
    path::PathBuf,
    sync::atomic::{AtomicU64, Ordering},
};

use hashbrown::HashTable;
use rustc_hash::FxHasher;

pub(crate) use builder::{NewBody, NewNode, TreeBuilder};

/// Number of a node: its position in the table. The inode number is one more.
pub(crate) type NodeId = u32;

/// The root directory's [`NodeId`].
pub(crate) const ROOT: NodeId = 0;

/// Stands for a size that is not known before the file's bytes have been looked at.
const UNSETTLED: u64 = u64::MAX;

/// A moment as `stat` gives it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Timestamp {
    /// Seconds since 1970-01-01, negative before.
    pub seconds: i64,
    /// Nanoseconds after `seconds`, below 10⁹.
    pub nanoseconds: u32,
}

/// User and group that own a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Owner {
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
}

/// What a node is, and where its bytes come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Body {
    /// A directory; its children are the nodes `first..first + len`.
    Directory {
        first: NodeId,
        len: u32,
        subdirectories: u32,
    },
    /// A symlink; its target is a range of [`Tree::targets`].
    Symlink { target: u32, len: u32 },
    /// A package file as it is stored in [`Tree::sources`]`[source]`.
    Stored { source: u32 },
    /// A package file whose prefix placeholder is replaced: [`Tree::patched`]`[patched]`.
    Patched { source: u32, patched: u32 },
    /// Bytes that no package holds: [`Tree::generated`]`[generated]`.
    Generated { generated: u32 },
}

/// One file, directory or symlink.
#[derive(Debug)]
pub(crate) struct Node {
    size: AtomicU64,
    identity: AtomicU64,
    pub(crate) mtime: Timestamp,
    pub(crate) parent: NodeId,
    name: u32,
    name_len: u8,
    owner: u16,
    /// Permission bits, with set-user-id, set-group-id and sticky.
    pub(crate) mode: u16,
    pub(crate) body: Body,
}

impl Node {
    /// Size in bytes, where it is settled.
    pub(crate) fn size(&self) -> Option<u64> {
        match self.size.load(Ordering::Acquire) {
            UNSETTLED => None,
            size => Some(size),
        }
    }

    /// Settles the size.
    pub(crate) fn settle_size(&self, size: u64) {
        self.size.store(size, Ordering::Release);
    }

    /// Identity of the package file behind this node.
    pub(crate) fn identity(&self) -> u64 {
        self.identity.load(Ordering::Acquire)
    }

    /// Records the identity of a file that was fetched again and found equal.
    pub(crate) fn set_identity(&self, identity: u64) {
        self.identity.store(identity, Ordering::Release);
    }

    /// Whether this is a directory.
    pub(crate) fn is_directory(&self) -> bool {
        matches!(self.body, Body::Directory { .. })
    }
}

/// A folder of a package in the cache that holds files of the environment under their own names, or one such file that
/// has another name there.
#[derive(Debug)]
pub(crate) struct Source {
    /// Index of the package.
    pub(crate) package: u32,
    /// Path below the package's folder; empty for that folder itself.
    pub(crate) path: Box<[u8]>,
    /// Whether `path` is the file itself.
    pub(crate) is_file: bool,
}

impl Source {
    /// Path below the package's folder of the file that the environment calls `name`.
    pub(crate) fn file(&self, name: &[u8]) -> Vec<u8> {
        let mut path = Vec::with_capacity(self.path.len() + 1 + name.len());
        path.extend_from_slice(&self.path);
        if !self.is_file {
            if !path.is_empty() {
                path.push(b'/');
            }
            path.extend_from_slice(name);
        }
        path
    }
}

/// The inode table of an environment; see the [module documentation](self).
#[derive(Debug)]
pub struct Tree {
    nodes: Box<[Node]>,
    names: Box<[u8]>,
    index: HashTable<NodeId>,
    targets: Box<[u8]>,
    owners: Box<[Owner]>,
    pub(crate) sources: Box<[Source]>,
    pub(crate) packages: Vec<crate::content::Package>,
    pub(crate) patched: Box<[crate::content::PatchedFile]>,
    pub(crate) generated: Box<[crate::content::GeneratedFile]>,
    /// What is true for the whole environment.
    pub(crate) environment: crate::content::Environment,
}

impl Tree {
    /// Number of packages.
    #[must_use]
    pub fn package_count(&self) -> usize {
        self.packages.len()
    }

    /// Number of files and symlinks.
    #[must_use]
    pub fn file_count(&self) -> usize {
        self.nodes
            .iter()
            .filter(|node| !node.is_directory())
            .count()
    }

    /// Number of nodes, directories included.
    pub(crate) fn len(&self) -> usize {
        self.nodes.len()
    }

    /// The node with this number.
    pub(crate) fn node(&self, id: NodeId) -> Option<&Node> {
        self.nodes.get(id as usize)
    }

    /// A node's name, one path component.
    pub(crate) fn name(&self, node: &Node) -> &[u8] {
        let start = node.name as usize;
        &self.names[start..start + usize::from(node.name_len)]
    }

    /// A node's owner.
    pub(crate) fn owner(&self, node: &Node) -> Owner {
        self.owners[usize::from(node.owner)]
    }

    /// The child of `parent` called `name`.
    pub(crate) fn child(&self, parent: NodeId, name: &[u8]) -> Option<NodeId> {
        self.index
            .find(hash_entry(parent, name), |&id| {
                let node = &self.nodes[id as usize];
                node.parent == parent && id != ROOT && self.name(node) == name
            })
            .copied()
    }

    /// The children of a directory in the order of their names; empty for anything else.
    pub(crate) fn children(&self, node: &Node) -> Range<NodeId> {
        match node.body {
            Body::Directory { first, len, .. } => first..first + len,
            _ => 0..0,
        }
    }

    /// A symlink's target.
    pub(crate) fn target(&self, node: &Node) -> Option<&[u8]> {
        match node.body {
            Body::Symlink { target, len } => {
                Some(&self.targets[target as usize..(target + len) as usize])
            }
            _ => None,
        }
    }

    /// The node at a path relative to the root, by components.
    pub(crate) fn resolve<'p>(&self, path: impl IntoIterator<Item = &'p [u8]>) -> Option<NodeId> {
        path.into_iter()
            .try_fold(ROOT, |parent, name| self.child(parent, name))
    }

    /// A node's path relative to the root, for messages.
    pub(crate) fn path(&self, mut id: NodeId) -> PathBuf {
        let mut names = Vec::new();
        while id != ROOT {
            let node = &self.nodes[id as usize];
            names.push(OsStr::from_bytes(self.name(node)));
            id = node.parent;
        }
        names.into_iter().rev().collect()
    }

    /// Where a package file is; `None` for anything else.
    pub(crate) fn source(&self, node: &Node) -> Option<&Source> {
        match node.body {
            Body::Stored { source } | Body::Patched { source, .. } => {
                Some(&self.sources[source as usize])
            }
            _ => None,
        }
    }

    /// The nodes whose bytes are files of `package`.
    pub(crate) fn files_of(&self, package: u32) -> impl Iterator<Item = (&Node, &Source)> {
        self.nodes.iter().filter_map(move |node| {
            let source = self.source(node)?;
            (source.package == package).then_some((node, source))
        })
    }
}

/// Hash of a directory entry.
fn hash_entry(parent: NodeId, name: &[u8]) -> u64 {
    let mut hasher = FxHasher::default();
    hasher.write_u32(parent);
    hasher.write(name);
    hasher.finish()
}
