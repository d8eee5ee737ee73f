//! The list of a package's paths, read for what a layout needs of it.
//!
//! `info/paths.json` of a big environment has tens of thousands of entries, most of whose bytes are hashes. They are
//! not decoded here, only checked to be hashes: records read them when somebody looks. Whatever is out of the ordinary
//! is left to rattler's own reader, which then also says what is wrong.

use std::{io, path::PathBuf};

use rattler_conda_types::package::{FileMode, PackageFile, PathType, PathsJson, PrefixPlaceholder};
use serde::{Deserialize, de::IgnoredAny};

use crate::content::PackageFolder;

/// A path of a package, as it is listed.
#[derive(Debug)]
pub(super) struct ListedPath {
    pub(super) path: PathBuf,
    pub(super) path_type: PathType,
    pub(super) no_link: bool,
    pub(super) size_in_bytes: Option<u64>,
    pub(super) placeholder: Option<PrefixPlaceholder>,
}

#[derive(Deserialize)]
struct Document<'j> {
    #[serde(borrow)]
    paths: Vec<Entry<'j>>,
    #[serde(rename = "paths_version")]
    _version: u64,
}

#[derive(Deserialize)]
struct Entry<'j> {
    #[serde(rename = "_path")]
    path: String,
    #[serde(default)]
    no_link: bool,
    path_type: PathType,
    file_mode: Option<FileMode>,
    prefix_placeholder: Option<String>,
    #[serde(rename = "offsets")]
    offsets: Option<IgnoredAny>,
    size_in_bytes: Option<u64>,
    sha256: Option<&'j str>,
}

/// Reads the list of a package's paths.
///
/// # Errors
/// As [`PackageFolder::paths_json`].
pub(super) fn read(folder: &PackageFolder) -> io::Result<Vec<ListedPath>> {
    if let Ok(bytes) = folder.read(PathsJson::package_path())
        && let Some(paths) = ordinary(&bytes)
    {
        return Ok(paths);
    }
    let paths = folder.paths_json()?.paths.into_iter();
    Ok(paths
        .map(|entry| ListedPath {
            path: entry.relative_path,
            path_type: entry.path_type,
            no_link: entry.no_link,
            size_in_bytes: entry.size_in_bytes,
            placeholder: entry.prefix_placeholder,
        })
        .collect())
}

/// The paths of a `paths.json` without anything unusual in it.
fn ordinary(json: &[u8]) -> Option<Vec<ListedPath>> {
    let document: Document<'_> = serde_json::from_slice(json).ok()?;
    document
        .paths
        .into_iter()
        .map(|entry| {
            if entry.offsets.is_some() || !entry.sha256.is_none_or(is_sha256) {
                return None;
            }
            let placeholder = match (entry.file_mode, entry.prefix_placeholder) {
                (None, None) => None,
                (Some(file_mode), Some(placeholder)) => Some(PrefixPlaceholder {
                    file_mode,
                    placeholder,
                    experimental_offsets: None,
                }),
                _ => return None,
            };
            Some(ListedPath {
                path: entry.path.into(),
                path_type: entry.path_type,
                no_link: entry.no_link,
                size_in_bytes: entry.size_in_bytes,
                placeholder,
            })
        })
        .collect()
}

fn is_sha256(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use rattler_conda_types::package::PathsEntry;

    use super::*;

    /// Both readers give the same where the quick one gives anything.
    fn assert_agrees(entries: &str) -> bool {
        let json = format!(r#"{{"paths": [{entries}], "paths_version": 1}}"#);
        let Some(quick) = ordinary(json.as_bytes()) else {
            return false;
        };
        let whole: Vec<PathsEntry> = PathsJson::from_slice(json.as_bytes()).unwrap().paths;
        assert_eq!(quick.len(), whole.len());
        for (quick, whole) in quick.iter().zip(&whole) {
            assert_eq!(quick.path, whole.relative_path);
            assert_eq!(quick.path_type, whole.path_type);
            assert_eq!(quick.no_link, whole.no_link);
            assert_eq!(quick.size_in_bytes, whole.size_in_bytes);
            assert_eq!(quick.placeholder, whole.prefix_placeholder);
        }
        true
    }

    #[test]
    fn ordinary_entries_are_read_as_rattler_reads_them() {
        let hash = "00ff".repeat(16);
        for entries in [
            String::new(),
            r#"{"_path": "a/b\u00e4\n", "path_type": "hardlink"}"#.into(),
            r#"{"_path": "a", "path_type": "softlink", "no_link": true, "size_in_bytes": 3}"#.into(),
            format!(r#"{{"_path": "a", "path_type": "directory", "sha256": "{hash}", "new": {{}}}}"#),
            r#"{"_path": "a", "path_type": "hardlink", "file_mode": "text", "prefix_placeholder": "/x"}"#.into(),
            r#"{"_path": "a", "path_type": "hardlink", "file_mode": null, "prefix_placeholder": null}"#.into(),
        ] {
            assert!(assert_agrees(&entries), "{entries}");
        }
    }

    #[test]
    fn anything_else_is_left_to_rattler() {
        for entries in [
            r#"{"_path": "a"}"#,
            r#"{"_path": "a", "path_type": "pipe"}"#,
            r#"{"_path": "a", "path_type": "hardlink", "sha256": "beef"}"#,
            r#"{"_path": "a", "path_type": "hardlink", "file_mode": "odd", "prefix_placeholder": "/x"}"#,
            r#"{"_path": "a", "path_type": "hardlink", "prefix_placeholder": "/x"}"#,
            r#"{"_path": "a", "path_type": "hardlink", "file_mode": "text", "prefix_placeholder": "/x", "offsets": []}"#,
        ] {
            assert!(!assert_agrees(entries), "{entries}");
        }
    }
}
