//! Servers: started, waited for, ended, whatever happens in between.

use std::{
    fs::File,
    io::{BufRead, BufReader},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    time::{Duration, Instant},
};

use miette::{Context, IntoDiagnostic, bail, miette};
use rustix::process::{Pid, Signal, kill_process};

use crate::interruption;

/// How long a mount may take to come and to go.
const PATIENCE: Duration = Duration::from_secs(120);

/// Under which user and group a process runs; `None` is this one's.
pub(crate) type User = Option<u32>;

/// Lets a command run as a user.
pub(crate) fn run_as(command: &mut Command, user: User) {
    if let Some(id) = user {
        command.uid(id).gid(id);
    }
}

/// A running server with its mount. It is unmounted when this is dropped.
pub(crate) struct Server {
    child: Child,
    mount_point: PathBuf,
    ready: Duration,
}

impl Server {
    /// Starts a server and waits until `bin/python` or another path in its mount can be looked at. What it says goes to
    /// `log`.
    pub(crate) fn start(
        mut command: Command,
        mount_point: &Path,
        awaited: &str,
        user: User,
        log: &Path,
    ) -> miette::Result<Self> {
        interruption::check()?;
        fs_err::create_dir_all(mount_point).into_diagnostic()?;
        if let Some(id) = user {
            std::os::unix::fs::chown(mount_point, Some(id), Some(id)).into_diagnostic()?;
        }
        let mut probe = probe(user);
        probe
            .arg("__ready")
            .arg(mount_point.join(awaited))
            .stdout(Stdio::piped());
        let mut probe = Ended(probe.spawn().into_diagnostic()?);
        let mut answers = BufReader::new(probe.0.stdout.take().expect("it is piped")).lines();
        answers.next().transpose().into_diagnostic()?;

        let output = File::create(log).into_diagnostic()?;
        command
            .stdin(Stdio::null())
            .stdout(output.try_clone().into_diagnostic()?)
            .stderr(output);
        run_as(&mut command, user);
        let start = Instant::now();
        let child = command
            .spawn()
            .into_diagnostic()
            .wrap_err_with(|| format!("{command:?} does not run"))?;
        let mut server = Self {
            child,
            mount_point: mount_point.to_owned(),
            ready: Duration::ZERO,
        };

        let answer = std::thread::scope(|scope| {
            let answer = scope.spawn(move || (answers.next(), Instant::now()));
            while !answer.is_finished() {
                let ended = server.child.try_wait().ok().flatten();
                if ended.is_some() || start.elapsed() > PATIENCE {
                    probe.end();
                    break;
                }
                std::thread::sleep(Duration::from_millis(1));
            }
            answer.join().ok()
        });
        let Some((Some(Ok(_)), end)) = answer else {
            let said = fs_err::read_to_string(log).unwrap_or_default();
            bail!(
                "there is no {awaited} in {}; the server said:\n{said}",
                mount_point.display()
            );
        };
        server.ready = end - start;
        Ok(server)
    }

    /// How long it took from the start of the server to the first successful look.
    pub(crate) fn ready(&self) -> Duration {
        self.ready
    }

    /// The server's process.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Ends the server with SIGTERM and waits until the mount is gone.
    pub(crate) fn stop(mut self) -> miette::Result<()> {
        self.end()
    }

    fn end(&mut self) -> miette::Result<()> {
        let status = terminate(&mut self.child)?;
        if is_mounted(&self.mount_point) {
            detach(&self.mount_point);
            bail!(
                "the server ended ({status}) and left its mount at {}",
                self.mount_point.display()
            );
        }
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            eprintln!("{error}");
        }
    }
}

/// A process that is killed when it is no longer wanted.
struct Ended(Child);

impl Ended {
    fn end(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Ended {
    fn drop(&mut self) {
        self.end();
    }
}

fn terminate(child: &mut Child) -> miette::Result<ExitStatus> {
    if let Some(status) = child.try_wait().into_diagnostic()? {
        return Ok(status);
    }
    let id = i32::try_from(child.id())
        .ok()
        .and_then(Pid::from_raw)
        .ok_or_else(|| miette!("no process"))?;
    kill_process(id, Signal::TERM).into_diagnostic()?;
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait().into_diagnostic()? {
            return Ok(status);
        }
        if start.elapsed() > PATIENCE {
            child.kill().into_diagnostic()?;
            return child.wait().into_diagnostic();
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Whether something is mounted exactly there. Looks at the table, not at the mount, which may be dead.
pub(crate) fn is_mounted(mount_point: &Path) -> bool {
    let table = fs_err::read_to_string("/proc/self/mounts").unwrap_or_default();
    table.lines().any(|line| {
        let place = line.split(' ').nth(1).unwrap_or_default();
        place.replace("\\040", " ") == mount_point.to_string_lossy()
    })
}

fn detach(mount_point: &Path) {
    let unmounted = rustix::mount::unmount(mount_point, rustix::mount::UnmountFlags::DETACH);
    if unmounted.is_err() {
        let _ = Command::new("fusermount3")
            .args(["-u", "-z"])
            .arg(mount_point)
            .status();
    }
}

/// This program as another process, for a hidden task.
pub(crate) fn probe(user: User) -> Command {
    let mut command =
        Command::new(std::env::current_exe().expect("the path of a running program is known"));
    run_as(&mut command, user);
    command
}

/// Runs a hidden task and gives the number of seconds that it prints.
pub(crate) fn measure(user: User, arguments: &[&std::ffi::OsStr]) -> miette::Result<f64> {
    interruption::check()?;
    let mut command = probe(user);
    let output = command
        .args(arguments)
        .stderr(Stdio::inherit())
        .output()
        .into_diagnostic()?;
    if !output.status.success() {
        bail!("{} failed", arguments[0].display());
    }
    String::from_utf8_lossy(&output.stdout)
        .trim()
        .parse()
        .into_diagnostic()
}

/// `pixi-mount` of one environment, with a package cache and a state of its own.
pub(crate) fn pixi_mount(
    binary: &Path,
    manifest: &Path,
    mount_point: &Path,
    cache: &Path,
    state: &Path,
) -> Command {
    let mut command = Command::new(binary);
    command
        .args(["-e", "default", "--read-only", "--manifest-path"])
        .arg(manifest)
        .arg("--mount-point")
        .arg(mount_point)
        .env("PIXI_CACHE_DIR", cache)
        .env("RATTLER_CACHE_DIR", cache)
        .env("PIXI_NO_CONFIG", "1")
        .env("XDG_RUNTIME_DIR", state);
    command
}
