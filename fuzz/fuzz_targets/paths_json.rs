//! A package with arbitrary bytes as its `paths.json`: the layout gives a tree or an error.
#![no_main]

use std::{fs, path::PathBuf, sync::LazyLock};

use libfuzzer_sys::fuzz_target;
use rattler_conda_types::{RepoDataRecord, Subdir};
use rattler_fs::layout::{self, LayoutOptions, fetch::CachedPackage};
use tempfile::TempDir;

static PACKAGE: LazyLock<TempDir> = LazyLock::new(|| {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let index = r#"{"name":"fuzzed","version":"1","build":"0","build_number":0,"subdir":"linux-64","depends":[]}"#;
    for (path, text) in [("info/index.json", index), ("a", "aaaa"), ("b/c", "/placeholder/x\0"), ("d", "")] {
        let path = dir.path().join(path);
        fs::create_dir_all(path.parent().expect("a parent")).expect("a folder");
        fs::write(path, text).expect("a file");
    }
    std::os::unix::fs::symlink("a", dir.path().join("link")).expect("a symlink");
    dir
});

static RECORD: LazyLock<RepoDataRecord> = LazyLock::new(|| {
    serde_json::from_str(
        r#"{"name":"fuzzed","version":"1","build":"0","build_number":0,"subdir":"linux-64","depends":[],
            "fn":"fuzzed-1-0.conda","url":"https://channel.invalid/linux-64/fuzzed-1-0.conda","channel":"c"}"#,
    )
    .expect("a record")
});

fuzz_target!(|data: &[u8]| {
    fs::write(PACKAGE.path().join("info/paths.json"), data).expect("paths.json is written");
    let package = CachedPackage {
        record: RECORD.clone(),
        dir: PACKAGE.path().to_owned(),
    };
    let options = LayoutOptions {
        prefix: PathBuf::from("/a/prefix"),
        platform: Subdir::Linux64,
        extra_files: Vec::new(),
    };
    let _ = layout::build(vec![package], &options);
});
