//! Translates the kernel's requests; decides nothing.
//!
//! What it answers is chosen for a file system that never changes behind the kernel's back: entries, attributes,
//! symlinks, pages, listings and absent names are cached without end, and `open` and `opendir` do not exist (`ENOSYS`),
//! so that a warm read or listing costs no request at all. See `include/uapi/linux/fuse.h`.

use std::{ffi::CStr, fs::File, io, sync::Arc, time::Duration};

use fuse_backend_rs::{
    abi::fuse_abi::{CreateIn, stat64, statvfs64},
    api::filesystem::{
        Context, DirEntry, Entry, FileSystem, FsOptions, GetxattrReply, ListxattrReply,
        OpenOptions, ZeroCopyWriter,
    },
};

use crate::content::{Attributes, DirectoryEntry, EnvironmentFs, FileKind, ReadSink};

/// For ever: the kernel counts in jiffies and would clamp it anyway.
const FOREVER: Duration = Duration::from_secs(u32::MAX as u64);

const BLOCK_SIZE: u32 = 4096;

/// As on the disks that environments are installed on; the kernel lets FUSE have longer names.
const NAME_MAX: usize = 255;

/// The environment as `fuse-backend-rs` wants to see a file system.
pub(super) struct Adapter {
    fs: Arc<EnvironmentFs>,
}

impl Adapter {
    pub(super) fn new(fs: Arc<EnvironmentFs>) -> Self {
        Self { fs }
    }
}

fn absent<T>() -> io::Result<T> {
    Err(io::Error::from_raw_os_error(libc::ENOSYS))
}

impl FileSystem for Adapter {
    type Inode = u64;
    type Handle = u64;

    fn init(&self, _capable: FsOptions) -> io::Result<FsOptions> {
        // Without READDIRPLUS_AUTO each listing brings the attributes, without AUTO_INVAL_DATA pages stay.
        Ok(FsOptions::ASYNC_READ
            | FsOptions::BIG_WRITES
            | FsOptions::DO_READDIRPLUS
            | FsOptions::PARALLEL_DIROPS
            | FsOptions::MAX_PAGES
            | FsOptions::CACHE_SYMLINKS
            | FsOptions::ZERO_MESSAGE_OPEN
            | FsOptions::ZERO_MESSAGE_OPENDIR)
    }

    fn lookup(&self, _: &Context, parent: u64, name: &CStr) -> io::Result<Entry> {
        if name.count_bytes() > NAME_MAX {
            return Err(io::Error::from_raw_os_error(libc::ENAMETOOLONG));
        }
        Ok(match self.fs.lookup(parent, name.to_bytes())? {
            Some(attributes) => entry(&attributes),
            // Inode 0 with a lifetime: the kernel remembers that there is no such name.
            None => Entry {
                entry_timeout: FOREVER,
                ..Entry::default()
            },
        })
    }

    fn getattr(&self, _: &Context, inode: u64, _: Option<u64>) -> io::Result<(stat64, Duration)> {
        Ok((stat(&self.fs.attributes(inode)?), FOREVER))
    }

    fn readlink(&self, _: &Context, inode: u64) -> io::Result<Vec<u8>> {
        self.fs.read_link(inode).map(<[u8]>::to_vec)
    }

    fn open(
        &self,
        _: &Context,
        _: u64,
        _: u32,
        _: u32,
    ) -> io::Result<(Option<u64>, OpenOptions, Option<u32>)> {
        absent()
    }

    fn opendir(&self, _: &Context, _: u64, _: u32) -> io::Result<(Option<u64>, OpenOptions)> {
        absent()
    }

    fn create(
        &self,
        _: &Context,
        _: u64,
        _: &CStr,
        _: CreateIn,
    ) -> io::Result<(Entry, Option<u64>, OpenOptions, Option<u32>)> {
        absent()
    }

    fn read(
        &self,
        _: &Context,
        inode: u64,
        _: u64,
        writer: &mut dyn ZeroCopyWriter,
        size: u32,
        offset: u64,
        _: Option<u64>,
        _: u32,
    ) -> io::Result<usize> {
        self.fs
            .read(inode, offset, size as usize, &mut Reply(writer))
    }

    fn readdir(
        &self,
        _: &Context,
        inode: u64,
        _: u64,
        _: u32,
        offset: u64,
        add: &mut dyn FnMut(DirEntry<'_>) -> io::Result<usize>,
    ) -> io::Result<()> {
        self.fs
            .list(inode, offset, &mut |entry| Ok(add(dirent(&entry))? > 0))
    }

    fn readdirplus(
        &self,
        _: &Context,
        inode: u64,
        _: u64,
        _: u32,
        offset: u64,
        add: &mut dyn FnMut(DirEntry<'_>, Entry) -> io::Result<usize>,
    ) -> io::Result<()> {
        self.fs.list(inode, offset, &mut |listed| {
            // Inode 0 here means that the kernel has to ask for the attributes when it needs them.
            let plus = listed
                .attributes
                .as_ref()
                .map_or_else(Entry::default, entry);
            Ok(add(dirent(&listed), plus)? > 0)
        })
    }

    fn statfs(&self, _: &Context, _: u64) -> io::Result<statvfs64> {
        // SAFETY: statvfs64 is a plain C struct of integers, for which zero is a value.
        let mut status: statvfs64 = unsafe { std::mem::zeroed() };
        status.f_bsize = BLOCK_SIZE.into();
        status.f_frsize = BLOCK_SIZE.into();
        status.f_files = self.fs.inode_count();
        status.f_namemax = NAME_MAX as u64;
        Ok(status)
    }

    fn getxattr(&self, _: &Context, _: u64, _: &CStr, _: u32) -> io::Result<GetxattrReply> {
        absent()
    }

    fn listxattr(&self, _: &Context, _: u64, _: u32) -> io::Result<ListxattrReply> {
        absent()
    }
}

/// A read reply under construction.
struct Reply<'w>(&'w mut dyn ZeroCopyWriter);

impl ReadSink for Reply<'_> {
    fn copy_from(&mut self, file: &mut File, mut offset: u64, mut len: usize) -> io::Result<()> {
        while len > 0 {
            match self.0.write_from(file, len, offset) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(copied) => {
                    len -= copied;
                    offset += copied as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all(bytes)
    }
}

fn entry(attributes: &Attributes) -> Entry {
    Entry {
        inode: attributes.inode,
        generation: 0,
        attr: stat(attributes),
        attr_flags: 0,
        attr_timeout: FOREVER,
        entry_timeout: FOREVER,
    }
}

fn dirent<'n>(entry: &DirectoryEntry<'n>) -> DirEntry<'n> {
    let kind = match entry.kind {
        FileKind::Directory => libc::DT_DIR,
        FileKind::Regular => libc::DT_REG,
        FileKind::Symlink => libc::DT_LNK,
    };
    DirEntry {
        ino: entry.inode,
        offset: entry.cookie,
        type_: u32::from(kind),
        name: entry.name,
    }
}

fn stat(attributes: &Attributes) -> stat64 {
    let kind = match attributes.kind {
        FileKind::Directory => libc::S_IFDIR,
        FileKind::Regular => libc::S_IFREG,
        FileKind::Symlink => libc::S_IFLNK,
    };
    // SAFETY: stat64 is a plain C struct of integers, for which zero is a value.
    let mut stat: stat64 = unsafe { std::mem::zeroed() };
    stat.st_ino = attributes.inode;
    stat.st_mode = kind | u32::from(attributes.mode);
    stat.st_nlink = attributes.links.into();
    stat.st_uid = attributes.uid;
    stat.st_gid = attributes.gid;
    stat.st_size = attributes.size.cast_signed();
    stat.st_blksize = BLOCK_SIZE.into();
    // In units of 512 bytes, as a disk with blocks of BLOCK_SIZE would count.
    stat.st_blocks =
        attributes.size.div_ceil(BLOCK_SIZE.into()).cast_signed() * i64::from(BLOCK_SIZE / 512);
    let nanoseconds = i64::from(attributes.mtime.nanoseconds);
    (stat.st_mtime, stat.st_mtime_nsec) = (attributes.mtime.seconds, nanoseconds);
    (stat.st_atime, stat.st_atime_nsec) = (attributes.mtime.seconds, nanoseconds);
    (stat.st_ctime, stat.st_ctime_nsec) = (attributes.mtime.seconds, nanoseconds);
    stat
}
