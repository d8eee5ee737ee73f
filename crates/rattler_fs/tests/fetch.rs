//! Packages in the cache: taken as they are, fetched where they are missing, replaced where they are not what they should
//! be.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use corpus::package::{Built, Entry, Format, Package};
use rattler_cache::package_cache::CacheReporter;
use rattler_conda_types::RepoDataRecord;
use rattler_fs::layout::fetch::{CachedPackage, FetchError, FetchReporter, PackageFetcher};
use rattler_networking::LazyClient;

struct Place {
    folder: tempfile::TempDir,
    runtime: tokio::runtime::Runtime,
}

impl Place {
    fn new() -> Self {
        Self {
            folder: tempfile::tempdir().unwrap(),
            runtime: tokio::runtime::Builder::new_multi_thread()
                .enable_all()
                .build()
                .unwrap(),
        }
    }

    fn cache(&self) -> PathBuf {
        self.folder.path().join("pkgs")
    }

    fn fetcher(&self) -> PackageFetcher {
        PackageFetcher::new(self.cache(), LazyClient::default(), 4)
    }

    /// An archive of a package with one file.
    fn archive(&self, folder: &str, name: &str, text: &str) -> Built {
        Package::new(name, "1.0", "0")
            .with(Entry::file("share/text", text))
            .write(&self.folder.path().join(folder), Format::Conda)
            .unwrap()
    }

    fn fetch(&self, records: &[RepoDataRecord]) -> Result<Vec<CachedPackage>, FetchError> {
        self.runtime.block_on(self.fetcher().fetch_all(records))
    }

    fn fetch_one(&self, record: &RepoDataRecord) -> CachedPackage {
        let mut packages = self.fetch(std::slice::from_ref(record)).unwrap();
        packages.remove(0)
    }

    fn refetch(&self, record: &RepoDataRecord) -> Result<CachedPackage, FetchError> {
        self.runtime.block_on(self.fetcher().refetch(record))
    }
}

fn text(package: &CachedPackage) -> String {
    fs::read_to_string(package.dir.join("share/text")).unwrap()
}

fn inode(path: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    fs::metadata(path).unwrap().ino()
}

#[derive(Default)]
struct Counter {
    missing: AtomicUsize,
    finished: AtomicUsize,
}

impl FetchReporter for Counter {
    fn on_missing(&self, records: &[&RepoDataRecord]) {
        self.missing.fetch_add(records.len(), Ordering::Relaxed);
    }

    fn on_package(&self, _: &RepoDataRecord) -> Option<Arc<dyn CacheReporter>> {
        None
    }

    fn on_finished(&self) {
        self.finished.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn what_is_missing_is_fetched_and_the_order_is_kept() {
    let place = Place::new();
    let archives: Vec<Built> = ["c", "a", "b"]
        .map(|name| place.archive("channel", name, name))
        .into();
    let records: Vec<_> = archives.iter().map(|built| built.record.clone()).collect();
    place.fetch(&records[1..2]).unwrap();

    let counter = Arc::new(Counter::default());
    let fetcher = place.fetcher().with_reporter(counter.clone());
    let packages = place.runtime.block_on(fetcher.fetch_all(&records)).unwrap();
    assert_eq!(
        packages.iter().map(text).collect::<Vec<_>>(),
        ["c", "a", "b"]
    );
    assert_eq!(counter.missing.load(Ordering::Relaxed), 2);
    assert_eq!(counter.finished.load(Ordering::Relaxed), 1);

    // All are there: the archives are not needed any more, and nothing is written.
    fs::remove_dir_all(place.folder.path().join("channel")).unwrap();
    let before = fs::metadata(place.cache()).unwrap().modified().unwrap();
    let again = place.runtime.block_on(fetcher.fetch_all(&records)).unwrap();
    assert_eq!(again.iter().map(text).collect::<Vec<_>>(), ["c", "a", "b"]);
    assert_eq!(
        fs::metadata(place.cache()).unwrap().modified().unwrap(),
        before
    );
    assert_eq!(counter.finished.load(Ordering::Relaxed), 1);
}

#[test]
fn another_package_of_the_same_name_is_not_taken() {
    let place = Place::new();
    let one = place.archive("one", "same", "one");
    let other = place.archive("other", "same", "other");
    assert_eq!(text(&place.fetch_one(&one.record)), "one");
    assert_eq!(text(&place.fetch_one(&other.record)), "other");
}

#[test]
fn a_package_that_is_whole_is_kept() {
    let place = Place::new();
    let built = place.archive("channel", "whole", "whole");
    let dir = place.fetch_one(&built.record).dir;
    let before = inode(&dir.join("share/text"));
    // Its archive is not even looked at.
    fs::remove_file(&built.path).unwrap();
    let package = place.refetch(&built.record).unwrap();
    assert_eq!(package.dir, dir);
    assert_eq!(inode(&dir.join("share/text")), before);
}

#[test]
fn a_damaged_package_is_extracted_again() {
    let place = Place::new();
    let built = place.archive("channel", "damaged", "right");
    let dir = place.fetch_one(&built.record).dir;
    let file = dir.join("share/text");
    type Damage<'a> = Box<dyn Fn() + 'a>;
    let damages: [Damage<'_>; 5] = [
        Box::new(|| fs::write(&file, "wrong").unwrap()),
        Box::new(|| fs::write(&file, "longer than right").unwrap()),
        Box::new(|| fs::remove_file(&file).unwrap()),
        Box::new(|| fs::remove_file(dir.join("info/index.json")).unwrap()),
        Box::new(|| fs::remove_dir_all(&dir).unwrap()),
    ];
    for damage in damages {
        damage();
        let package = place.refetch(&built.record).unwrap();
        assert_eq!(package.dir, dir);
        assert_eq!(fs::read_to_string(&file).unwrap(), "right");
    }
}

#[test]
fn paths_that_lead_out_of_the_package_are_not_read() {
    let place = Place::new();
    let built = place.archive("channel", "hostile", "right");
    let dir = place.fetch_one(&built.record).dir;
    // Hashing one of these would never end.
    for path in [
        "/dev/zero",
        "../../../../../../../../dev/zero",
        "share/zero",
    ] {
        let _ = std::os::unix::fs::symlink("/dev/zero", dir.join("share/zero"));
        let hash = "0".repeat(64);
        let paths = format!(
            r#"{{"paths_version": 1, "paths": [{{"_path": {path:?}, "path_type": "hardlink", "sha256": "{hash}"}}]}}"#
        );
        fs::write(dir.join("info/paths.json"), paths).unwrap();
        let package = place.refetch(&built.record).unwrap();
        assert_eq!(text(&package), "right");
        assert!(!dir.join("share/zero").exists());
    }
}

#[test]
fn a_cached_package_stays_where_the_archive_is_the_wrong_one() {
    let place = Place::new();
    let built = place.archive("channel", "kept", "right");
    let other = place.archive("other", "kept", "other");
    let dir = place.fetch_one(&built.record).dir;
    fs::write(dir.join("share/text"), "wrong").unwrap();
    fs::copy(&other.path, &built.path).unwrap();
    let error = place.refetch(&built.record).unwrap_err();
    assert!(error.to_string().contains("hash mismatch"), "{error}");
    assert_eq!(fs::read_to_string(dir.join("share/text")).unwrap(), "wrong");

    fs::remove_file(&built.path).unwrap();
    let error = place.refetch(&built.record).unwrap_err();
    assert!(matches!(error, FetchError::Gone { .. }), "{error}");
}

#[test]
fn the_older_hash_will_do_and_no_hash_will_not() {
    let place = Place::new();
    let mut built = place.archive("channel", "hashes", "right");
    built.record.package_record.sha256 = None;
    assert!(built.record.package_record.md5.is_some());
    let dir = place.fetch_one(&built.record).dir;
    let before = inode(&dir);
    // The cache does not know the md5 of what it has.
    let package = place.refetch(&built.record).unwrap();
    assert_eq!(text(&package), "right");
    assert_ne!(inode(&dir), before);

    built.record.package_record.md5 = Some(Default::default());
    assert!(place.refetch(&built.record).is_err());
    built.record.package_record.md5 = None;
    let error = place.refetch(&built.record).unwrap_err();
    assert!(matches!(error, FetchError::NoHash { .. }), "{error}");
}
