//! `conda-meta` records, as rattler's installer writes them: made anew when they are read.

use std::{
    io,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

use rattler::install::python_entry_point_template;
use rattler_conda_types::{
    PrefixRecord,
    package::{LinkJson, NoArchLinks, PathType, PathsEntry},
    prefix_record::{self, Link, LinkType},
};
use rattler_digest::{Sha256, compute_bytes_digest};

use super::{EnvironmentFs, PackageFolder, environment_fs::changed, sink::Sha256Sink};
use crate::{layout::path_in_environment, tree::NodeId};

/// Where files that another package won are kept, in a folder named after their package.
pub(crate) const CLOBBERS: &str = "__clobbers__";

impl EnvironmentFs {
    /// The record of a package, as JSON.
    pub(super) fn record(&self, package_number: u32) -> io::Result<Vec<u8>> {
        let package = &self.tree().packages[package_number as usize];
        let folder = package.folder();
        let paths = match self.paths_of(package_number, &folder) {
            Err(error) if changed(&error) => {
                self.recover(package_number, &folder)?;
                self.paths_of(package_number, &package.folder())?
            }
            result => result?,
        };
        let folder = package.folder();
        let environment = &self.tree().environment;

        let mut entries = Vec::with_capacity(paths.paths.len());
        for entry in paths.paths {
            entries.push(self.record_entry(package_number, &folder, entry)?);
        }
        if package.noarch_python
            && let Some(python) = &environment.python
            && let Some(LinkJson {
                noarch: NoArchLinks::Python(links),
                ..
            }) = folder.metadata()?
        {
            for entry_point in links.entry_points {
                let script =
                    python_entry_point_template(&environment.prefix, false, &entry_point, python);
                entries.push(prefix_record::PathsEntry {
                    relative_path: python.bin_dir.join(&entry_point.command),
                    original_path: None,
                    path_type: prefix_record::PathType::UnixPythonEntryPoint,
                    no_link: false,
                    sha256: Some(compute_bytes_digest::<Sha256>(&script)),
                    sha256_in_prefix: None,
                    size_in_bytes: Some(script.len() as u64),
                    prefix_placeholder: None,
                    file_mode: None,
                });
            }
        }
        entries.sort_by(|a, b| a.relative_path.cmp(&b.relative_path));

        let record = PrefixRecord {
            extracted_package_dir: Some(folder.path.clone()),
            link: Some(Link {
                source: folder.path.clone(),
                link_type: Some(LinkType::HardLink),
            }),
            ..PrefixRecord::from_repodata_record(package.record.clone(), entries)
        };
        let mut json = Vec::new();
        record.write_to(&mut json, true)?;
        Ok(json)
    }

    /// The package's own list of paths, if it is still the one that the layout was made from.
    fn paths_of(
        &self,
        package_number: u32,
        folder: &PackageFolder,
    ) -> io::Result<rattler_conda_types::package::PathsJson> {
        let promised = *self.tree().packages[package_number as usize]
            .metadata
            .lock();
        let paths = folder.paths_json()?;
        if folder.paths_identity() == promised {
            Ok(paths)
        } else {
            Err(rustix::io::Errno::STALE.into())
        }
    }

    fn record_entry(
        &self,
        package_number: u32,
        folder: &PackageFolder,
        entry: PathsEntry,
    ) -> io::Result<prefix_record::PathsEntry> {
        let package = &self.tree().packages[package_number as usize];
        let environment = &self.tree().environment;
        let python = environment
            .python
            .as_ref()
            .filter(|_| package.noarch_python);
        let path = path_in_environment(&entry.relative_path, python).into_owned();
        let name = package.record.package_record.name.as_normalized();
        let clobbered = path.to_str().is_some_and(|path| {
            let found = package
                .clobbered
                .binary_search_by(|lost| (**lost).cmp(path));
            found.is_ok()
        });
        let (relative_path, original_path) = if clobbered {
            (clobber_path(name, &path), Some(path))
        } else {
            (path, None)
        };

        let node = self.node_of(package_number, &relative_path);
        let mut size = entry.size_in_bytes;
        let mut hash = None;
        let mut file_mode = None;
        if let Some(placeholder) = &entry.prefix_placeholder {
            file_mode = Some(placeholder.file_mode);
            if let Some(id) = node {
                hash = Some(self.patched_hash(id)?);
                size = Some(self.size(id)?);
            }
        } else if entry.path_type == PathType::HardLink
            && entry.sha256.is_none()
            && let Some(id) = node
        {
            let mut sink = Sha256Sink::default();
            self.read_all(id, &mut sink)?;
            hash = Some(sink.finish());
        }
        if size.is_none() {
            size = Some(match node {
                Some(id) => self.size(id)?,
                None => {
                    folder
                        .status(entry.relative_path.as_os_str().as_bytes())?
                        .size
                }
            });
        }
        Ok(prefix_record::PathsEntry {
            relative_path,
            original_path,
            path_type: entry.path_type.into(),
            no_link: entry.no_link,
            sha256: entry.sha256,
            sha256_in_prefix: hash
                .filter(|_| entry.path_type == PathType::HardLink && hash != entry.sha256),
            size_in_bytes: size,
            file_mode,
            prefix_placeholder: entry
                .prefix_placeholder
                .map(|placeholder| placeholder.placeholder),
        })
    }

    /// The node at `path`, if it is a file of this package.
    fn node_of(&self, package_number: u32, path: &Path) -> Option<NodeId> {
        let components = path
            .components()
            .map(|component| component.as_os_str().as_bytes());
        let id = self.tree().resolve(components)?;
        let source = self.tree().source(self.tree().node(id)?)?;
        (source.package == package_number).then_some(id)
    }
}

/// Where a path that another package won is kept.
pub(crate) fn clobber_path(package: &str, path: &Path) -> PathBuf {
    Path::new(CLOBBERS).join(package).join(path)
}
