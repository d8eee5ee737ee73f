//! `pixi-mount`: mounts an environment and serves it until it is unmounted.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, mpsc};
use std::thread;

use clap::{Args, ValueEnum};
use pixi_config::{Surroundings, parse_bool};
use rattler_fs::fuse::{MountOptions, Session, SessionError, Unmount, UnmountError, Unmounter};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::diagnostic::CommandError;
use super::{EnvironmentArgs, Verbosity, list, say};
use crate::environment;
use crate::mount_point::{self, MountPoint, Replace};
use crate::mount_users::{unmount_when_free, users_of};
use crate::workspace::Workspace;

pub(super) const ABOUT: &str = "Mount an environment instead of installing it";

pub(super) const LONG_ABOUT: &str = "Mount an environment instead of installing it

Serves every file of the environment straight from the package cache, as if it were installed, until
Ctrl+C or `pixi-umount`. Packages that are missing from the cache are fetched first.";

/// Threads that see to downloads; extracting has its own.
const FETCHING_THREADS: usize = 4;

/// Arguments of `pixi-mount`.
#[derive(Debug, Args)]
pub struct MountArgs {
    #[command(flatten)]
    environment: EnvironmentArgs,

    /// Mount here, and not where pixi would install the environment
    #[arg(long, value_name = "DIR")]
    mount_point: Option<PathBuf>,

    /// Move an installed environment aside while the mount is there
    #[arg(long)]
    replace: bool,

    /// Let other users in; root always does
    #[arg(long)]
    allow_other: bool,

    /// Mount read-only, which is the only way so far [env: PIXI_MOUNT_READ_ONLY]
    #[arg(long)]
    read_only: bool,

    /// Mount writable, which is not there yet
    #[arg(long, conflicts_with = "read_only")]
    writable: bool,

    /// How to mount
    #[arg(
        long,
        value_name = "BACKEND",
        env = "PIXI_MOUNT_BACKEND",
        default_value = "auto"
    )]
    mount_backend: Backend,

    /// Show what is mounted, and mount nothing
    #[arg(
        long,
        conflicts_with_all = ["environment", "manifest_path", "mount_point", "replace", "allow_other"]
    )]
    list: bool,

    /// With `--list`: as JSON
    #[arg(long, requires = "list")]
    json: bool,

    #[command(flatten)]
    pub(super) verbosity: Verbosity,
}

/// What serves a mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Backend {
    /// The best that is available
    Auto,
    /// FUSE
    Fuse,
    /// NFS on the loopback device
    Nfs,
}

pub(super) fn run(args: &MountArgs) -> Result<ExitCode, CommandError> {
    if args.list {
        return list::run(args.json);
    }
    let surroundings = Surroundings::of_this_process();
    check_options(args, &surroundings)?;
    let workspace = Workspace::find(args.environment.manifest_path.as_deref(), &surroundings)?;
    let environment = workspace.environment_name(args.environment.environment.as_deref())?;
    let (prefix, path) = place(&workspace, &environment, args.mount_point.as_deref())?;
    let replace = if args.replace {
        Replace::Installed
    } else {
        Replace::Never
    };
    // Before anything is fetched.
    mount_point::check(&path, replace)?;

    let resolved = environment::resolve(&workspace, &environment)?;
    raise_descriptor_limit();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(FETCHING_THREADS)
        .enable_all()
        .build()
        .map_err(|source| io("cannot start the threads for fetching packages", source))?;
    let fs = environment::assemble(&workspace, &resolved, &prefix, runtime.handle())?;
    let (packages, files) = (fs.tree().package_count(), fs.tree().file_count());
    // Not needed for serving, which can take weeks.
    drop(resolved);

    // From here on signals wait until there is something to unmount.
    let signals = Signals::new([SIGINT, SIGTERM, SIGHUP])
        .map_err(|source| io("cannot listen to signals", source))?;
    if args.mount_point.is_none() {
        workspace
            .prepare_folders()
            .map_err(|source| io("cannot make the workspace's `.pixi` folder", source))?;
    }
    let mut mount_point = MountPoint::claim(&path, replace)?;
    let options = MountOptions {
        mount_point: path.clone(),
        source: format!("pixi:{}/{environment}", workspace.name),
        read_only: true,
        allow_other: args.allow_other || rustix::process::geteuid().is_root(),
    };
    let session = Session::mount(Arc::new(fs), options)?;
    mount_point.mounted();
    let report = |message: String| {
        if args.verbosity.says_what_happens() {
            say(message);
        }
    };
    if let Some(aside) = mount_point.moved_aside() {
        report(format!(
            "The installed environment is at {} while the mount is there.",
            aside.display()
        ));
    }
    report(format!(
        "Mounted {} ({packages} packages, {files} files, fuse, read-only). \
         Press Ctrl+C to unmount.",
        path.display()
    ));

    let served = serve(session, signals, &path);
    mount_point.release();
    served?;
    report(format!("Unmounted {}", path.display()));
    Ok(ExitCode::SUCCESS)
}

/// Allows as many open files as the system lets us: each package takes one, and the usual soft limit of
/// 1,024 is for programs that use `select`.
fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::debug!("the limit of open files stays as it is: {error}");
    }
}

fn check_options(args: &MountArgs, surroundings: &Surroundings) -> Result<(), CommandError> {
    if args.mount_backend == Backend::Nfs {
        return Err(CommandError::NoNfs);
    }
    const READ_ONLY: &str = "PIXI_MOUNT_READ_ONLY";
    let variable = (surroundings.variable(READ_ONLY))
        .map(|value| {
            let value = value.to_string_lossy();
            parse_bool(&value).ok_or_else(|| CommandError::InvalidVariable {
                name: READ_ONLY,
                value: value.into_owned(),
                expected: "`true` or `false`",
            })
        })
        .transpose()?;
    if args.writable || (variable == Some(false) && !args.read_only) {
        return Err(CommandError::Writable);
    }
    Ok(())
}

/// The path that goes into patched files, and the same without symlinks.
pub(super) fn place(
    workspace: &Workspace,
    environment: &str,
    mount_point: Option<&Path>,
) -> Result<(PathBuf, PathBuf), CommandError> {
    let resolve = |path: &Path| {
        mount_point::resolve(path)
            .map_err(|source| io(format!("cannot look at {}", path.display()), source))
    };
    match mount_point {
        Some(path) => {
            let path = resolve(path)?;
            Ok((path.clone(), path))
        }
        None => {
            let prefix = workspace.environments_dir().join(environment);
            let path = resolve(&prefix)?;
            Ok((prefix, path))
        }
    }
}

/// How serving ended.
enum End {
    /// The mount is gone.
    Unmounted(Result<(), SessionError>),
    /// The mount was taken out of the name space while it was in use.
    Detached,
}

/// Serves until somebody unmounts, which signals do.
fn serve(session: Session, mut signals: Signals, path: &Path) -> Result<(), CommandError> {
    let unmounter = session.unmounter();
    let (sender, receiver) = mpsc::channel();
    let ended = sender.clone();
    let spawn = |name: &str, task: Box<dyn FnOnce() + Send>| {
        thread::Builder::new()
            .name(name.to_string())
            .spawn(task)
            .map_err(|source| io("cannot start a thread", source))
    };
    spawn(
        "session",
        Box::new(move || {
            let _ = ended.send(End::Unmounted(session.run()));
        }),
    )?;
    let path = path.to_path_buf();
    spawn(
        "signals",
        Box::new(move || {
            let mut asked = false;
            for signal in signals.forever() {
                if unmount(&unmounter, signal, &mut asked, &path) {
                    let _ = sender.send(End::Detached);
                }
            }
        }),
    )?;
    give_memory_back();
    match receiver.recv() {
        Ok(End::Unmounted(result)) => Ok(result?),
        // Programs that still use it get errors once this process ends, which is now.
        Ok(End::Detached) | Err(_) => Ok(()),
    }
}

/// Bringing an environment together takes twice the memory that serving it does, and the allocator
/// keeps what it once had.
fn give_memory_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it takes no pointers, and locks what it looks at.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Unmounts as `signal` asks for; says whether that was by force.
fn unmount(unmounter: &Unmounter, signal: i32, asked: &mut bool, path: &Path) -> bool {
    match unmount_when_free(path, || unmounter.unmount(Unmount::Plain)) {
        Err(UnmountError::Busy) if signal == SIGINT && !*asked => {
            *asked = true;
            say(in_use(path));
            say("Press Ctrl+C again to unmount it anyway.");
            return false;
        }
        Err(UnmountError::Busy) => {}
        // The session notices by itself.
        Ok(()) | Err(UnmountError::NotMounted) => return false,
        Err(error) => {
            say(format_args!("cannot unmount {}: {error}", path.display()));
            return false;
        }
    }
    match unmounter.unmount(Unmount::Detach) {
        Ok(()) => true,
        Err(UnmountError::NotMounted) => false,
        Err(error) => {
            say(format_args!("cannot unmount {}: {error}", path.display()));
            false
        }
    }
}

/// Says who uses the mount.
pub(super) fn in_use(path: &Path) -> String {
    let users = users_of(path);
    if users.is_empty() {
        return format!(
            "{} is in use, by processes that cannot be seen from here.",
            path.display()
        );
    }
    let users: Vec<String> = users.iter().map(ToString::to_string).collect();
    format!("{} is in use by {}.", path.display(), users.join(", "))
}

pub(super) fn io(doing: impl Into<String>, source: std::io::Error) -> CommandError {
    CommandError::Io {
        doing: doing.into(),
        source,
    }
}
