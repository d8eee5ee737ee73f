//! Builds a [`Tree`] one path at a time.

use std::{collections::HashMap, sync::atomic::AtomicU64};

use hashbrown::{HashTable, hash_table::Entry};
use rustc_hash::{FxBuildHasher, FxHashMap};

use super::{Body, Node, NodeId, Owner, ROOT, Source, Timestamp, Tree, UNSETTLED, hash_entry};
use crate::content::{Environment, GeneratedFile, Package, PatchedFile};

/// What a new node is; see [`Body`].
#[derive(Debug)]
pub(crate) enum NewBody {
    /// An empty directory.
    Directory,
    /// A symlink to these bytes.
    Symlink(Box<[u8]>),
    /// A package file as stored in the source with this number.
    Stored { source: u32 },
    /// A package file with a placeholder.
    Patched { source: u32, file: PatchedFile },
    /// Bytes that no package holds.
    Generated(GeneratedFile),
}

/// A node to be added.
#[derive(Debug)]
pub(crate) struct NewNode {
    pub(crate) body: NewBody,
    pub(crate) mode: u16,
    pub(crate) mtime: Timestamp,
    pub(crate) owner: Owner,
    /// `None` where the size settles at the first look-up.
    pub(crate) size: Option<u64>,
    /// Identity of the package file, 0 where there is none.
    pub(crate) identity: u64,
}

struct Draft {
    parent: NodeId,
    name: u32,
    name_len: u8,
    owner: u16,
    mode: u16,
    mtime: Timestamp,
    size: u64,
    identity: u64,
    body: Body,
}

/// Builds a [`Tree`].
pub(crate) struct TreeBuilder {
    drafts: Vec<Draft>,
    names: Vec<u8>,
    index: HashTable<NodeId>,
    targets: Vec<u8>,
    owners: Vec<Owner>,
    sources: Vec<Source>,
    source_numbers: FxHashMap<(u32, bool, Box<[u8]>), u32>,
    patched: Vec<PatchedFile>,
    generated: Vec<GeneratedFile>,
}

/// The name of the nodes below the root is a path component, at most 255 bytes long.
const NAME_MAX: usize = 255;

impl TreeBuilder {
    /// A tree of one directory, which looks like `root`.
    pub(crate) fn new(root: NewNode) -> Self {
        let mut builder = Self {
            drafts: Vec::new(),
            names: Vec::new(),
            index: HashTable::new(),
            targets: Vec::new(),
            owners: Vec::new(),
            sources: Vec::new(),
            source_numbers: HashMap::with_hasher(FxBuildHasher),
            patched: Vec::new(),
            generated: Vec::new(),
        };
        builder.push(ROOT, b"", root);
        builder
    }

    /// The child of `parent` called `name`.
    pub(crate) fn child(&self, parent: NodeId, name: &[u8]) -> Option<NodeId> {
        self.index
            .find(hash_entry(parent, name), |&id| {
                self.is_named(id, parent, name)
            })
            .copied()
    }

    /// Whether this node is a directory.
    pub(crate) fn is_directory(&self, id: NodeId) -> bool {
        matches!(self.drafts[id as usize].body, Body::Directory { .. })
    }

    /// Whether this node's bytes are no package's.
    pub(crate) fn is_generated(&self, id: NodeId) -> bool {
        matches!(self.drafts[id as usize].body, Body::Generated { .. })
    }

    /// The package that a node's bytes come from.
    pub(crate) fn package_of(&self, id: NodeId) -> Option<u32> {
        match self.drafts[id as usize].body {
            Body::Stored { source } | Body::Patched { source, .. } => {
                Some(self.sources[source as usize].package)
            }
            _ => None,
        }
    }

    /// Adds a node.
    ///
    /// # Panics
    /// When the parent has a child of that name, or the name is no path component: callers look first.
    pub(crate) fn add(&mut self, parent: NodeId, name: &[u8], node: NewNode) -> NodeId {
        assert!(
            !name.is_empty() && name.len() <= NAME_MAX,
            "a name is a path component"
        );
        let id = to_u32(self.drafts.len());
        let (drafts, names) = (&self.drafts, &self.names);
        let is_named = |&other: &NodeId| {
            let draft = &drafts[other as usize];
            draft.parent == parent && name_of(names, draft) == name
        };
        let rehash = |&other: &NodeId| {
            let draft = &drafts[other as usize];
            hash_entry(draft.parent, name_of(names, draft))
        };
        match self.index.entry(hash_entry(parent, name), is_named, rehash) {
            Entry::Vacant(slot) => drop(slot.insert(id)),
            Entry::Occupied(_) => panic!("names are unique in a directory"),
        }
        self.push(parent, name, node)
    }

    /// Puts other contents in the place of a node that is no directory.
    pub(crate) fn replace(&mut self, id: NodeId, node: NewNode) {
        assert!(!self.is_directory(id), "directories are not replaced");
        let (parent, name, name_len) = {
            let draft = &self.drafts[id as usize];
            (draft.parent, draft.name, draft.name_len)
        };
        let draft = self.draft(parent, name, name_len, node);
        self.drafts[id as usize] = draft;
    }

    /// The number of a source, for [`NewBody::Stored`]; see [`Source`].
    pub(crate) fn source(&mut self, package: u32, path: &[u8], is_file: bool) -> u32 {
        let key = (package, is_file, Box::from(path));
        if let Some(&number) = self.source_numbers.get(&key) {
            return number;
        }
        let number = to_u32(self.sources.len());
        self.sources.push(Source {
            package,
            path: Box::from(path),
            is_file,
        });
        self.source_numbers.insert(key, number);
        number
    }

    /// The finished tree.
    pub(crate) fn finish(self, packages: Vec<Package>, environment: Environment) -> Tree {
        let Self {
            drafts,
            names,
            targets,
            owners,
            sources,
            patched,
            generated,
            ..
        } = self;

        // Children of each directory side by side, then sorted by name.
        let mut ranges = vec![0..0; drafts.len()];
        for draft in &drafts[1..] {
            ranges[draft.parent as usize].end += 1;
        }
        let mut start = 0;
        for range in &mut ranges {
            let len = range.end;
            *range = start..start;
            start += len;
        }
        let mut order: Vec<NodeId> = vec![ROOT; start];
        for (id, draft) in (1..).zip(&drafts[1..]) {
            let range = &mut ranges[draft.parent as usize];
            order[range.end] = id;
            range.end += 1;
        }
        for range in ranges.iter().filter(|range| range.len() > 1) {
            order[range.clone()].sort_unstable_by(|&a, &b| {
                let name = |id: NodeId| name_of(&names, &drafts[id as usize]);
                name(a).cmp(name(b))
            });
        }

        // Breadth first, so that the children of a directory are neighbours.
        let mut queue: Vec<(NodeId, NodeId)> = Vec::with_capacity(drafts.len());
        queue.push((ROOT, ROOT));
        let mut nodes: Vec<Node> = Vec::with_capacity(drafts.len());
        while nodes.len() < queue.len() {
            let id = to_u32(nodes.len());
            let (draft_id, parent) = queue[nodes.len()];
            let draft = &drafts[draft_id as usize];
            let body = match draft.body {
                Body::Directory { .. } => {
                    let children = &order[ranges[draft_id as usize].clone()];
                    let first = to_u32(queue.len());
                    queue.extend(children.iter().map(|&child| (child, id)));
                    let subdirectories = children
                        .iter()
                        .filter(|&&child| {
                            matches!(drafts[child as usize].body, Body::Directory { .. })
                        })
                        .count();
                    Body::Directory {
                        first,
                        len: to_u32(children.len()),
                        subdirectories: to_u32(subdirectories),
                    }
                }
                body => body,
            };
            nodes.push(Node {
                size: AtomicU64::new(draft.size),
                identity: AtomicU64::new(draft.identity),
                mtime: draft.mtime,
                parent,
                name: draft.name,
                name_len: draft.name_len,
                owner: draft.owner,
                mode: draft.mode,
                body,
            });
        }

        let names = names.into_boxed_slice();
        let hash = |&id: &NodeId| {
            let node: &Node = &nodes[id as usize];
            let start = node.name as usize;
            hash_entry(
                node.parent,
                &names[start..start + usize::from(node.name_len)],
            )
        };
        let mut index = HashTable::with_capacity(nodes.len());
        for id in 1..to_u32(nodes.len()) {
            index.insert_unique(hash(&id), id, hash);
        }

        Tree {
            nodes: nodes.into_boxed_slice(),
            names,
            index,
            targets: targets.into_boxed_slice(),
            owners: owners.into_boxed_slice(),
            sources: sources.into_boxed_slice(),
            packages,
            patched: patched.into_boxed_slice(),
            generated: generated.into_boxed_slice(),
            environment,
        }
    }

    fn is_named(&self, id: NodeId, parent: NodeId, name: &[u8]) -> bool {
        let draft = &self.drafts[id as usize];
        draft.parent == parent && name_of(&self.names, draft) == name
    }

    fn push(&mut self, parent: NodeId, name: &[u8], node: NewNode) -> NodeId {
        let id = to_u32(self.drafts.len());
        let offset = to_u32(self.names.len());
        self.names.extend_from_slice(name);
        let draft = self.draft(parent, offset, name.len() as u8, node);
        self.drafts.push(draft);
        id
    }

    fn draft(&mut self, parent: NodeId, name: u32, name_len: u8, node: NewNode) -> Draft {
        let body = match node.body {
            NewBody::Directory => Body::Directory {
                first: 0,
                len: 0,
                subdirectories: 0,
            },
            NewBody::Symlink(target) => {
                let offset = to_u32(self.targets.len());
                self.targets.extend_from_slice(&target);
                Body::Symlink {
                    target: offset,
                    len: to_u32(target.len()),
                }
            }
            NewBody::Stored { source } => Body::Stored { source },
            NewBody::Patched { source, file } => {
                self.patched.push(file);
                Body::Patched {
                    source,
                    patched: to_u32(self.patched.len() - 1),
                }
            }
            NewBody::Generated(file) => {
                self.generated.push(file);
                Body::Generated {
                    generated: to_u32(self.generated.len() - 1),
                }
            }
        };
        Draft {
            parent,
            name,
            name_len,
            owner: self.owner(node.owner),
            mode: node.mode,
            mtime: node.mtime,
            size: node.size.unwrap_or(UNSETTLED),
            identity: node.identity,
            body,
        }
    }

    fn owner(&mut self, owner: Owner) -> u16 {
        // Hardly ever more than two: the user, and who filled the cache.
        let number = self
            .owners
            .iter()
            .position(|&known| known == owner)
            .unwrap_or_else(|| {
                self.owners.push(owner);
                self.owners.len() - 1
            });
        u16::try_from(number).expect("fewer than 65,536 owners")
    }
}

fn name_of<'n>(names: &'n [u8], draft: &Draft) -> &'n [u8] {
    let start = draft.name as usize;
    &names[start..start + usize::from(draft.name_len)]
}

fn to_u32(n: usize) -> u32 {
    u32::try_from(n).expect("fewer than 2³² nodes, names and targets")
}
