//! Which processes use a mount: by their current folder, root, program, open files and mappings.

use std::collections::BTreeMap;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use fs_err as fs;
use rattler_fs::fuse::UnmountError;

/// A process that uses a mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountUser {
    /// The process id.
    pub pid: u32,
    /// The name of its command.
    pub command: String,
}

impl fmt::Display for MountUser {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.command, self.pid)
    }
}

/// The processes that use what is below `mount_point`, by pid.
///
/// Those of other users can be seen by root only. Links in `/proc` are read and not followed, so
/// that no server is asked anything.
#[must_use]
pub fn users_of(mount_point: &Path) -> Vec<MountUser> {
    let Ok(processes) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    let own = std::process::id();
    let users: BTreeMap<u32, MountUser> = processes
        .flatten()
        .filter_map(|entry| {
            let pid: u32 = entry.file_name().to_str()?.parse().ok()?;
            let process = entry.path();
            (pid != own && uses(&process, mount_point)).then(|| {
                let command = fs::read_to_string(process.join("comm")).unwrap_or_default();
                let command = command.trim_end().to_string();
                (pid, MountUser { pid, command })
            })
        })
        .collect();
    users.into_values().collect()
}

/// How long a mount may be busy without anybody to be seen who uses it.
const BUSY_MOMENT: Duration = Duration::from_secs(2);

/// How long a mount may be busy with somebody who uses it.
const SHORT_MOMENT: Duration = Duration::from_millis(300);

/// Tries to unmount with `attempt`, and again while the mount is busy for a moment only.
///
/// A process that starts another shares its open files with it for that long, and one that ends gives
/// its files back after it is gone.
///
/// # Errors
///
/// What the last attempt gave.
pub fn unmount_when_free(
    mount_point: &Path,
    attempt: impl Fn() -> Result<(), UnmountError>,
) -> Result<(), UnmountError> {
    let start = Instant::now();
    loop {
        let result = attempt();
        let waited = start.elapsed();
        let goes_on = matches!(result, Err(UnmountError::Busy))
            && (waited < SHORT_MOMENT || waited < BUSY_MOMENT && users_of(mount_point).is_empty());
        if !goes_on {
            return result;
        }
        thread::sleep(Duration::from_millis(20));
    }
}

fn uses(process: &Path, mount_point: &Path) -> bool {
    let is_below = |link: &Path| fs::read_link(link).is_ok_and(|to| to.starts_with(mount_point));
    ["cwd", "root", "exe"]
        .iter()
        .any(|name| is_below(&process.join(name)))
        || fs::read_dir(process.join("fd"))
            .is_ok_and(|files| files.flatten().any(|file| is_below(&file.path())))
        || maps(process, mount_point)
}

/// `55f0c5a00000-55f0c5a01000 r--p 00000000 08:01 1234    /path/of/file`
fn maps(process: &Path, mount_point: &Path) -> bool {
    let Ok(maps) = fs::read(process.join("maps")) else {
        return false;
    };
    maps.split(|&byte| byte == b'\n').any(|line| {
        let path = line.iter().position(|&byte| byte == b'/');
        path.is_some_and(|start| {
            Path::new(std::ffi::OsStr::from_bytes(&line[start..])).starts_with(mount_point)
        })
    })
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn what_is_busy_for_a_moment_is_waited_for() {
        let attempts = Cell::new(0);
        let attempt = |free_after: u32| {
            attempts.set(attempts.get() + 1);
            if attempts.get() > free_after {
                Ok(())
            } else {
                Err(UnmountError::Busy)
            }
        };
        let nobody = Path::new("/nobody/is/here");
        assert!(unmount_when_free(nobody, || attempt(3)).is_ok());
        assert_eq!(attempts.get(), 4);
        let result = unmount_when_free(nobody, || attempt(u32::MAX));
        assert!(matches!(result, Err(UnmountError::Busy)));
        attempts.set(0);
        let result = unmount_when_free(nobody, || {
            attempts.set(attempts.get() + 1);
            Err(UnmountError::NotMounted)
        });
        assert!(matches!(result, Err(UnmountError::NotMounted)));
        assert_eq!(attempts.get(), 1);
    }

    #[test]
    fn a_process_is_found_by_its_folder_and_by_its_files() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().canonicalize().unwrap();
        assert_eq!(users_of(&path), []);

        let mut in_it = Command::new("cat")
            .current_dir(&path)
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        let file = std::fs::File::create(path.join("file")).unwrap();
        let mut holds_it = Command::new("cat")
            .stdin(Stdio::piped())
            .stderr(file)
            .spawn()
            .unwrap();
        let mut expected = vec![in_it.id(), holds_it.id()];
        expected.sort_unstable();
        let found = users_of(&path);
        for child in [&mut in_it, &mut holds_it] {
            drop(child.stdin.take());
            child.wait().unwrap();
        }
        let pids: Vec<u32> = found.iter().map(|user| user.pid).collect();
        assert_eq!(pids, expected);
        assert!(found.iter().all(|user| user.command == "cat"), "{found:?}");
    }
}
