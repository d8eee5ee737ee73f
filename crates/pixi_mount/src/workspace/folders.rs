//! The folders that pixi has for a workspace's environments.

use std::io;
use std::path::PathBuf;

use fs_err as fs;
use xxhash_rust::xxh3::xxh3_64;

use super::Workspace;

/// What pixi's `.pixi/.gitignore` holds, and our own settings.
const GITIGNORE: &str = "*\n!config.toml\n!mount.toml\n";

impl Workspace {
    /// `.pixi` of the workspace.
    #[must_use]
    pub fn pixi_dir(&self) -> PathBuf {
        self.root.join(".pixi")
    }

    /// The folder that holds the workspace's environments: `.pixi/envs`, or a folder of the
    /// workspace's own where environments are detached.
    #[must_use]
    pub fn environments_dir(&self) -> PathBuf {
        match self.detached_dir() {
            Some(dir) => dir.join("envs"),
            None => self.pixi_dir().join("envs"),
        }
    }

    fn detached_dir(&self) -> Option<PathBuf> {
        let dir = self.config.detached_environments_dir(&self.surroundings)?;
        let hash = xxh3_64(self.root.to_string_lossy().as_bytes());
        Some(dir.join(format!("{}-{hash}", self.name)))
    }

    /// Makes `.pixi` as pixi would: ignored by git, with a symlink to detached environments.
    ///
    /// The files are not made where the workspace is read-only: everything works without them.
    ///
    /// # Errors
    ///
    /// What the system said.
    pub fn prepare_folders(&self) -> io::Result<()> {
        let pixi_dir = self.pixi_dir();
        let made = fs::create_dir_all(&pixi_dir).and_then(|()| {
            let gitignore = pixi_dir.join(".gitignore");
            if !gitignore.exists() {
                fs::write(gitignore, GITIGNORE)?;
            }
            self.link_detached()
        });
        match made {
            Err(error) if error.kind() == io::ErrorKind::ReadOnlyFilesystem => Ok(()),
            made => made,
        }
    }

    fn link_detached(&self) -> io::Result<()> {
        if self.detached_dir().is_none() {
            return Ok(());
        }
        let (target, link) = (self.environments_dir(), self.pixi_dir().join("envs"));
        match fs::symlink_metadata(&link) {
            Ok(metadata) if !metadata.is_symlink() => {
                tracing::warn!(
                    "environments are detached, but {} exists: its environments are not used",
                    link.display()
                );
                return Ok(());
            }
            Ok(_) if fs::read_link(&link)? == target => return Ok(()),
            Ok(_) => fs::remove_file(&link)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        std::os::unix::fs::symlink(&target, &link)
    }
}
