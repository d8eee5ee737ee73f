//! The immutable inode table.
/// The inode table of an environment.
#[derive(Debug)]
pub struct Tree {}

impl Tree {
    /// Number of packages.
    #[must_use]
    pub fn package_count(&self) -> usize {
        0
    }
    /// Number of files and symlinks.
    #[must_use]
    pub fn file_count(&self) -> usize {
        0
    }
}
