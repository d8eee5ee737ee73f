//! Which packages an environment consists of, read from a lock file.
//!
//! Only the environment asked for is looked at: what the lock file says of other environments and
//! platforms can be as unusual as it likes.

use std::path::{Path, PathBuf};

use rattler_conda_types::{RepoDataRecord, Subdir};
use rattler_lock::{
    CondaBinaryData, LockFile, LockedPackage as Locked, ParseCondaLockError, UrlOrPath,
};
use url::Url;

use crate::regular_file::read_text;

/// One environment of a lock file, resolved for one platform.
#[derive(Debug, Clone)]
pub struct LockedEnvironment {
    /// The environment's name.
    pub name: String,
    /// The platform that the packages were solved for.
    pub platform: PlatformRow,
    /// The packages in the lock file's order (the parser sorts them as pixi writes them).
    pub packages: Vec<LockedPackage>,
}

/// A platform as a lock file knows it.
///
/// Since version 7 a lock file has a table of platforms whose names are the workspace's choice;
/// before that the name is the subdir and there are no virtual packages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlatformRow {
    /// The name of the row.
    pub name: String,
    /// The conda subdir that it stands for.
    pub subdir: Subdir,
    /// The virtual packages that the solve assumed, such as `__glibc=2.28`.
    pub virtual_packages: Vec<String>,
}

/// A conda package of a [`LockedEnvironment`].
#[derive(Debug, Clone)]
pub struct LockedPackage {
    /// Where the package comes from, as the lock file spells it: pixi hashes this spelling.
    pub location: String,
    /// The record, with its location made absolute.
    pub record: RepoDataRecord,
}

/// Why a lock file does not give an environment.
#[derive(Debug, thiserror::Error)]
pub enum LockFileError {
    /// There is no such file.
    #[error("there is no lock file at {}", .0.display())]
    Missing(PathBuf),

    /// The file is no lock file, but something that is made to keep a parser busy.
    #[error("cannot parse the lock file {}: its brackets are nested too deeply", .0.display())]
    TooDeep(PathBuf),

    /// The file cannot be read.
    #[error("cannot read the lock file {}", path.display())]
    Read {
        /// The lock file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },

    /// The file is not a lock file that we understand.
    #[error("cannot parse the lock file {}", path.display())]
    Parse {
        /// The lock file.
        path: PathBuf,
        /// What is wrong with it.
        source: Box<ParseCondaLockError>,
    },

    /// The environment is not in the lock file.
    #[error("the environment `{environment}` is not in the lock file {}", path.display())]
    UnknownEnvironment {
        /// The lock file.
        path: PathBuf,
        /// The environment asked for.
        environment: String,
        /// The environments there are.
        available: Vec<String>,
    },

    /// The environment was not solved for the platform.
    #[error(
        "the environment `{environment}` has no packages for the platform `{platform}` in the lock file {}",
        path.display()
    )]
    UnknownPlatform {
        /// The lock file.
        path: PathBuf,
        /// The environment asked for.
        environment: String,
        /// The platform asked for.
        platform: String,
        /// The platforms that the environment was solved for.
        available: Vec<String>,
    },

    /// The environment has packages of a kind that cannot be served.
    ///
    /// An environment without them would look complete and not be: it is refused as a whole.
    #[error(
        "the environment `{environment}` has packages that cannot be mounted yet: {}",
        join(packages)
    )]
    Unsupported {
        /// The environment asked for.
        environment: String,
        /// All such packages, in the lock file's order.
        packages: Vec<UnsupportedPackage>,
    },

    /// The package's location is neither a URL nor a path.
    #[error("the location of the package `{name}` is not valid: {location}")]
    InvalidLocation {
        /// The package's name.
        name: String,
        /// The location as the lock file spells it.
        location: String,
    },
}

/// A package that cannot be part of a mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnsupportedPackage {
    /// The package's name.
    pub name: String,
    /// Why not.
    pub kind: UnsupportedKind,
}

/// The kinds of packages that cannot be part of a mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnsupportedKind {
    /// A wheel, source distribution or source folder of Python's own packaging.
    PyPi,
    /// A conda package that is to be built from source.
    Source,
}

impl std::fmt::Display for UnsupportedPackage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kind = match self.kind {
            UnsupportedKind::PyPi => "PyPI",
            UnsupportedKind::Source => "built from source",
        };
        write!(f, "{} ({kind})", self.name)
    }
}

fn join(packages: &[UnsupportedPackage]) -> String {
    let names: Vec<String> = packages.iter().map(ToString::to_string).collect();
    names.join(", ")
}

/// Reads and parses the lock file at `path`.
///
/// # Errors
///
/// [`LockFileError::Missing`], [`LockFileError::Read`] or [`LockFileError::Parse`].
pub fn read(path: &Path) -> Result<LockFile, LockFileError> {
    let text = read_text(path, MAX_SIZE).map_err(|source| match source.kind() {
        std::io::ErrorKind::NotFound => LockFileError::Missing(path.to_path_buf()),
        _ => LockFileError::Read {
            path: path.to_path_buf(),
            source,
        },
    })?;
    if nests_too_deeply(&text) {
        return Err(LockFileError::TooDeep(path.to_path_buf()));
    }
    LockFile::from_str_with_base_directory(&text, path.parent()).map_err(|source| {
        LockFileError::Parse {
            path: path.to_path_buf(),
            source: Box::new(source),
        }
    })
}

/// The largest lock files have some tens of megabytes.
const MAX_SIZE: u64 = 256 << 20;

/// Whether brackets are opened and never closed in a number for which the parser takes ages. In a lock file they are
/// closed in the same line; the bound leaves room for strings with a bracket of their own.
fn nests_too_deeply(text: &str) -> bool {
    const MAX_DEPTH: i64 = 1000;
    let mut depth = 0;
    text.bytes().any(|byte| {
        match byte {
            b'[' | b'{' => depth += 1,
            b']' | b'}' => depth = (depth - 1).max(0),
            _ => {}
        }
        depth > MAX_DEPTH
    })
}

/// Picks the packages of `environment` on the platform row `platform`.
///
/// Relative package paths are relative to the folder of `lock_file_path`.
///
/// # Errors
///
/// When the environment or the row is not there, when a package's location makes no sense, and
/// [`LockFileError::Unsupported`] for PyPI and source packages, naming every one of them.
pub fn select(
    lock: &LockFile,
    lock_file_path: &Path,
    environment: &str,
    platform: &str,
) -> Result<LockedEnvironment, LockFileError> {
    let locked =
        lock.environment(environment)
            .ok_or_else(|| LockFileError::UnknownEnvironment {
                path: lock_file_path.to_path_buf(),
                environment: environment.to_string(),
                available: sorted(lock.environments().map(|(name, _)| name.to_string())),
            })?;

    let row = lock.platform(platform);
    let packages = row.and_then(|row| locked.packages(row));
    let (row, packages): (_, Vec<&Locked>) = match (row, packages) {
        (Some(row), Some(packages)) => (row, packages.collect()),
        // An environment without any dependency has no packages for any platform.
        (Some(row), None) if locked.platforms().len() == 0 => (row, Vec::new()),
        _ => {
            return Err(LockFileError::UnknownPlatform {
                path: lock_file_path.to_path_buf(),
                environment: environment.to_string(),
                platform: platform.to_string(),
                available: sorted(locked.platforms().map(|row| row.name().to_string())),
            });
        }
    };

    let unsupported: Vec<UnsupportedPackage> =
        packages.iter().copied().filter_map(unsupported).collect();
    if !unsupported.is_empty() {
        return Err(LockFileError::Unsupported {
            environment: environment.to_string(),
            packages: unsupported,
        });
    }

    let folder = lock_file_path.parent().unwrap_or(Path::new(""));
    let packages = packages
        .into_iter()
        .filter_map(|package| package.as_conda()?.as_binary())
        .map(|package| locked_package(package, folder))
        .collect::<Result<_, _>>()?;

    Ok(LockedEnvironment {
        name: environment.to_string(),
        platform: PlatformRow {
            name: row.name().to_string(),
            subdir: row.subdir(),
            virtual_packages: row.virtual_packages().to_vec(),
        },
        packages,
    })
}

fn sorted(names: impl Iterator<Item = String>) -> Vec<String> {
    let mut names: Vec<String> = names.collect();
    names.sort();
    names
}

fn unsupported(package: &Locked) -> Option<UnsupportedPackage> {
    match package {
        Locked::Conda(conda) => conda.as_source().map(|source| UnsupportedPackage {
            name: source.name().as_source().to_string(),
            kind: UnsupportedKind::Source,
        }),
        Locked::Pypi(pypi) => Some(UnsupportedPackage {
            name: pypi.name().to_string(),
            kind: UnsupportedKind::PyPi,
        }),
    }
}

fn locked_package(
    package: &CondaBinaryData,
    folder: &Path,
) -> Result<LockedPackage, LockFileError> {
    let location = package.location.to_string();
    let url = match &package.location {
        UrlOrPath::Url(url) => Some(url.clone()),
        UrlOrPath::Path(path) => std::path::absolute(folder.join(path.as_str()))
            .ok()
            .and_then(|path| Url::from_file_path(path).ok()),
    };
    let Some(url) = url else {
        return Err(LockFileError::InvalidLocation {
            name: package.package_record.name.as_source().to_string(),
            location,
        });
    };
    Ok(LockedPackage {
        location,
        record: RepoDataRecord {
            package_record: package.package_record.clone(),
            identifier: package.file_name.clone(),
            url,
            channel: package.channel.as_ref().map(ToString::to_string),
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHA256: &str = "0000000000000000000000000000000000000000000000000000000000000000";

    fn version_7(packages: &str) -> String {
        format!(
            "version: 7
platforms:
- name: p1
  subdir: linux-64
  virtual-packages:
  - __glibc=2.30
- name: osx-arm64
environments:
  default:
    channels:
    - url: https://channel.invalid/
    packages:
      p1:
      - conda: https://channel.invalid/linux-64/a-1-0.conda
      - conda: ./local/b-1-0.conda
  empty:
    channels:
    - url: https://channel.invalid/
    packages: {{}}
{packages}"
        )
    }

    fn two_conda_packages() -> String {
        version_7(&format!(
            "packages:
- conda: https://channel.invalid/linux-64/a-1-0.conda
  sha256: {SHA256}
- conda: ./local/b-1-0.conda
  subdir: linux-64
  sha256: {SHA256}
"
        ))
    }

    fn parse(text: &str) -> LockFile {
        LockFile::from_str_with_base_directory(text, Some(Path::new("/ws"))).unwrap()
    }

    fn select_default(text: &str, platform: &str) -> Result<LockedEnvironment, LockFileError> {
        select(
            &parse(text),
            Path::new("/ws/pixi.lock"),
            "default",
            platform,
        )
    }

    #[test]
    fn packages_keep_their_spelling() {
        let environment = select_default(&two_conda_packages(), "p1").unwrap();
        assert_eq!(
            environment.platform,
            PlatformRow {
                name: "p1".into(),
                subdir: Subdir::Linux64,
                virtual_packages: vec!["__glibc=2.30".into()],
            }
        );
        let locations: Vec<_> = (environment.packages.iter())
            .map(|package| (package.location.as_str(), package.record.url.as_str()))
            .collect();
        assert_eq!(
            locations,
            [
                ("./local/b-1-0.conda", "file:///ws/local/b-1-0.conda"),
                (
                    "https://channel.invalid/linux-64/a-1-0.conda",
                    "https://channel.invalid/linux-64/a-1-0.conda"
                ),
            ]
        );
    }

    #[test]
    fn version_6_rows_are_subdirs() {
        let text = format!(
            "version: 6
environments:
  default:
    channels:
    - url: https://channel.invalid/
    packages:
      linux-64:
      - conda: https://channel.invalid/linux-64/a-1-0.conda
packages:
- conda: https://channel.invalid/linux-64/a-1-0.conda
  sha256: {SHA256}
"
        );
        let environment = select_default(&text, "linux-64").unwrap();
        assert_eq!(environment.platform.subdir, Subdir::Linux64);
        assert!(environment.platform.virtual_packages.is_empty());
        assert_eq!(environment.packages.len(), 1);
    }

    #[test]
    fn an_environment_without_dependencies_is_empty() {
        let lock = parse(&two_conda_packages());
        let environment = select(&lock, Path::new("/ws/pixi.lock"), "empty", "p1").unwrap();
        assert!(environment.packages.is_empty());
    }

    #[test]
    fn what_is_there_is_named() {
        let text = two_conda_packages();
        let error = select_default(&text, "osx-arm64").unwrap_err();
        assert!(matches!(
            &error,
            LockFileError::UnknownPlatform { available, .. } if available == &["p1"]
        ));
        let lock = parse(&text);
        let error = select(&lock, Path::new("/ws/pixi.lock"), "test", "p1").unwrap_err();
        assert!(matches!(
            &error,
            LockFileError::UnknownEnvironment { available, .. } if available == &["default", "empty"]
        ));
    }

    #[test]
    fn every_unsupported_package_is_named() {
        let text = format!(
            "version: 7
platforms:
- name: linux-64
environments:
  default:
    channels:
    - url: https://channel.invalid/
    packages:
      linux-64:
      - conda: https://channel.invalid/linux-64/a-1-0.conda
      - conda_source: built[0123abcd] @ ./src
      - pypi: https://index.invalid/six-1.17.0-py2.py3-none-any.whl
packages:
- conda: https://channel.invalid/linux-64/a-1-0.conda
  sha256: {SHA256}
- conda_source: built[0123abcd] @ ./src
- pypi: https://index.invalid/six-1.17.0-py2.py3-none-any.whl
  name: six
  version: 1.17.0
"
        );
        let error = select_default(&text, "linux-64").unwrap_err();
        assert_eq!(
            error.to_string(),
            "the environment `default` has packages that cannot be mounted yet: \
             built (built from source), six (PyPI)"
        );
    }
}
