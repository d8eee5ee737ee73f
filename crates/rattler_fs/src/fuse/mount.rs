//! Mounting and unmounting: directly where the kernel lets us, else through `fusermount3`.
//!
//! The protocol with `fusermount3` is that of libfuse: it mounts, and hands the descriptor back over the socket that
//! `_FUSE_COMMFD` names.

use std::{
    ffi::OsString,
    io::{self, IoSliceMut},
    mem::MaybeUninit,
    os::{
        fd::{AsFd, AsRawFd, OwnedFd},
        unix::process::CommandExt,
    },
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use rustix::{
    fs::{Mode, OFlags},
    io::Errno,
    mount::{MountFlags, UnmountFlags},
    net::{
        AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags,
        SocketType,
    },
};

use super::{MountOptions, mount_table::Unmount};

/// The FUSE device.
const DEVICE: &str = "/dev/fuse";

/// The program that mounts for ordinary users.
const FUSERMOUNT: &str = "fusermount3";

/// Type in the mount table: `fuse.` and this.
const SUBTYPE: &str = "pixi";

/// Why mounting failed.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// There is no FUSE device.
    #[error("{DEVICE} does not exist: this system offers no FUSE")]
    NoDevice,
    /// The FUSE device may not be opened.
    #[error("{DEVICE} may not be opened")]
    DeviceForbidden(#[source] io::Error),
    /// `fusermount3` is not installed.
    #[error("{FUSERMOUNT} was not found, and only root mounts without it")]
    NoFusermount,
    /// `fusermount3` refused.
    #[error("{FUSERMOUNT} refused to mount {}: {message}", mount_point.display())]
    Fusermount {
        /// Where it should have mounted.
        mount_point: PathBuf,
        /// What it said.
        message: String,
    },
    /// The kernel refused, or answered something else than expected.
    #[error("{} cannot be mounted", .0.display())]
    Io(PathBuf, #[source] io::Error),
}

/// Why unmounting failed.
#[derive(Debug, thiserror::Error)]
pub enum UnmountError {
    /// A process uses the mount.
    #[error("the mount is in use")]
    Busy,
    /// Nothing is mounted there any more.
    #[error("nothing is mounted there")]
    NotMounted,
    /// `fusermount3` is not installed.
    #[error("{FUSERMOUNT} was not found, and only root unmounts without it")]
    NoFusermount,
    /// The kernel or `fusermount3` refused.
    #[error("{0}")]
    Refused(String),
}

/// Mounts, and returns the descriptor over which the kernel talks.
pub(super) fn mount(options: &MountOptions) -> Result<OwnedFd, MountError> {
    match mount_directly(options) {
        Err(MountError::Io(_, error)) if error.raw_os_error() == Some(libc::EPERM) => {
            mount_by_fusermount(options)
        }
        Err(MountError::DeviceForbidden(_)) if !rustix::process::geteuid().is_root() => {
            mount_by_fusermount(options)
        }
        result => result,
    }
}

/// Unmounts what is topmost at `mount_point`.
pub(super) fn unmount(mount_point: &Path, how: Unmount) -> Result<(), UnmountError> {
    let flags = match how {
        Unmount::Plain => UnmountFlags::NOFOLLOW,
        Unmount::Detach => UnmountFlags::NOFOLLOW | UnmountFlags::DETACH,
    };
    match rustix::mount::unmount(mount_point, flags) {
        Ok(()) => Ok(()),
        Err(Errno::BUSY) => Err(UnmountError::Busy),
        Err(Errno::INVAL | Errno::NOENT) => Err(UnmountError::NotMounted),
        Err(Errno::PERM) => unmount_by_fusermount(mount_point, how),
        Err(error) => Err(UnmountError::Refused(error.to_string())),
    }
}

fn mount_directly(options: &MountOptions) -> Result<OwnedFd, MountError> {
    let failed = |error: Errno| MountError::Io(options.mount_point.clone(), error.into());
    let device = rustix::fs::open(DEVICE, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).map_err(
        |error| match error {
            Errno::NOENT | Errno::NODEV | Errno::NXIO => MountError::NoDevice,
            Errno::ACCESS | Errno::PERM => MountError::DeviceForbidden(error.into()),
            error => failed(error),
        },
    )?;
    let mut data = format!(
        "fd={},rootmode=40000,user_id={},group_id={},default_permissions",
        device.as_raw_fd(),
        rustix::process::getuid().as_raw(),
        rustix::process::getgid().as_raw(),
    );
    if options.allow_other {
        data.push_str(",allow_other");
    }
    let mut flags = MountFlags::NOSUID | MountFlags::NODEV;
    flags.set(MountFlags::RDONLY, options.read_only);
    let data = std::ffi::CString::new(data).map_err(|_| failed(Errno::INVAL))?;
    rustix::mount::mount(
        options.source.as_str(),
        &options.mount_point,
        format!("fuse.{SUBTYPE}"),
        flags,
        Some(data.as_c_str()),
    )
    .map_err(failed)?;
    Ok(device)
}

fn mount_by_fusermount(options: &MountOptions) -> Result<OwnedFd, MountError> {
    let io_failed = |error: io::Error| MountError::Io(options.mount_point.clone(), error);
    let (ours, theirs) = rustix::net::socketpair(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    )
    .map_err(|error| io_failed(error.into()))?;

    let mut list = OsString::from(if options.read_only { "ro" } else { "rw" });
    list.push(",nosuid,nodev,default_permissions,subtype=");
    list.push(SUBTYPE);
    if options.allow_other {
        list.push(",allow_other");
    }
    list.push(",fsname=");
    list.push(escape_option(&options.source));

    let mut command = Command::new(FUSERMOUNT);
    command
        .arg("-o")
        .arg(list)
        .arg("--")
        .arg(&options.mount_point)
        .env("_FUSE_COMMFD", theirs.as_raw_fd().to_string())
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    let inherited = theirs.as_raw_fd();
    // SAFETY: between fork and exec only `fcntl` is called, which is async-signal-safe.
    unsafe {
        command.pre_exec(move || {
            if libc::fcntl(inherited, libc::F_SETFD, 0) == -1 {
                return Err(io::Error::last_os_error());
            }
            Ok(())
        });
    }
    let output = run(command).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => MountError::NoFusermount,
        _ => io_failed(error),
    })?;
    drop(theirs);
    if !output.success {
        if !Path::new(DEVICE).exists() {
            return Err(MountError::NoDevice);
        }
        let mount_point = options.mount_point.clone();
        return Err(MountError::Fusermount {
            mount_point,
            message: output.message,
        });
    }
    receive_descriptor(&ours).map_err(io_failed)
}

fn unmount_by_fusermount(mount_point: &Path, how: Unmount) -> Result<(), UnmountError> {
    let mut command = Command::new(FUSERMOUNT);
    command.arg("-u");
    if how == Unmount::Detach {
        command.arg("-z");
    }
    command
        .arg("--")
        .arg(mount_point)
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    let output = run(command).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => UnmountError::NoFusermount,
        _ => UnmountError::Refused(error.to_string()),
    })?;
    match output {
        FusermountOutput { success: true, .. } => Ok(()),
        FusermountOutput { message, .. } if message.contains("busy") => Err(UnmountError::Busy),
        FusermountOutput { message, .. } if message.contains("not found in") => {
            Err(UnmountError::NotMounted)
        }
        FusermountOutput { message, .. } => Err(UnmountError::Refused(message)),
    }
}

struct FusermountOutput {
    success: bool,
    message: String,
}

fn run(mut command: Command) -> io::Result<FusermountOutput> {
    let output = command.spawn()?.wait_with_output()?;
    let message = String::from_utf8_lossy(&output.stderr);
    let message = message.trim();
    let message = message
        .strip_prefix("fusermount3: ")
        .unwrap_or(message)
        .to_owned();
    Ok(FusermountOutput {
        success: output.status.success(),
        message,
    })
}

/// `fusermount3` takes options apart at commas, unless a backslash stands before.
fn escape_option(value: &str) -> String {
    value.replace('\\', r"\\").replace(',', r"\,")
}

fn receive_descriptor(socket: &OwnedFd) -> io::Result<OwnedFd> {
    let mut byte = [0];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    rustix::net::recvmsg(
        socket.as_fd(),
        &mut [IoSliceMut::new(&mut byte)],
        &mut ancillary,
        RecvFlags::CMSG_CLOEXEC,
    )?;
    ancillary
        .drain()
        .find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
            _ => None,
        })
        .ok_or_else(|| io::Error::other("fusermount3 sent no descriptor"))
}
