//! The mount table: what is mounted where, and whether its server lives.
//!
//! Nothing here looks at a mount point itself, other than with a patience that ends: a server that hangs would take the
//! caller with it. See `proc_pid_mountinfo(5)`.

use std::{
    ffi::{CStr, CString, OsString},
    fs, io,
    os::{
        fd::AsFd,
        unix::ffi::{OsStrExt, OsStringExt},
    },
    path::{Path, PathBuf},
    time::Duration,
};

use rustix::{
    event::{PollFd, PollFlags, poll},
    io::Errno,
    process::{Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, kill_process, pidfd_open, waitid},
};

use super::{UnmountError, mount};

/// How to unmount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unmount {
    /// Only when nothing uses the mount.
    Plain,
    /// Take it out of the name space now; programs that use it get errors once the server ends.
    Detach,
}

/// A mount, as the mount table shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountEntry {
    /// Where it is mounted.
    pub mount_point: PathBuf,
    /// The source field, such as `pixi:workspace/environment`.
    pub source: String,
    /// Type, `fuse.pixi` for mounts of ours.
    pub fs_type: String,
    /// Device number, `major:minor`: unique among the live mounts of a machine.
    pub device: String,
    /// The user who mounted it, for FUSE file systems.
    pub user_id: Option<u32>,
    /// Whether it is mounted read-only.
    pub read_only: bool,
}

/// All mounts of this mount name space, the topmost at a path last.
///
/// # Errors
/// When `/proc/self/mountinfo` cannot be read.
pub fn read() -> io::Result<Vec<MountEntry>> {
    let table = fs::read("/proc/self/mountinfo")?;
    Ok(table
        .split(|&byte| byte == b'\n')
        .filter_map(parse)
        .collect())
}

/// What is mounted at exactly this path, which has to be absolute and without symlinks: the topmost mount there.
///
/// # Errors
/// As [`read`].
pub fn find(mount_point: &Path) -> io::Result<Option<MountEntry>> {
    Ok(read()?
        .into_iter()
        .rev()
        .find(|entry| entry.mount_point == mount_point))
}

/// `36 35 98:0 /root /mount/point rw,noatime shared:1 - type source rw,user_id=0`
fn parse(line: &[u8]) -> Option<MountEntry> {
    let mut fields = line.split(|&byte| byte == b' ');
    let device = text(fields.nth(2)?);
    let mount_point = PathBuf::from(unescape(fields.nth(1)?));
    let options = text(fields.next()?);
    let mut fields = fields.skip_while(|field| *field != b"-").skip(1);
    let fs_type = text(fields.next()?);
    let source = unescape(fields.next()?).to_string_lossy().into_owned();
    let super_options = text(fields.next()?);
    Some(MountEntry {
        mount_point,
        source,
        fs_type,
        device,
        user_id: super_options
            .split(',')
            .find_map(|option| option.strip_prefix("user_id=")?.parse().ok()),
        read_only: options.split(',').any(|option| option == "ro"),
    })
}

fn text(field: &[u8]) -> String {
    String::from_utf8_lossy(field).into_owned()
}

/// Spaces, tabs, newlines and backslashes stand there as three octal digits.
fn unescape(field: &[u8]) -> OsString {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&byte, after)) = rest.split_first() {
        let octal = after.get(..3).filter(|_| byte == b'\\').and_then(|digits| {
            let digits = std::str::from_utf8(digits).ok()?;
            u8::from_str_radix(digits, 8).ok()
        });
        match octal {
            Some(escaped) => {
                bytes.push(escaped);
                rest = &after[3..];
            }
            None => {
                bytes.push(byte);
                rest = after;
            }
        }
    }
    OsString::from_vec(bytes)
}

/// What the server behind a mount does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServerState {
    /// It answers.
    Alive,
    /// Its process is gone.
    Dead,
    /// It did not answer in time.
    Unresponsive,
}

/// Asks the server of the mount at `mount_point` for a sign of life, waiting `patience` at most.
#[must_use]
pub fn server_state(mount_point: &Path, patience: Duration) -> ServerState {
    let Ok(path) = CString::new(mount_point.as_os_str().as_bytes()) else {
        return ServerState::Alive;
    };
    // A process, and not a thread: a request that the server has taken and does not answer cannot be interrupted, and
    // this process could not end while one of its threads waits for it.
    // SAFETY: after the fork the child makes system calls only.
    let child = match unsafe { libc::fork() } {
        0 => ask(&path),
        -1 => None,
        pid => Pid::from_raw(pid),
    };
    let Some(child) = child else {
        return ServerState::Unresponsive;
    };
    let answer = wait(child, patience);
    if answer.is_none() {
        let _ = kill_process(child, Signal::KILL);
    }
    match answer {
        Some(DEAD) => ServerState::Dead,
        Some(_) => ServerState::Alive,
        None => ServerState::Unresponsive,
    }
}

/// Exit status of a child that was told that there is no server.
const DEAD: i32 = 1;

/// What the child does: whoever waits for the end of our output must not wait for it as well.
fn ask(path: &CStr) -> ! {
    // SAFETY: nothing of this process's memory is used afterwards that would need the descriptors.
    unsafe { libc::syscall(libc::SYS_close_range, 0, libc::c_uint::MAX, 0) };
    // `statfs` is never answered from a cache.
    let status = match rustix::fs::statfs(path) {
        Err(Errno::NOTCONN | Errno::CONNABORTED) => DEAD,
        _ => 0,
    };
    // SAFETY: it ends the child without running anything of its parent's.
    unsafe { libc::_exit(status) }
}

/// The exit status of a child, if it ends in time.
fn wait(child: Pid, patience: Duration) -> Option<i32> {
    let child = pidfd_open(child, PidfdFlags::empty()).ok()?;
    let timeout = patience.try_into().ok()?;
    let mut ended = [PollFd::new(&child, PollFlags::IN)];
    while let Err(error) = poll(&mut ended, Some(&timeout)) {
        if error != Errno::INTR {
            return None;
        }
    }
    if ended[0].revents().is_empty() {
        return None;
    }
    let status = waitid(WaitId::PidFd(child.as_fd()), WaitIdOptions::EXITED);
    status.ok()??.exit_status()
}

/// Ends all requests of a FUSE mount whose server does not answer them; programs that wait for one get errors.
///
/// # Errors
/// When the connection belongs to somebody else, or `/sys/fs/fuse/connections` is not there.
pub fn abort(entry: &MountEntry) -> io::Result<()> {
    let (_, minor) = entry.device.split_once(':').unwrap_or_default();
    fs::write(format!("/sys/fs/fuse/connections/{minor}/abort"), "1")
}

/// Unmounts whatever FUSE file system is topmost at `mount_point`.
///
/// # Errors
/// See [`UnmountError`].
pub fn unmount(mount_point: &Path, how: Unmount) -> Result<(), UnmountError> {
    mount::unmount(mount_point, how)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_with_odd_names_is_read() {
        let line = br"36 35 0:51 / /mnt/a\040b\134c\012\303\244 ro,nosuid,nodev shared:1 master:2 - fuse.pixi pixi:my\040ws/default ro,user_id=1000,group_id=1000";
        let entry = parse(line).unwrap();
        assert_eq!(entry.mount_point, Path::new("/mnt/a b\\c\nä"));
        assert_eq!(entry.source, "pixi:my ws/default");
        assert_eq!(entry.fs_type, "fuse.pixi");
        assert_eq!(entry.device, "0:51");
        assert_eq!(entry.user_id, Some(1000));
        assert!(entry.read_only);
    }

    #[test]
    fn the_real_table_is_read() {
        assert!(
            read()
                .unwrap()
                .iter()
                .any(|entry| entry.mount_point == Path::new("/proc"))
        );
    }

    #[test]
    fn damaged_lines_are_left_out() {
        for line in [
            &b""[..],
            b"1 2 3",
            b"36 35 0:51 / /x ro - ",
            b"\\999 \\04 - - -",
        ] {
            assert_eq!(parse(line), None);
        }
    }
}
