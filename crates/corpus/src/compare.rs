//! What differs between an installation and a mount.
//!
//! Everything is compared but what cannot be the same in two installations either: wall-clock dates (of directories,
//! entry points, `CACHEDIR.TAG`, everything in `conda-meta`, and files that were patched in a package without
//! `info/about.json`), empty folders below `__clobbers__`, and three keys of the records that say where the cache was.

use std::{
    collections::{BTreeMap, BTreeSet},
    os::unix::{
        ffi::OsStrExt,
        fs::{FileTypeExt, MetadataExt},
    },
    path::{Path, PathBuf},
};

use rattler_digest::{Sha256, compute_file_digest};
use rayon::prelude::*;
use serde_json::Value;

use crate::Error;

/// The keys of a record that say where and how it was installed from.
const UNCOMPARED_KEYS: [&str; 3] = ["link", "extracted_package_dir", "package_tarball_full_path"];

/// A tree as it was at one moment.
#[derive(Debug, Clone)]
pub struct Snapshot {
    nodes: BTreeMap<PathBuf, Node>,
}

#[derive(Debug, Clone)]
struct Node {
    kind: Kind,
    /// Permission bits with setuid, setgid and the sticky bit.
    mode: u32,
    uid: u32,
    gid: u32,
    /// Seconds and nanoseconds since 1970.
    mtime: (i64, i64),
}

#[derive(Debug, Clone, PartialEq)]
enum Kind {
    Directory,
    File {
        size: u64,
        sha256: String,
        record: Option<Box<Value>>,
    },
    Symlink {
        size: u64,
        target: PathBuf,
    },
    Other(&'static str),
}

impl Kind {
    fn name(&self) -> &'static str {
        match self {
            Self::Directory => "a directory",
            Self::File { .. } => "a file",
            Self::Symlink { .. } => "a symlink",
            Self::Other(name) => name,
        }
    }
}

impl Snapshot {
    /// Looks at everything below `root`, and `root` itself (the path `.`), following no symlink.
    ///
    /// # Errors
    ///
    /// Something cannot be looked at or read, or a record in `conda-meta` is no JSON.
    pub fn take(root: &Path) -> Result<Self, Error> {
        let entries = walkdir::WalkDir::new(root)
            .into_iter()
            .collect::<Result<Vec<_>, _>>()
            .map_err(std::io::Error::from)?;
        let nodes = entries.par_iter().map(|entry| {
            let relative = entry.path().strip_prefix(root).unwrap_or(entry.path());
            let relative = if relative.as_os_str().is_empty() {
                Path::new(".")
            } else {
                relative
            };
            Ok((relative.to_owned(), node(entry.path(), relative)?))
        });
        Ok(Self {
            nodes: nodes.collect::<Result<_, Error>>()?,
        })
    }

    /// How many paths there are, the root included.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Whether nothing was found, not even the root.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// What differs, one readable line each; empty when `mounted` is what `installed` is.
    pub fn differences(installed: &Self, mounted: &Self) -> Vec<String> {
        let undated = installed.undated();
        let mut lines = Vec::new();
        let paths: BTreeSet<&PathBuf> =
            installed.nodes.keys().chain(mounted.nodes.keys()).collect();
        for path in paths {
            let shown = path.display();
            match (installed.nodes.get(path), mounted.nodes.get(path)) {
                (Some(node), None) if !installed.is_empty_clobber_folder(path) => {
                    lines.push(format!(
                        "{shown}: {} is missing in the mount",
                        node.kind.name()
                    ));
                }
                (None, Some(node)) if !mounted.is_empty_clobber_folder(path) => {
                    lines.push(format!(
                        "{shown}: {} is in the mount only",
                        node.kind.name()
                    ));
                }
                (Some(a), Some(b)) => {
                    let dated = !undated.contains(path) && !path.starts_with("conda-meta");
                    let found = differences_of(a, b, dated);
                    lines.extend(
                        found
                            .into_iter()
                            .map(|difference| format!("{shown}: {difference}")),
                    );
                }
                _ => {}
            }
        }
        lines
    }

    /// The paths that are dated by the wall clock, those in `conda-meta` aside.
    fn undated(&self) -> BTreeSet<PathBuf> {
        let mut undated = BTreeSet::from([PathBuf::from("CACHEDIR.TAG")]);
        undated.extend(
            self.nodes
                .iter()
                .filter(|(_, node)| node.kind == Kind::Directory)
                .map(|(path, _)| path.clone()),
        );
        for node in self.nodes.values() {
            let Kind::File {
                record: Some(record),
                ..
            } = &node.kind
            else {
                continue;
            };
            let package = record["extracted_package_dir"].as_str().map(Path::new);
            let without_about =
                package.is_some_and(|package| !package.join("info/about.json").exists());
            for entry in record["paths_data"]["paths"]
                .as_array()
                .into_iter()
                .flatten()
            {
                let entry_point = entry["path_type"] == "unix_python_entry_point";
                let patched = !entry["file_mode"].is_null();
                if entry_point || (patched && without_about) {
                    undated.extend(entry["_path"].as_str().map(PathBuf::from));
                }
            }
        }
        undated
    }

    fn is_empty_clobber_folder(&self, path: &Path) -> bool {
        path.parent()
            .is_some_and(|parent| parent.starts_with("__clobbers__"))
            && self
                .nodes
                .range(path.to_owned()..)
                .take_while(|(below, _)| below.starts_with(path))
                .all(|(_, node)| node.kind == Kind::Directory)
    }
}

fn node(path: &Path, relative: &Path) -> Result<Node, Error> {
    let metadata = fs_err::symlink_metadata(path)?;
    let file_type = metadata.file_type();
    let kind = if file_type.is_dir() {
        Kind::Directory
    } else if file_type.is_symlink() {
        Kind::Symlink {
            size: metadata.len(),
            target: fs_err::read_link(path)?,
        }
    } else if file_type.is_file() {
        let is_record = relative.parent() == Some(Path::new("conda-meta"))
            && relative.as_os_str().as_bytes().ends_with(b".json");
        let record = if is_record {
            Some(Box::new(serde_json::from_slice(&fs_err::read(path)?)?))
        } else {
            None
        };
        Kind::File {
            size: metadata.len(),
            sha256: hex::encode(compute_file_digest::<Sha256>(path)?),
            record,
        }
    } else if file_type.is_fifo() {
        Kind::Other("a fifo")
    } else {
        Kind::Other("a special file")
    };
    Ok(Node {
        kind,
        mode: metadata.mode() & 0o7777,
        uid: metadata.uid(),
        gid: metadata.gid(),
        mtime: (metadata.mtime(), metadata.mtime_nsec()),
    })
}

fn differences_of(installed: &Node, mounted: &Node, dated: bool) -> Vec<String> {
    let mut lines = Vec::new();
    let mut compare = |what: &str, a: String, b: String| {
        if a != b {
            lines.push(format!("{what} {a} installed, {b} mounted"));
        }
    };
    compare(
        "mode",
        format!("{:04o}", installed.mode),
        format!("{:04o}", mounted.mode),
    );
    compare(
        "owner",
        format!("{}:{}", installed.uid, installed.gid),
        format!("{}:{}", mounted.uid, mounted.gid),
    );
    if dated {
        let text = |(seconds, nanoseconds): (i64, i64)| format!("{seconds}.{nanoseconds:09}");
        compare("mtime", text(installed.mtime), text(mounted.mtime));
    }
    match (&installed.kind, &mounted.kind) {
        (
            Kind::File {
                record: Some(a), ..
            },
            Kind::File {
                record: Some(b), ..
            },
        ) => {
            record_differences("", a, b, &mut lines);
        }
        (
            Kind::File {
                size: size_a,
                sha256: a,
                ..
            },
            Kind::File {
                size: size_b,
                sha256: b,
                ..
            },
        ) => {
            compare("size", size_a.to_string(), size_b.to_string());
            compare("sha256", a.clone(), b.clone());
        }
        (
            Kind::Symlink {
                size: size_a,
                target: a,
            },
            Kind::Symlink {
                size: size_b,
                target: b,
            },
        ) => {
            compare("size", size_a.to_string(), size_b.to_string());
            compare("target", a.display().to_string(), b.display().to_string());
        }
        (a, b) => compare("kind", a.name().to_owned(), b.name().to_owned()),
    }
    lines
}

/// Compares two records key by key, those of [`UNCOMPARED_KEYS`] aside.
fn record_differences(key: &str, installed: &Value, mounted: &Value, lines: &mut Vec<String>) {
    match (installed, mounted) {
        (Value::Object(a), Value::Object(b)) => {
            let names: BTreeSet<&String> = a.keys().chain(b.keys()).collect();
            for name in names {
                if key.is_empty() && UNCOMPARED_KEYS.contains(&name.as_str()) {
                    continue;
                }
                match (a.get(name), b.get(name)) {
                    (Some(a), Some(b)) => record_differences(&format!("{key}.{name}"), a, b, lines),
                    (Some(a), None) => {
                        lines.push(format!("record {key}.{name} = {a} is missing in the mount"))
                    }
                    (None, Some(b)) => {
                        lines.push(format!("record {key}.{name} = {b} is in the mount only"))
                    }
                    (None, None) => {}
                }
            }
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            // Paths that the installer moved out of `__clobbers__` stay where they were sorted as clobbered ones.
            let paths = matches!(key, ".files" | ".paths_data.paths");
            let sorted = |values: &[Value]| {
                let mut values = values.to_vec();
                if paths {
                    values.sort_by_key(|value| value.get("_path").unwrap_or(value).to_string());
                }
                values
            };
            for (at, (a, b)) in sorted(a).iter().zip(&sorted(b)).enumerate() {
                record_differences(&format!("{key}[{at}]"), a, b, lines);
            }
        }
        (a, b) if a != b => lines.push(format!("record {key}: {a} installed, {b} mounted")),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    const RECORD: &str = r#"{"name": "a", "link": {"source": "/cache/a"}, "paths_data": {"paths": [
        {"_path": "bin/entry", "path_type": "unix_python_entry_point"}, {"_path": "share/file", "path_type": "hardlink"}
    ]}}"#;

    /// Two trees alike, of which the test changes the second.
    fn differences_after(change: impl FnOnce(&Path)) -> Vec<String> {
        let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let roots = folders.each_ref().map(|folder| folder.path());
        for root in roots {
            for folder in ["bin", "share", "conda-meta", "__clobbers__/a/share"] {
                fs_err::create_dir_all(root.join(folder)).unwrap();
            }
            for (path, text) in [
                ("bin/entry", "entry"),
                ("share/file", "file"),
                ("__clobbers__/a/share/clobbered", "clobbered"),
                ("conda-meta/a-1-0.json", RECORD),
                ("CACHEDIR.TAG", "Signature"),
            ] {
                fs_err::write(root.join(path), text).unwrap();
                set_mtime(&root.join(path), 1_700_000_000, 0);
            }
            std::os::unix::fs::symlink("file", root.join("share/link")).unwrap();
        }
        let time = rustix::fs::Timespec {
            tv_sec: 1_700_000_000,
            tv_nsec: 0,
        };
        for root in roots {
            let times = rustix::fs::Timestamps {
                last_access: time,
                last_modification: time,
            };
            let flags = rustix::fs::AtFlags::SYMLINK_NOFOLLOW;
            rustix::fs::utimensat(rustix::fs::CWD, root.join("share/link"), &times, flags).unwrap();
        }
        change(roots[1]);
        let [installed, mounted] = roots.map(|root| Snapshot::take(root).unwrap());
        Snapshot::differences(&installed, &mounted)
    }

    fn set_mtime(path: &Path, seconds: u64, nanoseconds: u32) {
        let time = std::time::UNIX_EPOCH + std::time::Duration::new(seconds, nanoseconds);
        fs_err::File::options()
            .write(true)
            .open(path)
            .unwrap()
            .set_modified(time)
            .unwrap();
    }

    fn rewrite(path: &Path, text: &str) {
        fs_err::write(path, text).unwrap();
        set_mtime(path, 1_700_000_000, 0);
    }

    #[test]
    fn nothing_changed() {
        assert_eq!(differences_after(|_| {}), Vec::<String>::new());
    }

    #[test]
    fn one_byte() {
        let lines = differences_after(|root| rewrite(&root.join("share/file"), "filf"));
        assert_eq!(lines.len(), 1, "{lines:?}");
        assert!(lines[0].starts_with("share/file: sha256"), "{lines:?}");
    }

    #[test]
    fn one_byte_of_an_undated_file() {
        let lines = differences_after(|root| rewrite(&root.join("bin/entry"), "entrx"));
        assert!(
            lines.len() == 1 && lines[0].starts_with("bin/entry: sha256"),
            "{lines:?}"
        );
    }

    #[test]
    fn one_mode() {
        let lines = differences_after(|root| {
            let executable = std::fs::Permissions::from_mode(0o755);
            fs_err::set_permissions(root.join("share/file"), executable).unwrap();
        });
        assert_eq!(lines, ["share/file: mode 0644 installed, 0755 mounted"]);
    }

    #[test]
    fn the_mode_of_a_directory() {
        let lines = differences_after(|root| {
            fs_err::set_permissions(root.join("share"), std::fs::Permissions::from_mode(0o700))
                .unwrap();
        });
        assert_eq!(lines, ["share: mode 0755 installed, 0700 mounted"]);
    }

    #[test]
    fn one_nanosecond() {
        let lines = differences_after(|root| set_mtime(&root.join("share/file"), 1_700_000_000, 1));
        assert_eq!(
            lines,
            ["share/file: mtime 1700000000.000000000 installed, 1700000000.000000001 mounted"]
        );
    }

    #[test]
    fn one_missing_path() {
        let lines = differences_after(|root| fs_err::remove_file(root.join("share/file")).unwrap());
        assert_eq!(lines, ["share/file: a file is missing in the mount"]);
    }

    #[test]
    fn one_additional_path() {
        let lines = differences_after(|root| fs_err::create_dir(root.join("share/more")).unwrap());
        assert_eq!(lines, ["share/more: a directory is in the mount only"]);
    }

    #[test]
    fn one_link_target() {
        let lines = differences_after(|root| {
            let link = root.join("share/link");
            fs_err::remove_file(&link).unwrap();
            std::os::unix::fs::symlink("fill", &link).unwrap();
        });
        assert!(
            lines.contains(&"share/link: target file installed, fill mounted".to_owned()),
            "{lines:?}"
        );
    }

    #[test]
    fn one_kind() {
        let lines = differences_after(|root| {
            fs_err::remove_file(root.join("share/file")).unwrap();
            fs_err::create_dir(root.join("share/file")).unwrap();
        });
        assert!(
            lines.contains(&"share/file: kind a file installed, a directory mounted".to_owned()),
            "{lines:?}"
        );
    }

    #[test]
    fn one_key_of_a_record() {
        let changed = RECORD.replace(r#""path_type": "hardlink""#, r#""path_type": "softlink""#);
        let lines = differences_after(|root| {
            fs_err::write(root.join("conda-meta/a-1-0.json"), changed).unwrap()
        });
        assert_eq!(
            lines,
            [
                r#"conda-meta/a-1-0.json: record .paths_data.paths[1].path_type: "hardlink" installed, "softlink" mounted"#
            ]
        );
    }

    #[test]
    fn what_cannot_be_the_same_is_left_out() {
        let lines = differences_after(|root| {
            set_mtime(&root.join("bin/entry"), 1, 0);
            set_mtime(&root.join("CACHEDIR.TAG"), 1, 0);
            fs_err::write(
                root.join("conda-meta/a-1-0.json"),
                RECORD.replace("/cache/a", "/other"),
            )
            .unwrap();
            fs_err::create_dir_all(root.join("__clobbers__/b/share")).unwrap();
        });
        assert_eq!(lines, Vec::<String>::new());
    }
}
