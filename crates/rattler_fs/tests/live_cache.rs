//! The package cache under a live environment: a folder that vanished, was replaced or was written to never gives other
//! bytes than those that the environment was made from.

mod support;

use std::{
    error::Error,
    fs,
    io::{self, Write},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use rattler_conda_types::RepoDataRecord;
use rattler_fs::{EnvironmentFs, PackageSupplier, content::ROOT_INODE, layout};
use serde_json::json;
use support::{options, package, paths_json};

const FILES: &[(&str, &[u8])] = &[
    ("plain", b"the right bytes\n"),
    ("text", b"prefix=/placeholder\n"),
    ("lib", b"\x7fELF /placeholder/lib\0tail"),
];

fn write_package(cache: &Path) -> layout::fetch::CachedPackage {
    let prefix = |path: &str, mode: &str| json!({ "_path": path, "path_type": "hardlink", "file_mode": mode, "prefix_placeholder": "/placeholder" });
    let entries = json!([{ "_path": "plain", "path_type": "hardlink" }, prefix("text", "text"), prefix("lib", "binary")]);
    let package = package(cache, "live", &paths_json(&entries), FILES);
    for (name, _) in FILES {
        // As an archive would have it: the same date after each extraction.
        let file = fs::File::options()
            .write(true)
            .open(package.dir.join(name))
            .unwrap();
        file.set_modified(std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_600_000_000))
            .unwrap();
    }
    package
}

/// Extracts the package again, or fails.
struct Extractor {
    cache: PathBuf,
    works: bool,
    supplied: AtomicUsize,
}

impl PackageSupplier for Extractor {
    fn supply(&self, _: &RepoDataRecord) -> Result<PathBuf, Box<dyn Error + Send + Sync>> {
        self.supplied.fetch_add(1, Ordering::Relaxed);
        if !self.works {
            return Err("the channel is out of reach".into());
        }
        let dir = self.cache.join("live");
        if dir.exists() {
            fs::remove_dir_all(&dir)?;
        }
        Ok(write_package(&self.cache).dir)
    }
}

struct Live {
    cache: tempfile::TempDir,
    fs: EnvironmentFs,
    extractor: Arc<Extractor>,
}

fn live(works: bool) -> Live {
    let cache = tempfile::tempdir().unwrap();
    let tree = layout::build(vec![write_package(cache.path())], &options()).unwrap();
    let extractor = Arc::new(Extractor {
        cache: cache.path().to_owned(),
        works,
        supplied: AtomicUsize::new(0),
    });
    Live {
        fs: EnvironmentFs::new(tree, extractor.clone()),
        cache,
        extractor,
    }
}

impl Live {
    fn package(&self) -> PathBuf {
        self.cache.path().join("live")
    }

    fn read(&self, path: &str) -> io::Result<Vec<u8>> {
        let mut attributes = self.fs.attributes(ROOT_INODE)?;
        for name in path.split('/') {
            attributes = self.fs.lookup(attributes.inode, name.as_bytes())?.unwrap();
        }
        let mut bytes = Vec::new();
        self.fs
            .read(attributes.inode, 0, usize::MAX >> 1, &mut bytes)?;
        assert_eq!(bytes.len() as u64, attributes.size);
        Ok(bytes)
    }

    fn assert_right(&self) {
        assert_eq!(self.read("plain").unwrap(), b"the right bytes\n");
        assert_eq!(self.read("text").unwrap(), b"prefix=/the/prefix\n");
        assert_eq!(
            self.read("lib").unwrap(),
            b"\x7fELF /the/prefix/lib\0\0tail"
        );
        let record: serde_json::Value =
            serde_json::from_slice(&self.read("conda-meta/live-1.0-0.json").unwrap()).unwrap();
        assert_eq!(
            record["paths_data"]["paths"].as_array().unwrap().len(),
            FILES.len()
        );
    }

    /// No file gives bytes, and none gives wrong ones.
    fn assert_eio(&self, paths: &[&str]) {
        for path in paths {
            let error = self.read(path).expect_err(path);
            assert_eq!(error.raw_os_error(), Some(libc::EIO), "{path}: {error}");
        }
    }
}

type Change = fn(&Path);

/// What happens to package folders in real life.
const CHANGES: &[(&str, Change)] = &[
    ("removed", |dir| fs::remove_dir_all(dir).unwrap()),
    ("emptied", |dir| {
        fs::remove_dir_all(dir).unwrap();
        fs::create_dir(dir).unwrap();
    }),
    ("replaced by files of equal size and date", |dir| {
        fs::remove_dir_all(dir).unwrap();
        let cache = dir.parent().unwrap();
        write_package(cache);
        for (name, bytes) in FILES {
            let modified = fs::metadata(dir.join(name)).unwrap().modified().unwrap();
            let other: Vec<u8> = bytes.iter().map(|byte| byte ^ 1).collect();
            let mut file = fs::File::create(dir.join(name)).unwrap();
            file.write_all(&other).unwrap();
            file.set_modified(modified).unwrap();
        }
    }),
    ("made a file", |dir| {
        fs::remove_dir_all(dir).unwrap();
        fs::write(dir, "").unwrap();
    }),
    ("made a symlink to itself", |dir| {
        fs::remove_dir_all(dir).unwrap();
        std::os::unix::fs::symlink(dir, dir).unwrap();
    }),
    ("each file replaced by rename", |dir| {
        for (name, _) in FILES {
            fs::write(dir.join("new"), "evil").unwrap();
            fs::rename(dir.join("new"), dir.join(name)).unwrap();
        }
        fs::write(dir.join("new"), "{\"paths\":[],\"paths_version\":1}").unwrap();
        fs::rename(dir.join("new"), dir.join("info/paths.json")).unwrap();
    }),
    ("each file written to", |dir| {
        for name in FILES
            .iter()
            .map(|(name, _)| *name)
            .chain(["info/paths.json"])
        {
            fs::File::options()
                .append(true)
                .open(dir.join(name))
                .unwrap()
                .write_all(b" ")
                .unwrap();
        }
    }),
    ("each file a symlink elsewhere", |dir| {
        for name in FILES
            .iter()
            .map(|(name, _)| *name)
            .chain(["info/paths.json"])
        {
            fs::remove_file(dir.join(name)).unwrap();
            std::os::unix::fs::symlink("/etc/hostname", dir.join(name)).unwrap();
        }
    }),
];

const ALL: &[&str] = &["plain", "text", "lib", "conda-meta/live-1.0-0.json"];

#[test]
fn a_changed_package_is_fetched_again() {
    for (what, change) in CHANGES {
        let live = live(true);
        if let Ok(metadata) = fs::symlink_metadata(live.package()) {
            assert!(metadata.is_dir());
        }
        change(&live.package());
        if fs::symlink_metadata(live.package()).is_ok_and(|metadata| !metadata.is_dir()) {
            fs::remove_file(live.package()).unwrap();
        }
        live.assert_right();
        assert_eq!(
            live.extractor.supplied.load(Ordering::Relaxed),
            1,
            "{what}: fetched once"
        );
        live.assert_right();
    }
}

#[test]
fn a_package_that_cannot_be_had_again_gives_errors() {
    for (what, change) in CHANGES {
        let live = live(false);
        change(&live.package());
        live.assert_eio(ALL);
        assert_eq!(
            live.extractor.supplied.load(Ordering::Relaxed),
            1,
            "{what}: not tried for each read"
        );
    }
}

#[test]
fn a_change_after_the_first_read_is_noticed_too() {
    for (what, change) in CHANGES {
        let live = live(false);
        live.assert_right();
        change(&live.package());
        // The record may be remembered: it was made from the right bytes.
        live.assert_eio(&["plain", "text", "lib"]);
        let record = live.read("conda-meta/live-1.0-0.json");
        assert!(
            record.is_err() || record.unwrap().starts_with(b"{"),
            "{what}"
        );
    }
}

#[test]
fn a_supplier_that_brings_other_files_is_not_believed() {
    struct Liar(PathBuf);
    impl PackageSupplier for Liar {
        fn supply(&self, _: &RepoDataRecord) -> Result<PathBuf, Box<dyn Error + Send + Sync>> {
            let dir = self.0.join("live");
            fs::create_dir_all(&dir)?;
            fs::write(dir.join("plain"), "other bytes")?;
            Ok(dir)
        }
    }
    let cache = tempfile::tempdir().unwrap();
    let tree = layout::build(vec![write_package(cache.path())], &options()).unwrap();
    let fs = EnvironmentFs::new(tree, Arc::new(Liar(cache.path().to_owned())));
    fs::remove_dir_all(cache.path().join("live")).unwrap();
    let plain = fs.lookup(ROOT_INODE, b"plain").unwrap().unwrap().inode;
    let error = fs.read(plain, 0, 100, &mut Vec::new()).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EIO));
}

#[test]
fn a_hard_link_or_a_move_of_the_folder_changes_nothing() {
    let live = live(false);
    fs::hard_link(
        live.package().join("plain"),
        live.cache.path().join("linked"),
    )
    .unwrap();
    fs::rename(live.package(), live.cache.path().join("moved")).unwrap();
    live.assert_right();
    assert_eq!(live.extractor.supplied.load(Ordering::Relaxed), 0);
}

#[test]
fn many_threads_bring_a_package_back_once() {
    let live = live(true);
    fs::remove_dir_all(live.package()).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| live.assert_right());
        }
    });
    assert_eq!(live.extractor.supplied.load(Ordering::Relaxed), 1);
}
