//! Errors as they are shown: what went wrong, and what to do about it.

use std::fmt;

use rattler_fs::fuse::{MountError, SessionError, UnmountError};
use rattler_fs::layout::LayoutError;
use rattler_fs::layout::fetch::FetchError;
use rattler_fs::layout::lock_file::LockFileError;

use crate::environment::EnvironmentError;
use crate::mount_point::MountPointError;
use crate::workspace::WorkspaceError;

/// Why a command fails.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CommandError {
    #[error(transparent)]
    Workspace(#[from] WorkspaceError),

    #[error(transparent)]
    Environment(#[from] EnvironmentError),

    #[error(transparent)]
    MountPoint(#[from] MountPointError),

    #[error(transparent)]
    Mount(#[from] MountError),

    #[error(transparent)]
    Session(#[from] SessionError),

    #[error("cannot unmount {path}")]
    Unmount { path: String, source: UnmountError },

    #[error("nothing is mounted at {0}")]
    NotMounted(String),

    #[error("{source_name} is mounted at {path} by {owner}")]
    NotOurs {
        path: String,
        source_name: String,
        owner: String,
    },

    #[error("writable mounts are not there yet")]
    Writable,

    #[error("the mount backend `nfs` is not available")]
    NoNfs,

    #[error("the environment variable {name} has the value `{value}`, expected {expected}")]
    InvalidVariable {
        name: &'static str,
        value: String,
        expected: &'static str,
    },

    #[error("{doing}")]
    Io {
        doing: String,
        source: std::io::Error,
    },
}

impl miette::Diagnostic for CommandError {
    fn help<'a>(&'a self) -> Option<Box<dyn fmt::Display + 'a>> {
        let help = match self {
            Self::Workspace(error) | Self::Environment(EnvironmentError::Workspace(error)) => {
                workspace_help(error)?
            }
            Self::Environment(error) => environment_help(error)?,
            Self::MountPoint(error) => mount_point_help(error)?,
            Self::Mount(error) => mount_help(error)?,
            Self::Unmount { source, .. } => unmount_help(source)?,
            Self::NotMounted(_) => "`pixi-mount --list` shows what is mounted".to_string(),
            Self::NotOurs { owner, .. } if owner == "root" => "only root can unmount it".into(),
            Self::NotOurs { owner, .. } => format!("only {owner} and root can unmount it"),
            Self::Writable => {
                "leave `--writable` and PIXI_MOUNT_READ_ONLY away to mount read-only".to_string()
            }
            Self::NoNfs => "available is `fuse`, which `auto` takes".to_string(),
            Self::Session(_) | Self::InvalidVariable { .. } | Self::Io { .. } => return None,
        };
        Some(Box::new(help))
    }
}

fn workspace_help(error: &WorkspaceError) -> Option<String> {
    Some(match error {
        WorkspaceError::NotFound(_)
        | WorkspaceError::NoManifest(_)
        | WorkspaceError::NotAWorkspace(_)
        | WorkspaceError::NotAManifest(_) => {
            "go to a workspace, or name its `pixi.toml`, `pyproject.toml` or folder with \
             `--manifest-path`; `pixi init` makes a new one"
                .to_string()
        }
        WorkspaceError::UnknownEnvironment { available, .. } => available_help(available),
        WorkspaceError::Unsupported {
            available, machine, ..
        } => format!(
            "it is for {}; add a platform for this machine to the workspace: \
             `pixi workspace platform add {machine}`",
            names(available)
        ),
        WorkspaceError::NoRow { available, .. } => format!(
            "it has {}; bring it up to date: `pixi lock`",
            names(available)
        ),
        WorkspaceError::Inaccessible { .. }
        | WorkspaceError::Manifest(_)
        | WorkspaceError::Platforms { .. }
        | WorkspaceError::Config(_) => return None,
    })
}

fn environment_help(error: &EnvironmentError) -> Option<String> {
    Some(match error {
        EnvironmentError::Workspace(error) => return workspace_help(error),
        EnvironmentError::LockFile(error) => match error {
            LockFileError::Missing(_) => "make one: `pixi lock`".to_string(),
            LockFileError::Parse { .. } | LockFileError::TooDeep(_) => {
                "it may be damaged, or written by a newer pixi; make a new one: `pixi lock`"
                    .to_string()
            }
            LockFileError::UnknownEnvironment { available, .. } => {
                format!(
                    "{}; bring it up to date: `pixi lock`",
                    available_help(available)
                )
            }
            LockFileError::UnknownPlatform { available, .. } => format!(
                "it has them for {}; bring it up to date: `pixi lock`",
                names(available)
            ),
            LockFileError::Unsupported { .. } => {
                "install the environment instead: `pixi install`".to_string()
            }
            LockFileError::Read { .. } | LockFileError::InvalidLocation { .. } => return None,
        },
        EnvironmentError::Fetch(error) => match error {
            FetchError::Gone { .. } => {
                "put the file back, or lock without it: `pixi lock`".to_string()
            }
            FetchError::Fetch { .. } => {
                "without the network, only environments can be mounted whose packages are all in \
                 the package cache"
                    .to_string()
            }
            FetchError::Cache { .. } => {
                "PIXI_CACHE_DIR can name another folder for caches".to_string()
            }
            FetchError::NoHash { .. } => "lock it again: `pixi update`".to_string(),
        },
        EnvironmentError::Layout(error) => match error {
            LayoutError::PrefixTooLong { .. } => {
                "mount at a shorter path: `--mount-point`".to_string()
            }
            LayoutError::MissingPython { .. } => {
                "add python to the environment: `pixi add python`".to_string()
            }
            LayoutError::Damaged(_) => {
                "it was fetched again and is still damaged: the package itself may be broken"
                    .to_string()
            }
            LayoutError::System { .. } => {
                "each package takes an open file; `ulimit -n` says how many there may be"
                    .to_string()
            }
            _ => return None,
        },
        EnvironmentError::NoCache => "PIXI_CACHE_DIR names a folder for caches".to_string(),
    })
}

fn mount_point_help(error: &MountPointError) -> Option<String> {
    Some(match error {
        MountPointError::NotEmpty(_) | MountPointError::NotAFolder(_) => {
            "an environment is mounted on an empty folder, or where there is none yet; name \
             another with `--mount-point`"
                .to_string()
        }
        MountPointError::Installed(_) => {
            "`--replace` moves it aside while the mount is there".to_string()
        }
        MountPointError::AsideTaken { aside, .. } => {
            format!("remove {}, or move it back by hand", aside.display())
        }
        MountPointError::AlreadyMounted { .. } => {
            "`pixi-umount` unmounts it, `pixi-mount --list` shows what is mounted".to_string()
        }
        MountPointError::Unresponsive { .. } => {
            "end its server, then `pixi-umount --force` clears the mount".to_string()
        }
        MountPointError::MountedByOther { .. } => {
            "mount at another place: `--mount-point`".to_string()
        }
        MountPointError::Taken(_) => "wait for it, or end it".to_string(),
        MountPointError::StaysDead { path, .. } => {
            format!("try `fusermount3 -u -z {}`", path.display())
        }
        MountPointError::Io { .. } => return None,
    })
}

fn mount_help(error: &MountError) -> Option<String> {
    Some(match error {
        MountError::NoDevice => {
            "load the kernel's module with `modprobe fuse`; a container needs `--device /dev/fuse`"
                .to_string()
        }
        MountError::DeviceForbidden(_) => {
            "the administrator can open it to everybody: `chmod 666 /dev/fuse`".to_string()
        }
        MountError::NoFusermount => {
            "install it: the package is called `fuse3` on most systems".to_string()
        }
        MountError::Fusermount { message, .. } if message.contains("user_allow_other") => {
            "leave `--allow-other` away, or have the administrator set `user_allow_other` in \
             /etc/fuse.conf"
                .to_string()
        }
        _ => return None,
    })
}

fn unmount_help(error: &UnmountError) -> Option<String> {
    Some(match error {
        UnmountError::Busy => "`--force` unmounts it anyway".to_string(),
        UnmountError::NoFusermount => {
            "install it: the package is called `fuse3` on most systems".to_string()
        }
        _ => return None,
    })
}

fn available_help(names_there_are: &[String]) -> String {
    match names_there_are {
        [] => "there are none".to_string(),
        [one] => format!("there is {one}"),
        several => format!("there are {}", names(several)),
    }
}

fn names(names: &[String]) -> String {
    match names {
        [] => "nothing".to_string(),
        names => names.join(", "),
    }
}
