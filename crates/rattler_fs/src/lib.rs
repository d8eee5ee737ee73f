//! A locked conda environment as a read-only file system.
//!
//! Data flows one way: lock file → [`layout`] → [`tree`] → [`content`] → [`fuse`]. Each room knows only the one before
//! it: the layout decides which paths exist and where each one's bytes come from, the tree is the immutable inode table
//! made from it, content produces bytes, and the FUSE adapter translates the kernel's requests and decides nothing.

pub mod content;
pub mod fuse;
pub mod layout;
pub mod regular_file;
pub mod tree;

pub use content::{EnvironmentFs, PackageSupplier};
