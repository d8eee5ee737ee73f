//! The mount table: what is mounted where, and whether its server lives.
//!
//! Nothing here looks at a mount point itself, other than with a patience that ends: a server that hangs would take the
//! caller with it. See `proc_pid_mountinfo(5)`.

use std::{
    ffi::OsString,
    fs, io,
    os::unix::ffi::OsStringExt,
    path::{Path, PathBuf},
    sync::mpsc,
    thread,
    time::Duration,
};

use rustix::io::Errno;

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
    let (sender, receiver) = mpsc::channel();
    let path = mount_point.to_path_buf();
    // A thread that nobody waits for: where the server hangs, it hangs with it. `statfs` is never answered from a cache.
    let asked = thread::Builder::new()
        .name("sign-of-life".into())
        .spawn(move || {
            let _ = sender.send(rustix::fs::statfs(&path).map(drop));
        });
    if asked.is_err() {
        return ServerState::Unresponsive;
    }
    match receiver.recv_timeout(patience) {
        Ok(Err(Errno::NOTCONN | Errno::CONNABORTED)) => ServerState::Dead,
        Ok(_) => ServerState::Alive,
        Err(_) => ServerState::Unresponsive,
    }
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
