//! A pixi workspace: where it is, which environments it has, and where each one belongs.

pub mod folders;
pub mod host;
pub mod manifest;
pub mod platform;

use std::path::{Path, PathBuf};

use pixi_config::{Config, ConfigError, Surroundings};
use rattler_conda_types::MatchSpec;
use rattler_lock::LockFile;

use manifest::{DEFAULT_ENVIRONMENT, FILE_NAMES, Manifest, ManifestError};
use platform::{Host, Platform, PlatformError, Platforms};

use crate::marker;

/// A workspace that has been found.
#[derive(Debug, Clone)]
pub struct Workspace {
    /// The folder of the manifest, without symlinks.
    pub root: PathBuf,
    /// The manifest.
    pub manifest_path: PathBuf,
    /// The workspace's name: the manifest's, or else the folder's.
    pub name: String,
    /// What the manifest says.
    pub manifest: Manifest,
    /// The options that hold here.
    pub config: Config,
    /// What the process was started with.
    pub surroundings: Surroundings,
}

/// Why there is no workspace, or not the environment of it.
#[derive(Debug, thiserror::Error)]
pub enum WorkspaceError {
    /// No folder from here upwards holds a manifest.
    #[error("there is no pixi workspace in {} or the folders above it", .0.display())]
    NotFound(PathBuf),

    /// The manifest that was named is not there.
    #[error("there is no manifest at {}", .0.display())]
    NoManifest(PathBuf),

    /// The manifest that was named is not one of a workspace.
    #[error("{} is not the manifest of a pixi workspace", .0.display())]
    NotAWorkspace(PathBuf),

    /// The file that was named has not the name of a manifest.
    #[error("{} is not the name of a manifest", .0.display())]
    NotAManifest(PathBuf),

    /// A folder cannot be looked at.
    #[error("cannot look for a workspace at {}", path.display())]
    Inaccessible {
        /// The folder.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },

    /// The manifest cannot be used.
    #[error(transparent)]
    Manifest(#[from] ManifestError),

    /// The platforms in the manifest make no sense.
    #[error("cannot use the manifest {}", path.display())]
    Platforms {
        /// The manifest.
        path: PathBuf,
        /// What makes no sense.
        source: PlatformError,
    },

    /// The configuration cannot be used.
    #[error(transparent)]
    Config(#[from] ConfigError),

    /// The workspace has no such environment.
    #[error("the workspace `{workspace}` has no environment `{environment}`")]
    UnknownEnvironment {
        /// The workspace's name.
        workspace: String,
        /// The environment asked for.
        environment: String,
        /// The environments there are.
        available: Vec<String>,
    },

    /// The environment is for other machines.
    #[error("the environment `{environment}` is not for this machine ({machine})")]
    Unsupported {
        /// The environment.
        environment: String,
        /// This machine's subdir.
        machine: String,
        /// The platforms that the environment is for.
        available: Vec<String>,
    },

    /// The lock file has no row for the platform.
    #[error("the lock file {} has nothing for the platform `{platform}`", path.display())]
    NoRow {
        /// The lock file.
        path: PathBuf,
        /// The platform that the environment is for on this machine.
        platform: String,
        /// The rows there are.
        available: Vec<String>,
    },
}

/// An environment of a workspace on this machine.
#[derive(Debug, Clone)]
pub struct EnvironmentPlatform {
    /// The platform that pixi would use here.
    pub platform: Platform,
    /// The name of the row of the lock file that was solved for it.
    pub row: String,
    /// Whether the machine has all that the platform promises, and not just what the packages need.
    pub is_fulfilled: bool,
}

impl Workspace {
    /// Finds the workspace the way pixi does: by the manifest or folder that is named, or else from
    /// the current folder upwards, or else by `PIXI_PROJECT_MANIFEST`.
    ///
    /// # Errors
    ///
    /// See [`WorkspaceError`].
    pub fn find(
        manifest_path: Option<&Path>,
        surroundings: &Surroundings,
    ) -> Result<Self, WorkspaceError> {
        let (manifest_path, manifest) = match manifest_path {
            Some(path) => named(path)?,
            None => {
                let here = std::env::current_dir().map_err(|source| inaccessible(".", source))?;
                match upwards(&here)? {
                    Some(found) => found,
                    None => match surroundings.path("PIXI_PROJECT_MANIFEST") {
                        Some(path) => named(&path)?,
                        None => return Err(WorkspaceError::NotFound(here)),
                    },
                }
            }
        };
        let root = manifest_path
            .parent()
            .unwrap_or(Path::new("/"))
            .to_path_buf();
        let folder_name = (root.file_name()).map(|name| name.to_string_lossy().into_owned());
        let name = (manifest.name.clone())
            .or(folder_name)
            .unwrap_or_else(|| "workspace".to_string());
        Ok(Self {
            config: pixi_config::load(Some(&root), surroundings)?,
            root,
            manifest_path,
            name,
            manifest,
            surroundings: surroundings.clone(),
        })
    }

    /// The environment that is meant: the one named, or else the one of the shell that pixi has
    /// activated for this workspace, or else `default`.
    ///
    /// # Errors
    ///
    /// [`WorkspaceError::UnknownEnvironment`].
    pub fn environment_name(&self, named: Option<&str>) -> Result<String, WorkspaceError> {
        let is_elsewhere =
            (self.surroundings.path("PIXI_PROJECT_ROOT")).is_some_and(|root| root != self.root);
        let active = (!is_elsewhere && self.surroundings.variable("PIXI_IN_SHELL").is_some())
            .then(|| self.surroundings.text("PIXI_ENVIRONMENT_NAME"))
            .flatten();
        let name = named.or(active).unwrap_or(DEFAULT_ENVIRONMENT);
        let mut available = self.environment_names();
        if available.any(|known| known == name) {
            return Ok(name.to_string());
        }
        Err(WorkspaceError::UnknownEnvironment {
            workspace: self.name.clone(),
            environment: name.to_string(),
            available: self.environment_names().map(ToString::to_string).collect(),
        })
    }

    /// The environments, without those whose names pixi does not allow: they become names of folders.
    pub fn environment_names(&self) -> impl Iterator<Item = &str> {
        let is_allowed = |name: &&str| {
            let mut bytes = name.bytes();
            bytes.all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-'))
        };
        let names = self.manifest.environments.keys().map(String::as_str);
        names.filter(is_allowed)
    }

    /// The lock file, which need not exist.
    #[must_use]
    pub fn lock_file_path(&self) -> PathBuf {
        self.root.join("pixi.lock")
    }

    /// The platform that pixi would use for the environment on `host`, and its row in `lock`.
    ///
    /// # Errors
    ///
    /// Where the environment is not for this machine, or the lock file does not have it.
    pub fn platform_of(
        &self,
        environment: &str,
        lock: &LockFile,
        host: &dyn Host,
    ) -> Result<EnvironmentPlatform, WorkspaceError> {
        let platforms =
            Platforms::of(&self.manifest).map_err(|source| WorkspaceError::Platforms {
                path: self.manifest_path.clone(),
                source,
            })?;
        let declared = self.manifest.environments.get(environment);
        let candidates =
            platforms.of_environment(environment, &declared.cloned().unwrap_or_default());
        let best = platform::best(&candidates, host);
        let Some(platform) = best.or_else(|| {
            let requirements = |platform: &Platform| {
                (platforms.row_for(platform, lock))
                    .map(|row| required_of(lock, environment, &row))
                    .unwrap_or_default()
            };
            let platform = platform::best_by_requirements(&candidates, host, requirements)?;
            tracing::warn!(
                "this machine is none of the platforms of the environment `{environment}`, but has \
                 what its packages need"
            );
            Some(platform)
        }) else {
            let machine = host.subdir().map(|subdir| subdir.to_string());
            return Err(WorkspaceError::Unsupported {
                environment: environment.to_string(),
                machine: machine.unwrap_or_else(|| "unknown to conda".to_string()),
                available: candidates.iter().map(|p| p.name.clone()).collect(),
            });
        };
        let Some(row) = platforms.row_for(platform, lock) else {
            return Err(WorkspaceError::NoRow {
                path: self.lock_file_path(),
                platform: platform.name.clone(),
                available: lock.platforms().map(|row| row.name().to_string()).collect(),
            });
        };
        Ok(EnvironmentPlatform {
            platform: platform.clone(),
            row,
            is_fulfilled: best.is_some(),
        })
    }
}

/// What the packages of an environment on a row of `lock` require of the machine.
fn required_of(lock: &LockFile, environment: &str, row: &str) -> Vec<MatchSpec> {
    let packages = || {
        let (environment, row) = (lock.environment(environment)?, lock.platform(row)?);
        Some(environment.conda_packages(row)?.collect::<Vec<_>>())
    };
    let packages = packages().unwrap_or_default();
    let depends = packages.iter().flat_map(|package| package.depends());
    marker::requirements(depends.map(String::as_str))
}

/// The workspace of a manifest, or of a folder that holds one; a package's manifest belongs to the
/// workspace above it.
fn named(path: &Path) -> Result<(PathBuf, Manifest), WorkspaceError> {
    let resolved = path.canonicalize().map_err(|source| match source.kind() {
        std::io::ErrorKind::NotFound => WorkspaceError::NoManifest(path.to_path_buf()),
        _ => inaccessible(path, source),
    })?;
    let manifest_path = if resolved.is_dir() {
        manifest_in(&resolved).ok_or_else(|| WorkspaceError::NoManifest(path.to_path_buf()))?
    } else {
        resolved
    };
    if !(manifest_path.file_name()).is_some_and(|name| FILE_NAMES.iter().any(|n| name == *n)) {
        return Err(WorkspaceError::NotAManifest(path.to_path_buf()));
    }
    if let Some(manifest) = manifest::read(&manifest_path)? {
        return Ok((manifest_path, manifest));
    }
    let above = manifest_path.parent().and_then(Path::parent);
    (above.map(upwards).transpose()?.flatten())
        .ok_or_else(|| WorkspaceError::NotAWorkspace(path.to_path_buf()))
}

/// The first workspace in `folder` or the folders above it.
fn upwards(folder: &Path) -> Result<Option<(PathBuf, Manifest)>, WorkspaceError> {
    let folder = (folder.canonicalize()).map_err(|source| inaccessible(folder, source))?;
    for folder in folder.ancestors() {
        if let Some(path) = manifest_in(folder)
            && let Some(manifest) = manifest::read(&path)?
        {
            return Ok(Some((path, manifest)));
        }
    }
    Ok(None)
}

fn manifest_in(folder: &Path) -> Option<PathBuf> {
    let mut candidates = FILE_NAMES.iter().map(|name| folder.join(name));
    candidates.find(|path| path.is_file())
}

fn inaccessible(path: impl Into<PathBuf>, source: std::io::Error) -> WorkspaceError {
    WorkspaceError::Inaccessible {
        path: path.into(),
        source,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    struct Folder(tempfile::TempDir);

    impl Folder {
        fn new() -> Self {
            Self(tempfile::tempdir().unwrap())
        }

        fn path(&self) -> PathBuf {
            self.0.path().canonicalize().unwrap()
        }

        fn write(&self, path: &str, text: &str) -> PathBuf {
            let path = self.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, text).unwrap();
            path
        }

        fn find(&self, named: &str) -> Result<Workspace, WorkspaceError> {
            Workspace::find(Some(&self.path().join(named)), &surroundings(&[]))
        }
    }

    fn surroundings(variables: &[(&str, &Path)]) -> Surroundings {
        Surroundings {
            variables: (variables.iter())
                .map(|(name, value)| (name.into(), value.as_os_str().into()))
                .collect(),
            cache_dir: Some("/cache".into()),
            ..Surroundings::default()
        }
    }

    #[test]
    fn a_workspace_is_named_by_its_file_its_folder_or_a_package_in_it() {
        let folder = Folder::new();
        let manifest = folder.write("ws/pixi.toml", "[workspace]");
        folder.write("ws/member/pixi.toml", "[package]\nname = 'm'");
        folder.write("ws/member/deep/pyproject.toml", "[project]\nname = 'p'");
        for named in [
            "ws",
            "ws/pixi.toml",
            "ws/member",
            "ws/member/pixi.toml",
            "ws/member/deep",
        ] {
            let workspace = folder.find(named).unwrap();
            assert_eq!(workspace.manifest_path, manifest, "{named}");
            assert_eq!(workspace.name, "ws");
        }
    }

    #[test]
    fn what_is_no_workspace_is_said() {
        let folder = Folder::new();
        folder.write("package/pixi.toml", "[package]\nname = 'm'");
        folder.write("text/notes.txt", "");
        folder.write("broken/pixi.toml", "[workspace");
        assert!(matches!(
            folder.find("none"),
            Err(WorkspaceError::NoManifest(_))
        ));
        assert!(matches!(
            folder.find("text"),
            Err(WorkspaceError::NoManifest(_))
        ));
        assert!(matches!(
            folder.find("package"),
            Err(WorkspaceError::NotAWorkspace(_))
        ));
        assert!(matches!(
            folder.find("text/notes.txt"),
            Err(WorkspaceError::NotAManifest(_))
        ));
        assert!(matches!(
            folder.find("broken"),
            Err(WorkspaceError::Manifest(ManifestError::Parse { .. }))
        ));
    }

    #[test]
    fn the_environment_of_an_activated_shell_is_meant_in_its_own_workspace_only() {
        let folder = Folder::new();
        folder.write(
            "pixi.toml",
            "[workspace]\n[feature.t]\n[environments]\ntest = ['t']\n'../up' = ['t']",
        );
        let mut workspace = folder.find("").unwrap();
        assert_eq!(workspace.environment_name(None).unwrap(), "default");
        assert_eq!(workspace.environment_name(Some("test")).unwrap(), "test");
        let root = folder.path();
        let shell = [
            ("PIXI_IN_SHELL", Path::new("1")),
            ("PIXI_ENVIRONMENT_NAME", Path::new("test")),
            ("PIXI_PROJECT_ROOT", &root),
        ];
        workspace.surroundings = surroundings(&shell);
        assert_eq!(workspace.environment_name(None).unwrap(), "test");
        let elsewhere = [
            shell[0],
            shell[1],
            ("PIXI_PROJECT_ROOT", Path::new("/other")),
        ];
        workspace.surroundings = surroundings(&elsewhere);
        assert_eq!(workspace.environment_name(None).unwrap(), "default");

        assert!(workspace.environment_name(Some("../up")).is_err());
        let error = workspace.environment_name(Some("prod")).unwrap_err();
        assert!(matches!(
            &error,
            WorkspaceError::UnknownEnvironment { available, .. } if available == &["default", "test"]
        ));
    }

    #[test]
    fn detached_environments_are_linked_from_the_workspace() {
        let folder = Folder::new();
        folder.write("ws/pixi.toml", "[workspace]\nname = 'name'");
        let workspace = folder.find("ws").unwrap();
        let usual = workspace.root.join(".pixi/envs");
        assert_eq!(workspace.environments_dir(), usual);
        workspace.prepare_folders().unwrap();
        let ignored = fs::read_to_string(workspace.root.join(".pixi/.gitignore")).unwrap();
        assert_eq!(ignored, "*\n!config.toml\n!mount.toml\n");
        assert!(!usual.exists());

        folder.write(
            "ws/.pixi/config.toml",
            &format!(
                "detached-environments = '{}'",
                folder.path().join("d").display()
            ),
        );
        let workspace = folder.find("ws").unwrap();
        let hash = xxhash_rust::xxh3::xxh3_64(workspace.root.to_str().unwrap().as_bytes());
        let detached = folder.path().join(format!("d/name-{hash}/envs"));
        assert_eq!(workspace.environments_dir(), detached);
        for _ in 0..2 {
            workspace.prepare_folders().unwrap();
            assert_eq!(fs::read_link(&usual).unwrap(), detached);
        }
        fs::remove_file(&usual).unwrap();
        std::os::unix::fs::symlink("/somewhere/else", &usual).unwrap();
        workspace.prepare_folders().unwrap();
        assert_eq!(fs::read_link(&usual).unwrap(), detached);
        // A folder stays what it is.
        fs::remove_file(&usual).unwrap();
        fs::create_dir(&usual).unwrap();
        workspace.prepare_folders().unwrap();
        assert!(fs::symlink_metadata(&usual).unwrap().is_dir());
    }
}
