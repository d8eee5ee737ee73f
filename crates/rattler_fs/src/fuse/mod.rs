//! The kernel adapter: a FUSE session over an [`EnvironmentFs`].

mod adapter;
mod mount;
pub mod mount_table;

use std::{
    fs::File,
    io::{self, Read, Write},
    os::fd::{AsRawFd, OwnedFd},
    panic::{AssertUnwindSafe, catch_unwind},
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

use fuse_backend_rs::{
    api::server::Server,
    transport::{FuseBuf, FuseDevWriter, Reader, Writer},
};

use parking_lot::Mutex;

use crate::content::EnvironmentFs;
use adapter::Adapter;
pub use mount::{MountError, UnmountError};
pub use mount_table::Unmount;

/// Largest request or reply: 256 pages of data, and a page for the headers.
const BUFFER_SIZE: usize = 257 * 4096;

/// Requests are short; more threads than this only compete for the caller's processor.
const MAX_THREADS: usize = 8;

/// So many threads may wait for packages that are being fetched again before the mount has to wait with them.
const MAX_BLOCKED_THREADS: usize = 64;

/// Size of `fuse_in_header`; `unique` stands at byte 8.
const IN_HEADER_SIZE: usize = 40;

/// How and where to mount.
#[derive(Debug, Clone)]
pub struct MountOptions {
    /// An existing, empty directory, as an absolute path without symlinks.
    pub mount_point: PathBuf,
    /// The mount table's source field, such as `pixi:workspace/environment`.
    pub source: String,
    /// Mount read-only.
    pub read_only: bool,
    /// Let other users in, as far as the files' modes allow.
    pub allow_other: bool,
}

/// Why serving ended early.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// The kernel's device failed.
    #[error("reading requests from the kernel failed")]
    Device(#[source] io::Error),
}

/// A mounted file system, ready to be served. Dropped before it was, it is unmounted.
pub struct Session {
    workers: Arc<Workers>,
    unmounter: Unmounter,
    is_mounted: bool,
}

impl Session {
    /// Mounts `fs`. Programs that touch the mount wait until [`Session::run`] serves them.
    ///
    /// # Errors
    /// See [`MountError`].
    pub fn mount(fs: Arc<EnvironmentFs>, options: MountOptions) -> Result<Self, MountError> {
        let device = mount::mount(&options)?;
        let entry = mount_table::find(&options.mount_point).ok().flatten();
        let workers = Arc::new(Workers {
            server: Server::new(Adapter::new(fs.clone())),
            device,
            threads: Mutex::new(Vec::new()),
            started: AtomicUsize::new(0),
        });
        let weak = Arc::downgrade(&workers);
        fs.before_blocking(move || {
            if let Some(workers) = weak.upgrade()
                && let Err(error) = workers.start(MAX_BLOCKED_THREADS)
            {
                tracing::warn!(%error, "no other thread takes over while this one waits");
            }
        });
        Ok(Self {
            workers,
            is_mounted: true,
            unmounter: Unmounter {
                mount_point: options.mount_point.into(),
                device: entry.map(|entry| entry.device.into()),
            },
        })
    }

    /// A handle that unmounts from another thread.
    #[must_use]
    pub fn unmounter(&self) -> Unmounter {
        self.unmounter.clone()
    }

    /// Serves requests until the file system is unmounted.
    ///
    /// # Errors
    /// See [`SessionError`].
    pub fn run(mut self) -> Result<(), SessionError> {
        let threads = thread::available_parallelism().map_or(2, |n| n.get().clamp(2, MAX_THREADS));
        for number in 0..threads {
            match self.workers.start(threads) {
                Ok(()) => {}
                Err(error) if number == 0 => return Err(SessionError::Device(error)),
                Err(error) => tracing::warn!(%error, "serving with {number} thread(s)"),
            }
        }
        self.workers.join().map_err(SessionError::Device)?;
        self.is_mounted = false;
        Ok(())
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if self.is_mounted {
            // Nobody will answer any more: better no mount than a dead one.
            let _ = self.unmounter.unmount(Unmount::Detach);
        }
    }
}

/// The threads that serve a mount.
struct Workers {
    server: Server<Adapter>,
    device: OwnedFd,
    threads: Mutex<Vec<thread::JoinHandle<io::Result<()>>>>,
    started: AtomicUsize,
}

impl Workers {
    /// Starts another thread, unless there are `max` already.
    fn start(self: &Arc<Self>, max: usize) -> io::Result<()> {
        let number = self.started.fetch_add(1, Ordering::Relaxed);
        if number >= max {
            self.started.fetch_sub(1, Ordering::Relaxed);
            return Ok(());
        }
        let device = clone_device(&self.device)?;
        let workers = self.clone();
        let thread = thread::Builder::new()
            .name(format!("fuse-{number}"))
            .spawn(move || serve(&workers.server, device))?;
        self.threads.lock().push(thread);
        Ok(())
    }

    /// Waits for the end of all threads, those included that are started meanwhile.
    fn join(&self) -> io::Result<()> {
        let mut result = Ok(());
        loop {
            let Some(thread) = self.threads.lock().pop() else {
                return result;
            };
            let ended = thread.join();
            let ended =
                ended.unwrap_or_else(|_| Err(io::Error::other("a serving thread panicked")));
            result = result.and(ended);
        }
    }
}

/// Unmounts a [`Session`]'s mount, and no other that has taken its place.
#[derive(Debug, Clone)]
pub struct Unmounter {
    mount_point: Arc<std::path::Path>,
    device: Option<Arc<str>>,
}

impl Unmounter {
    /// Unmounts.
    ///
    /// # Errors
    /// See [`UnmountError`].
    pub fn unmount(&self, how: Unmount) -> Result<(), UnmountError> {
        if let (Some(device), Ok(entry)) = (&self.device, mount_table::find(&self.mount_point))
            && entry.is_none_or(|entry| *entry.device != **device)
        {
            return Err(UnmountError::NotMounted);
        }
        mount::unmount(&self.mount_point, how)
    }
}

/// A descriptor of its own for a thread spares the kernel a shared lock. An ordinary user may not be allowed to open the
/// device; the one that mounted serves all threads just as well.
fn clone_device(device: &OwnedFd) -> io::Result<File> {
    /// `_IOR(229, 0, uint32_t)` of the kernel's `fuse.h`.
    const FUSE_DEV_IOC_CLONE: libc::c_ulong = 0x8004_e500;
    if let Ok(cloned) = File::options().read(true).write(true).open("/dev/fuse") {
        let source = device.as_raw_fd().cast_unsigned();
        // SAFETY: the request reads one u32, a descriptor that `device` keeps open.
        if unsafe { libc::ioctl(cloned.as_raw_fd(), FUSE_DEV_IOC_CLONE, &raw const source) } == 0 {
            return Ok(cloned);
        }
    }
    Ok(device.try_clone()?.into())
}

/// Serves one descriptor until the file system is unmounted.
fn serve(server: &Server<Adapter>, mut device: File) -> io::Result<()> {
    let mut request = vec![0; BUFFER_SIZE];
    let mut reply = vec![0; BUFFER_SIZE];
    loop {
        let len = match device.read(&mut request) {
            Ok(len) => len,
            Err(error) => match error.raw_os_error() {
                // The request was taken back before it could be read.
                Some(libc::EINTR | libc::ENOENT | libc::EAGAIN) => continue,
                Some(libc::ENODEV) => return Ok(()),
                _ => return Err(error),
            },
        };
        let handled = catch_unwind(AssertUnwindSafe(|| {
            let reader = Reader::<()>::from_fuse_buffer(FuseBuf::new(&mut request[..len]))
                .map_err(io::Error::other)?;
            let writer =
                FuseDevWriter::new(device.as_raw_fd(), &mut reply).map_err(io::Error::other)?;
            server
                .handle_message(reader, Writer::FuseDev(writer), None, None)
                .map_err(io::Error::other)
        }));
        match handled {
            Ok(Ok(_)) => {}
            // A reply nobody waits for any more, most often.
            Ok(Err(error)) => tracing::debug!(%error, "a request was not answered"),
            Err(_) => {
                tracing::error!("answering a request panicked; it gets EIO");
                if let Some(unique) = request.get(8..16).filter(|_| len >= IN_HEADER_SIZE) {
                    let _ = device.write(&error_reply(unique, libc::EIO));
                }
            }
        }
    }
}

/// A `fuse_out_header` that carries an error: length, error, unique.
fn error_reply(unique: &[u8], error: i32) -> Vec<u8> {
    let mut reply = Vec::with_capacity(16);
    reply.extend_from_slice(&16u32.to_ne_bytes());
    reply.extend_from_slice(&(-error).to_ne_bytes());
    reply.extend_from_slice(unique);
    reply
}
