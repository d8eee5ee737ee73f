//! What is measured runs in a process of its own, so that every column costs the same: these hidden tasks print one
//! number, in seconds, on stdout (but `__ready`, which says when).

use std::{
    fs::File,
    io::{self, Read},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use clap::Subcommand;
use corpus::reference::Environment;

/// How long a look at a mount that is not there yet may rest.
const POLL: Duration = Duration::from_micros(200);

/// A hidden task.
#[derive(Subcommand)]
pub(crate) enum Probe {
    /// Look at every entry below a folder: readdir and lstat, one thread
    #[command(hide = true, name = "__walk")]
    Walk { folder: PathBuf },
    /// Read every regular file below a folder through a buffer of 64 KiB, one thread
    #[command(hide = true, name = "__read")]
    Read { folder: PathBuf },
    /// Say so when a path can be looked at
    #[command(hide = true, name = "__ready")]
    Ready { path: PathBuf },
    /// Install the environment `default` of a workspace with rattler
    #[command(hide = true, name = "__install")]
    Install {
        manifest: PathBuf,
        prefix: PathBuf,
        package_cache: PathBuf,
    },
}

impl Probe {
    /// Does it and prints the number.
    pub(crate) fn run(&self) -> io::Result<()> {
        let start = Instant::now();
        match self {
            Self::Walk { folder } => walk(folder)?,
            Self::Read { folder } => read(folder, &mut vec![0; 64 * 1024])?,
            Self::Ready { path } => {
                // Says that it looks, so that the mount is started after the first look.
                let _ = fs_err::metadata(path);
                println!("looking");
                while std::fs::metadata(path).is_err() {
                    std::thread::sleep(POLL);
                }
                println!("ready");
                return Ok(());
            }
            Self::Install {
                manifest,
                prefix,
                package_cache,
            } => {
                let environment =
                    Environment::read(manifest, "default").map_err(io::Error::other)?;
                environment
                    .install(prefix, package_cache)
                    .map_err(io::Error::other)?;
            }
        }
        println!("{}", start.elapsed().as_secs_f64());
        Ok(())
    }
}

fn walk(folder: &Path) -> io::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        if entry.metadata()?.is_dir() {
            walk(&entry.path())?;
        }
    }
    Ok(())
}

fn read(folder: &Path, buffer: &mut [u8]) -> io::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let kind = entry.file_type()?;
        if kind.is_dir() {
            read(&entry.path(), buffer)?;
        } else if kind.is_file() {
            let mut file = File::open(entry.path())?;
            while file.read(buffer)? > 0 {}
        }
    }
    Ok(())
}
