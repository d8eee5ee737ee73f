//! Channels in a folder.

use std::path::{Path, PathBuf};

use rattler_index::{IndexFsConfig, PackageRevisionAssignment};
use url::Url;

use crate::{
    Error,
    package::{Built, Format, Package},
    runtime::block_on,
};

/// A folder with the subdirs noarch and linux-64.
#[derive(Debug, Clone)]
pub struct Channel {
    folder: PathBuf,
}

impl Channel {
    /// Makes an empty channel, or takes the one that is there.
    ///
    /// # Errors
    ///
    /// The folder cannot be made.
    pub fn create(folder: &Path) -> Result<Self, Error> {
        let folder = std::path::absolute(folder)?;
        for subdir in ["noarch", "linux-64"] {
            fs_err::create_dir_all(folder.join(subdir))?;
        }
        Ok(Self { folder })
    }

    /// Where the channel is; absolute.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The channel's `file://` URL.
    pub fn url(&self) -> Url {
        Url::from_directory_path(&self.folder).expect("the folder is absolute")
    }

    /// Makes a package and puts it into its subdir. [`Channel::index`] has to follow.
    ///
    /// # Errors
    ///
    /// Those of [`Package::write`].
    pub fn add(&self, package: &Package, format: Format) -> Result<Built, Error> {
        package.write(&self.folder.join(package.subdir()), format)
    }

    /// Writes `repodata.json` of every subdir.
    ///
    /// # Errors
    ///
    /// The channel holds an archive that is no package, or writing fails.
    pub fn index(&self) -> Result<(), Error> {
        let config = IndexFsConfig {
            channel: self.folder.clone(),
            target_platform: None,
            repodata_patch: None,
            write_zst: false,
            write_shards: false,
            repodata_revisions: Vec::new(),
            package_revision_assignment: PackageRevisionAssignment::default(),
            force: true,
            max_parallel: 4,
            multi_progress: None,
        };
        block_on(rattler_index::index_fs(config)).map_err(|error| Error::Index {
            channel: self.folder.clone(),
            reason: format!("{error:#}"),
        })
    }
}
