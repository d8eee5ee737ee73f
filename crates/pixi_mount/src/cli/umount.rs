//! `pixi-umount`: unmounts environments, and clears mounts whose servers died.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use pixi_config::Surroundings;
use rattler_fs::fuse::mount_table::{self, ServerState};
use rattler_fs::fuse::{Unmount, UnmountError};

use super::diagnostic::CommandError;
use super::list::own_mounts;
use super::mount::{in_use, io, place};
use super::{EnvironmentArgs, FAILURE, IN_USE, Verbosity, say};
use crate::mount_point::{self, FS_TYPE, PATIENCE};
use crate::mount_users::unmount_when_free;
use crate::workspace::Workspace;

pub(super) const ABOUT: &str = "Unmount an environment";

pub(super) const LONG_ABOUT: &str = "Unmount an environment

An environment that is in use stays, and the processes that use it are named. A mount whose server
has died is cleared.";

/// Arguments of `pixi-umount`.
#[derive(Debug, Args)]
pub struct UmountArgs {
    #[command(flatten)]
    environment: EnvironmentArgs,

    /// Unmount what is mounted here
    #[arg(long, value_name = "DIR", conflicts_with_all = ["environment", "manifest_path"])]
    mount_point: Option<PathBuf>,

    /// Unmount all environments that you have mounted on this machine
    #[arg(long, conflicts_with_all = ["environment", "manifest_path", "mount_point"])]
    all: bool,

    /// Unmount although it is in use: programs that use it get errors
    #[arg(long, short)]
    force: bool,

    #[command(flatten)]
    pub(super) verbosity: Verbosity,
}

pub(super) fn run(args: &UmountArgs) -> Result<ExitCode, CommandError> {
    if !args.all {
        let path = match &args.mount_point {
            Some(path) => mount_point::resolve(path)
                .map_err(|source| io(format!("cannot look at {}", path.display()), source))?,
            None => {
                let manifest_path = args.environment.manifest_path.as_deref();
                let workspace = Workspace::find(manifest_path, &Surroundings::of_this_process())?;
                let named = args.environment.environment.as_deref();
                let environment = workspace.environment_name(named)?;
                place(&workspace, &environment, None)?.1
            }
        };
        let is_gone = unmount(&path, args)?;
        return Ok(exit_code(is_gone));
    }

    let mut code = ExitCode::SUCCESS;
    // The topmost first, where mounts lie on one another.
    for entry in own_mounts()?.into_iter().rev() {
        match unmount(&entry.mount_point, args) {
            Ok(true) | Err(CommandError::NotMounted(_)) => {}
            Ok(false) => code = exit_code(false),
            Err(error) => {
                say(format_args!("{:?}", miette::Report::new(error)));
                code = ExitCode::from(FAILURE);
            }
        }
    }
    Ok(code)
}

fn exit_code(is_gone: bool) -> ExitCode {
    if is_gone {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(IN_USE)
    }
}

/// Unmounts the environment at `path`; says whether it is gone, which it is not while it is in use.
fn unmount(path: &Path, args: &UmountArgs) -> Result<bool, CommandError> {
    let shown = path.display().to_string();
    let entry = mount_table::find(path)
        .map_err(|source| io("cannot read the mount table", source))?
        .filter(|entry| entry.fs_type == FS_TYPE)
        .ok_or_else(|| CommandError::NotMounted(shown.clone()))?;
    if let Some(owner) = mount_point::other_owner(&entry) {
        return Err(CommandError::NotOurs {
            path: shown,
            source_name: entry.source,
            owner,
        });
    }

    let state = mount_table::server_state(path, PATIENCE);
    let is_dead = state == ServerState::Dead;
    if state == ServerState::Unresponsive && args.force {
        // Without it the programs that wait for an answer would wait on.
        if let Err(error) = mount_table::abort(&entry) {
            tracing::warn!("cannot end the requests that wait for an answer: {error}");
        }
    }
    let result = if is_dead {
        mount_point::unmount_dead(path)
    } else if args.force {
        match mount_table::unmount(path, Unmount::Plain) {
            Err(UnmountError::Busy) => mount_table::unmount(path, Unmount::Detach),
            result => result,
        }
    } else {
        unmount_when_free(path, || mount_table::unmount(path, Unmount::Plain))
    };
    match result {
        Ok(()) | Err(UnmountError::NotMounted) => {
            if is_dead {
                // Nobody else does it any more.
                mount_point::put_back(path);
            }
            if args.verbosity.says_what_happens() {
                say(format_args!("Unmounted {shown}"));
            }
            Ok(true)
        }
        Err(UnmountError::Busy) => {
            say(in_use(path));
            say("`--force` unmounts it anyway.");
            Ok(false)
        }
        Err(source) => Err(CommandError::Unmount {
            path: shown,
            source,
        }),
    }
}
