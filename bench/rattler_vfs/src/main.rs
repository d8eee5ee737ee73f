//! `peer_rattler_vfs LOCK_FILE ENVIRONMENT PACKAGE_CACHE MOUNT_POINT`: mounts one environment for linux-64 read-only
//! through the FUSE adapter of rattler_vfs and unmounts it on SIGTERM or SIGINT.

use std::path::PathBuf;

use anyhow::{Context, bail};
use rattler_cache::package_cache::PackageCache;
use rattler_conda_types::Subdir;
use rattler_lock::LockFile;
use rattler_vfs::{MountConfig, Transport, build_and_mount, compute_env_hash};
use tokio::signal::unix::{SignalKind, signal};

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let arguments: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    let [lock_file, environment, package_cache, mount_point] = arguments.as_slice() else {
        bail!("usage: peer_rattler_vfs LOCK_FILE ENVIRONMENT PACKAGE_CACHE MOUNT_POINT");
    };
    let environment = environment.to_str().context("the environment's name is not UTF-8")?;

    // Before the mount, so that a signal that comes while it is made is not lost.
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;

    let lock_file = LockFile::from_path(lock_file)?;
    let platform = Subdir::Linux64;
    let hash = compute_env_hash(&lock_file, environment, platform)?;
    let cache = PackageCache::new(package_cache.clone());
    let config = MountConfig::new(mount_point.clone(), Transport::Fuse, hash);
    let mount = build_and_mount(&lock_file, environment, platform, &cache, &config).await?;

    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    mount.unmount().await
}
