//! Where read bytes go.

use std::{fs::File, io, os::unix::fs::FileExt};

use rattler_digest::{Sha256, Sha256Hash, digest::Digest};

/// Takes the bytes of a read in order. Lets a transport copy from a file without a buffer in between.
pub trait ReadSink {
    /// Takes `len` bytes of `file` from `offset` on.
    ///
    /// # Errors
    /// `UnexpectedEof` when the file ends before; whatever reading or the transport reports.
    fn copy_from(&mut self, file: &mut File, offset: u64, len: usize) -> io::Result<()>;

    /// Takes these bytes.
    ///
    /// # Errors
    /// Whatever the transport reports.
    fn put(&mut self, bytes: &[u8]) -> io::Result<()>;
}

impl ReadSink for Vec<u8> {
    fn copy_from(&mut self, file: &mut File, offset: u64, len: usize) -> io::Result<()> {
        let start = self.len();
        self.resize(start + len, 0);
        file.read_exact_at(&mut self[start..], offset)
    }

    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.extend_from_slice(bytes);
        Ok(())
    }
}

/// Hashes what it takes.
#[derive(Default)]
pub(super) struct Sha256Sink {
    hasher: Sha256,
    buffer: Vec<u8>,
}

impl Sha256Sink {
    /// The hash of all bytes taken.
    pub(super) fn finish(self) -> Sha256Hash {
        self.hasher.finalize()
    }
}

impl ReadSink for Sha256Sink {
    fn copy_from(&mut self, file: &mut File, offset: u64, len: usize) -> io::Result<()> {
        self.buffer.resize(len.max(self.buffer.len()), 0);
        let buffer = &mut self.buffer[..len];
        file.read_exact_at(buffer, offset)?;
        self.hasher.update(buffer);
        Ok(())
    }

    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.hasher.update(bytes);
        Ok(())
    }
}
