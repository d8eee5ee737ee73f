//! Reading files that anybody may have put there.

use std::{
    fs::File,
    io::{self, Read},
    os::unix::fs::OpenOptionsExt,
    path::Path,
};

/// Reads a text file whole, if it is a regular file of at most `max` bytes: a fifo would block for ever, and a device
/// has no end.
///
/// # Errors
/// `InvalidInput` for anything but a regular file, `FileTooLarge` above `max` bytes, `InvalidData` where it is not UTF-8;
/// whatever opening and reading report.
pub fn read_text(path: &Path, max: u64) -> io::Result<String> {
    // Without waiting for a writer, which only a fifo would do.
    let file = File::options()
        .read(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "it is not a regular file",
        ));
    }
    let mut text = String::new();
    if file.take(max + 1).read_to_string(&mut text)? as u64 > max {
        return Err(io::Error::new(
            io::ErrorKind::FileTooLarge,
            format!("it is larger than {max} bytes"),
        ));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_regular_files_of_a_sensible_size_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let kind = |name: &str, max| read_text(&path(name), max).map_err(|error| error.kind());

        std::fs::write(path("text"), "12345").unwrap();
        assert_eq!(kind("text", 5).unwrap(), "12345");
        assert_eq!(kind("text", 4), Err(io::ErrorKind::FileTooLarge));
        assert_eq!(kind("gone", 5), Err(io::ErrorKind::NotFound));
        std::fs::write(path("latin1"), b"\xe4").unwrap();
        assert_eq!(kind("latin1", 5), Err(io::ErrorKind::InvalidData));
        assert_eq!(kind(".", 5), Err(io::ErrorKind::InvalidInput));
        std::os::unix::fs::symlink("/dev/zero", path("device")).unwrap();
        assert_eq!(kind("device", 5), Err(io::ErrorKind::InvalidInput));
        rustix::fs::mkfifoat(rustix::fs::CWD, path("fifo"), rustix::fs::Mode::RUSR).unwrap();
        assert_eq!(kind("fifo", 5), Err(io::ErrorKind::InvalidInput));
    }
}
