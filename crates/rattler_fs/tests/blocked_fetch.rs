//! A package that takes its time to come back holds up those who want it, and nobody else.

mod support;

use std::{
    error::Error,
    fs,
    path::{Path, PathBuf},
    sync::{
        Arc, Condvar, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

use rattler_conda_types::RepoDataRecord;
use rattler_fs::{
    EnvironmentFs, PackageSupplier,
    fuse::{MountOptions, Session, Unmount},
    layout,
};
use serde_json::json;
use support::{options, package, paths_json};

/// Waits until it is let go, then fails.
#[derive(Default)]
struct SlowSupplier {
    let_go: Mutex<bool>,
    changed: Condvar,
    asked: AtomicUsize,
}

impl PackageSupplier for SlowSupplier {
    fn supply(&self, _: &RepoDataRecord) -> Result<PathBuf, Box<dyn Error + Send + Sync>> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        let mut let_go = self.let_go.lock().unwrap();
        while !*let_go {
            let_go = self.changed.wait(let_go).unwrap();
        }
        Err("it is not there any more".into())
    }
}

#[test]
fn others_are_served_meanwhile() {
    if std::env::var_os("PIXI_MOUNT_SKIP_FUSE_TESTS").is_some_and(|value| value == "1") {
        eprintln!("PIXI_MOUNT_SKIP_FUSE_TESTS is set: 1 test skipped");
        return;
    }
    const READERS: usize = 12;
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().canonicalize().unwrap();
    let names: Vec<String> = (0..READERS)
        .map(|number| format!("slow/{number}"))
        .collect();
    let slow: Vec<(&str, &[u8])> = names.iter().map(|name| (&**name, &b"slow"[..])).collect();
    let entries = |paths: &[(&str, &[u8])]| {
        paths_json(
            &paths
                .iter()
                .map(|(path, _)| json!({ "_path": path, "path_type": "hardlink" }))
                .collect(),
        )
    };
    let fast: &[(&str, &[u8])] = &[("fast", b"fast")];
    let packages = vec![
        package(&root.join("cache"), "slow", &entries(&slow), &slow),
        package(&root.join("cache"), "fast", &entries(fast), fast),
    ];
    let supplier = Arc::new(SlowSupplier::default());
    let environment = EnvironmentFs::new(
        layout::build(packages, &options()).unwrap(),
        supplier.clone(),
    );
    let mount_point = root.join("mount");
    fs::create_dir(&mount_point).unwrap();
    let session = Session::mount(
        Arc::new(environment),
        MountOptions {
            mount_point: mount_point.clone(),
            source: "pixi:test/blocked".into(),
            read_only: true,
            allow_other: false,
        },
    )
    .unwrap();
    let unmounter = session.unmounter();
    let server = thread::spawn(move || session.run());

    fs::remove_dir_all(root.join("cache/slow")).unwrap();
    let read = |path: &Path| fs::read(path);
    thread::scope(|scope| {
        let readers: Vec<_> = names
            .iter()
            .map(|name| {
                let path = mount_point.join(name);
                scope.spawn(move || read(&path))
            })
            .collect();
        while supplier.asked.load(Ordering::SeqCst) == 0 {
            thread::yield_now();
        }
        // With as many waiting as there are, this would never return.
        assert_eq!(read(&mount_point.join("fast")).unwrap(), b"fast");
        assert!(rustix::fs::statfs(&mount_point).is_ok());
        *supplier.let_go.lock().unwrap() = true;
        supplier.changed.notify_all();
        for reader in readers {
            assert_eq!(
                reader.join().unwrap().unwrap_err().raw_os_error(),
                Some(libc::EIO)
            );
        }
    });
    unmounter.unmount(Unmount::Plain).unwrap();
    server.join().unwrap().unwrap();
}
