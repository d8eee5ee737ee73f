//! The columns: how an environment of each is made, and what is measured of it.

use std::{
    ffi::OsStr,
    fmt,
    fs::Permissions,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::Duration,
};

use corpus::{wheels::Corpus, workspace::FICTIVE_CHANNEL};
use miette::{Context, IntoDiagnostic};
use tempfile::TempDir;

use super::{MEMORY_ROWS, ROWS};
use crate::{
    mount::{self, Server, User, measure},
    place,
};

/// User and group `nobody`.
const NOBODY: u32 = 65_534;

/// How often a server's memory is looked at.
const MEMORY_POLL: Duration = Duration::from_millis(100);

/// Who has the environment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Column {
    Installed,
    MountedRoot,
    MountedUser,
    RattlerVfs,
}

impl fmt::Display for Column {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(match self {
            Self::Installed => "installed",
            Self::MountedRoot => "mounted.root",
            Self::MountedUser => "mounted.user",
            Self::RattlerVfs => "rattler_vfs",
        })
    }
}

impl Column {
    fn user(self) -> User {
        (self == Self::MountedUser).then_some(NOBODY)
    }
}

/// What all columns share.
pub(super) struct Bench {
    pub(super) corpus: Corpus,
    /// Where the environments are while they are measured: on the package cache's file system.
    folder: TempDir,
    pixi_mount: PathBuf,
    rattler_vfs: PathBuf,
}

impl Bench {
    /// Builds what the columns need.
    pub(super) fn new(corpus: Corpus, columns: &[Column]) -> miette::Result<Self> {
        let workspace = corpus.manifest();
        let workspace = workspace.parent().expect("a manifest is in a folder");
        let folder = tempfile::Builder::new()
            .prefix("bench-")
            .tempdir_in(workspace)
            .into_diagnostic()?;
        // What mounts as another user has to come through.
        fs_err::set_permissions(folder.path(), Permissions::from_mode(0o755)).into_diagnostic()?;
        let mounted = columns
            .iter()
            .any(|column| matches!(column, Column::MountedRoot | Column::MountedUser));
        let pixi_mount = if mounted {
            place::pixi_mount()?
        } else {
            PathBuf::new()
        };
        let peer = columns.contains(&Column::RattlerVfs);
        let rattler_vfs = if peer {
            place::rattler_vfs()?
        } else {
            PathBuf::new()
        };
        if columns.contains(&Column::MountedUser) {
            // Its owner locks the cache; what is in it stays as it is.
            let cache = corpus.package_cache();
            std::os::unix::fs::chown(&cache, Some(NOBODY), Some(NOBODY)).into_diagnostic()?;
            for entry in fs_err::read_dir(&cache).into_diagnostic()? {
                let entry = entry.into_diagnostic()?;
                if entry.file_type().into_diagnostic()?.is_file() {
                    std::os::unix::fs::chown(entry.path(), Some(NOBODY), Some(NOBODY))
                        .into_diagnostic()?;
                }
            }
        }
        let bench = Self {
            corpus,
            folder,
            pixi_mount,
            rattler_vfs,
        };
        if peer {
            bench.write_peer_lock_file()?;
        }
        Ok(bench)
    }

    fn peer_lock_file(&self) -> PathBuf {
        self.folder.path().join("peer.lock")
    }

    /// rattler_vfs takes no packages by path. It gets URLs; the packages are in the cache, by their hashes.
    fn write_peer_lock_file(&self) -> miette::Result<()> {
        let lock_file = self.corpus.manifest().with_file_name("pixi.lock");
        let lock_file = fs_err::read_to_string(lock_file).into_diagnostic()?;
        let path = format!("conda: {}/", self.corpus.channel().display());
        let url = format!("conda: {FICTIVE_CHANNEL}");
        fs_err::write(self.peer_lock_file(), lock_file.replace(&path, &url)).into_diagnostic()
    }

    /// Measures one column once. Gives the rows that were asked for.
    pub(super) fn measure(
        &self,
        column: Column,
        rows: &[&str],
        cold: bool,
    ) -> miette::Result<Vec<(String, f64)>> {
        let suffix = if cold { ".cold" } else { "" };
        let wanted = |row: &str| rows.contains(&format!("{row}{suffix}").as_str());
        let before = || if cold { drop_caches() } else { Ok(()) };
        if !cold {
            measure(
                None,
                &["__read".as_ref(), self.corpus.package_cache().as_os_str()],
            )?;
        }
        before()?;

        let mut values = Vec::new();
        let root = self.folder.path().join(column.to_string());
        let (server, ready) = match column {
            Column::Installed => (None, self.install(&root, wanted(ROWS[0]))?),
            _ => {
                let server = self.mount(column, &root)?;
                let ready = server.ready().as_secs_f64();
                (Some(server), Some(ready))
            }
        };
        values.extend(ready.map(|ready| (ROWS[0], ready)));

        let (peak, done) = (AtomicU64::new(0), AtomicBool::new(false));
        let measured: miette::Result<()> = std::thread::scope(|scope| {
            if let Some(server) = server
                .as_ref()
                .filter(|_| rows.iter().any(|row| MEMORY_ROWS.contains(row)))
            {
                let (peak, done, id) = (&peak, &done, server.id());
                scope.spawn(move || {
                    while !done.load(Ordering::Relaxed) {
                        peak.fetch_max(private_memory(id).unwrap_or(0), Ordering::Relaxed);
                        std::thread::sleep(MEMORY_POLL);
                    }
                });
            }
            let result = (|| {
                for (task, first, again) in
                    [("__walk", ROWS[1], ROWS[2]), ("__read", ROWS[3], ROWS[4])]
                {
                    let whole = rows.iter().any(|row| MEMORY_ROWS.contains(row));
                    if !whole && !wanted(first) && !wanted(again) {
                        continue;
                    }
                    before()?;
                    for row in [first, again] {
                        values.push((
                            row,
                            measure(column.user(), &[OsStr::new(task), root.as_os_str()])?,
                        ));
                    }
                }
                Ok(())
            })();
            done.store(true, Ordering::Relaxed);
            result
        });
        measured?;
        let mut memory = Vec::new();
        if let Some(server) = server {
            let after = private_memory(server.id()).into_diagnostic()?;
            memory = vec![
                (MEMORY_ROWS[0], after as f64),
                (MEMORY_ROWS[1], peak.into_inner().max(after) as f64),
            ];
            server.stop()?;
        }
        let times = values
            .into_iter()
            .map(|(row, value)| (format!("{row}{suffix}"), value));
        let memory = memory
            .into_iter()
            .map(|(row, value)| (row.to_owned(), value));
        Ok(times
            .chain(memory)
            .filter(|(row, _)| rows.contains(&row.as_str()))
            .collect())
    }

    /// An installation is ready when the installer has ended. One that is there is taken, unless it is timed.
    fn install(&self, prefix: &Path, timed: bool) -> miette::Result<Option<f64>> {
        if prefix.exists() {
            if !timed {
                return Ok(None);
            }
            fs_err::remove_dir_all(prefix).into_diagnostic()?;
            rustix::fs::sync();
        }
        let (manifest, cache) = (self.corpus.manifest(), self.corpus.package_cache());
        let arguments = [
            "__install".as_ref(),
            manifest.as_os_str(),
            prefix.as_os_str(),
            cache.as_os_str(),
        ];
        let time = measure(None, &arguments)?;
        // What it wrote is not to be written back during what is measured next.
        rustix::fs::sync();
        Ok(Some(time))
    }

    fn mount(&self, column: Column, root: &Path) -> miette::Result<Server> {
        let command = if column == Column::RattlerVfs {
            let mut command = Command::new(&self.rattler_vfs);
            command.arg(self.peer_lock_file()).arg("default");
            command.arg(self.corpus.package_cache()).arg(root);
            command
        } else {
            let state = self.folder.path().join(format!("{column}.state"));
            fs_err::create_dir_all(&state).into_diagnostic()?;
            if let Some(id) = column.user() {
                std::os::unix::fs::chown(&state, Some(id), Some(id)).into_diagnostic()?;
            }
            let mut command = mount::pixi_mount(
                &self.pixi_mount,
                &self.corpus.manifest(),
                root,
                &self.corpus.cache(),
                &state,
            );
            command.env("HOME", &state);
            command
        };
        let log = self.folder.path().join(format!("{column}.log"));
        Server::start(command, root, "bin/python", column.user(), &log)
    }
}

/// Bytes that a process alone has: anonymous memory and private pages of files.
fn private_memory(id: u32) -> std::io::Result<u64> {
    let text = fs_err::read_to_string(format!("/proc/{id}/smaps_rollup"))?;
    let kilobytes = text
        .lines()
        .filter(|line| line.starts_with("Private_"))
        .filter_map(|line| {
            let number = line.split_whitespace().nth(1)?;
            number.parse::<u64>().ok()
        });
    Ok(kilobytes.sum::<u64>() * 1024)
}

fn drop_caches() -> miette::Result<()> {
    rustix::fs::sync();
    fs_err::write("/proc/sys/vm/drop_caches", "3")
        .into_diagnostic()
        .context("rows that end with .cold need root, to drop the caches")
}
