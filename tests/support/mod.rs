//! Workspaces in a folder of their own, and `pixi-mount` processes that are gone when a test ends, however it ends.

#![allow(dead_code, unreachable_pub)]

use std::{
    ffi::OsStr,
    io::{BufRead, BufReader, Read},
    path::{Path, PathBuf},
    process::{Child, ChildStderr, Command, Stdio},
};

use corpus::{
    kinds::Kind,
    package::Built,
    reference::{Environment, fill_package_cache},
    workspace::{Location, Workspace},
};
use tempfile::TempDir;

/// Whether tests that mount have to run. Where FUSE is missing they fail, unless they are told to skip.
pub fn fuse_or_skip(tests: usize) -> bool {
    if std::env::var_os("PIXI_MOUNT_SKIP_FUSE_TESTS").is_some_and(|value| value == "1") {
        eprintln!("PIXI_MOUNT_SKIP_FUSE_TESTS is set: {tests} test(s) skipped");
        return false;
    }
    assert!(
        Path::new("/dev/fuse").exists(),
        "these tests mount: /dev/fuse is missing (PIXI_MOUNT_SKIP_FUSE_TESTS=1 skips them)"
    );
    true
}

/// A workspace with its own package cache and home, below one temporary folder.
pub struct Sandbox {
    guard: TempDir,
    /// The temporary folder, without symlinks.
    pub folder: PathBuf,
}

impl Sandbox {
    /// An empty one.
    pub fn new() -> Self {
        let guard = tempfile::Builder::new()
            .prefix("pixi-mount-test-")
            .tempdir()
            .unwrap();
        let folder = guard.path().canonicalize().unwrap();
        Self { guard, folder }
    }

    /// The folder of extracted packages.
    pub fn package_cache(&self) -> PathBuf {
        self.folder.join("cache/pkgs")
    }

    /// The workspace's folder.
    pub fn workspace(&self) -> PathBuf {
        self.folder.join("workspace")
    }

    /// Where its default environment belongs.
    pub fn prefix(&self) -> PathBuf {
        self.workspace().join(".pixi/envs/default")
    }

    /// Writes a kind's archives.
    pub fn archives(&self, kind: &Kind) -> Vec<Built> {
        let folder = self.folder.join("archives");
        std::fs::create_dir_all(&folder).unwrap();
        kind.packages
            .iter()
            .map(|package| package.write(&folder, kind.format).unwrap())
            .collect()
    }

    /// A workspace whose default environment is these packages, all of them in the cache.
    pub fn lock(&self, packages: &[Built]) -> Environment {
        fill_package_cache(&self.package_cache(), packages).unwrap();
        let workspace = Workspace::new(&self.workspace()).unwrap().environment(
            "default",
            packages,
            &Location::fictive(),
        );
        workspace.write().unwrap();
        Environment::read(&workspace.manifest(), "default").unwrap()
    }

    /// A workspace of one of the made kinds.
    pub fn with_kind(name: &str) -> Self {
        let sandbox = Self::new();
        let kind = corpus::kinds::all()
            .into_iter()
            .find(|kind| kind.name == name)
            .unwrap();
        sandbox.lock(&sandbox.archives(&kind));
        sandbox
    }

    /// One of our programs, in the workspace, that sees nothing of the user's configuration and caches.
    pub fn command(&self, program: &str) -> Command {
        let program = match program {
            "pixi-mount" => env!("CARGO_BIN_EXE_pixi-mount"),
            "pixi-umount" => env!("CARGO_BIN_EXE_pixi-umount"),
            "pixi-rattlerfs" => env!("CARGO_BIN_EXE_pixi-rattlerfs"),
            other => panic!("{other} is no program of ours"),
        };
        let mut command = Command::new(program);
        command
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("HOME", self.folder.join("home"))
            .env("XDG_CONFIG_HOME", self.folder.join("config"))
            .env("XDG_RUNTIME_DIR", self.folder.join("runtime"))
            .env("PIXI_CACHE_DIR", self.folder.join("cache"))
            .current_dir(self.workspace());
        command
    }

    /// Mounts the default environment.
    pub fn mount(&self) -> Mounted {
        self.mount_with([] as [&str; 0])
    }

    /// Mounts with these arguments; the mount has to come up.
    pub fn mount_with<A: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = A>) -> Mounted {
        let mut command = self.command("pixi-mount");
        command.args(arguments);
        Mounted::start(command).unwrap_or_else(|said| panic!("nothing was mounted: {said}"))
    }
}

impl Sandbox {
    /// Makes everything in it a user's, so that programs can run as this user.
    pub fn give_to(&self, uid: u32) {
        fn give(path: &Path, uid: u32) {
            std::os::unix::fs::lchown(path, Some(uid), Some(uid)).unwrap();
            if path.symlink_metadata().unwrap().is_dir() {
                for entry in std::fs::read_dir(path).unwrap() {
                    give(&entry.unwrap().path(), uid);
                }
            }
        }
        give(&self.folder, uid);
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        // Whatever a failed test left mounted below the folder would be walked into by its removal.
        let mounts = rattler_fs::fuse::mount_table::read().unwrap_or_default();
        for mount in mounts
            .iter()
            .rev()
            .filter(|mount| mount.mount_point.starts_with(&self.folder))
        {
            let _ = rattler_fs::fuse::mount_table::unmount(
                &mount.mount_point,
                rattler_fs::fuse::Unmount::Detach,
            );
        }
    }
}

/// A running `pixi-mount`.
pub struct Mounted {
    /// The process.
    pub child: Child,
    stderr: BufReader<ChildStderr>,
    /// The line that it said when it was ready.
    pub greeting: String,
}

impl Mounted {
    /// Starts the command and waits until it says that it has mounted. Otherwise, what it said.
    pub fn start(mut command: Command) -> Result<Self, String> {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let mut mounted = Self {
            child,
            stderr,
            greeting: String::new(),
        };
        let mut said = String::new();
        loop {
            let mut line = String::new();
            if mounted.stderr.read_line(&mut line).unwrap() == 0 {
                let status = mounted.child.wait().unwrap();
                return Err(format!("{status}: {said}"));
            }
            if line.starts_with("Mounted ") {
                mounted.greeting = line;
                return Ok(mounted);
            }
            said.push_str(&line);
        }
    }

    /// Sends a signal, waits for the end, and returns the exit code and what was said after the greeting.
    pub fn stop(mut self, signal: rustix::process::Signal) -> (Option<i32>, String) {
        self.signal(signal);
        self.wait()
    }

    /// Sends a signal.
    pub fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).unwrap();
    }

    /// The next line that it says.
    pub fn line(&mut self) -> String {
        let mut line = String::new();
        self.stderr.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// Waits for the end; the exit code and what was said after the greeting.
    pub fn wait(&mut self) -> (Option<i32>, String) {
        let mut said = String::new();
        self.stderr.read_to_string(&mut said).unwrap();
        (self.child.wait().unwrap().code(), said)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
