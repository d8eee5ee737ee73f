//! What no package may do to a layout: each is one clear error, and none is a panic.

mod support;

use proptest::prelude::*;
use rattler_fs::layout::{self, LayoutError};
use serde_json::{Value, json};
use support::{options, package, paths_json};

fn entry(path: &str) -> Value {
    json!({ "_path": path, "path_type": "hardlink" })
}

/// The error that a package with these entries and files gives.
fn refused(entries: &Value, files: &[(&str, &[u8])]) -> String {
    let cache = tempfile::tempdir().unwrap();
    let package = package(cache.path(), "hostile", &paths_json(entries), files);
    let error = layout::build(vec![package], &options()).expect_err("the package is hostile");
    let message = error.to_string();
    assert!(
        message.contains("hostile-1.0-0"),
        "the package is named: {message}"
    );
    assert_eq!(message.lines().count(), 1, "one message: {message}");
    message
}

#[track_caller]
fn assert_refused(entries: &Value, files: &[(&str, &[u8])], because: &str) {
    let message = refused(entries, files);
    assert!(
        message.contains(because),
        "{message:?} should say {because:?}"
    );
}

#[test]
fn paths_stay_in_the_environment() {
    assert_refused(&json!([entry("/etc/passwd")]), &[], "absolute");
    assert_refused(&json!([entry("../outside")]), &[], "upwards");
    assert_refused(&json!([entry("a/../../outside")]), &[], "upwards");
    assert_refused(&json!([entry("a/./b")]), &[("a/b", b"")], "component");
    assert_refused(&json!([entry("a//b")]), &[("a/b", b"")], "component");
    assert_refused(&json!([entry("a/")]), &[], "component");
    assert_refused(&json!([entry("./a")]), &[("a", b"")], "component");
    assert_refused(&json!([entry("")]), &[], "empty");
    assert_refused(&json!([entry("a\0b")]), &[], "NUL");
    assert_refused(&json!([entry(&"x".repeat(256))]), &[], "255");
    assert_refused(&json!([entry(&"x/".repeat(3000))]), &[], "4095");
}

#[test]
fn paths_of_a_package_agree() {
    let placeholder = json!({ "_path": "a", "path_type": "hardlink", "file_mode": "text", "prefix_placeholder": "xx" });
    assert_refused(
        &json!([entry("a"), placeholder]),
        &[("a", b"xxxx")],
        "disagree",
    );
    assert_refused(&json!([entry("a"), entry("a/b")]), &[("a", b"")], "a/b");
    let directory = json!({ "_path": "a", "path_type": "directory" });
    assert_refused(&json!([directory]), &[("a", b"")], "should be a directory");
    let softlink = json!({ "_path": "a", "path_type": "softlink" });
    assert_refused(&json!([softlink]), &[("a", b"")], "should be a symlink");
    assert_refused(&json!([entry("a")]), &[("a/b", b"")], "should be a file");
    let long = json!({ "_path": "a", "path_type": "hardlink", "size_in_bytes": 5 });
    assert_refused(&json!([long]), &[("a", b"1234")], "5 bytes");
    assert_refused(&json!([entry("gone")]), &[], "missing");
}

#[test]
fn the_same_entry_twice_is_one_file() {
    let cache = tempfile::tempdir().unwrap();
    let entries = paths_json(&json!([entry("a"), entry("a")]));
    let package = package(cache.path(), "twice", &entries, &[("a", b"")]);
    let tree = layout::build(vec![package], &options()).unwrap();
    // The file, and the package's record.
    assert_eq!(tree.file_count(), 2);
}

#[test]
fn placeholders_make_sense() {
    let with = |placeholder: &str| json!([{ "_path": "a", "path_type": "hardlink", "file_mode": "binary", "prefix_placeholder": placeholder }]);
    assert_refused(&with(""), &[("a", b"1234")], "empty");
    assert_refused(&with("a\0b"), &[("a", b"1234")], "empty");
    assert_refused(&with("12345"), &[("a", b"1234")], "longer than the file");
}

#[test]
fn a_prefix_that_does_not_fit_names_package_and_file() {
    let entries = json!([
        { "_path": "lib/fits.so", "path_type": "hardlink", "file_mode": "binary", "prefix_placeholder": "/short" },
        { "_path": "lib/bad.so", "path_type": "hardlink", "file_mode": "binary", "prefix_placeholder": "/short" },
    ]);
    let files: &[(&str, &[u8])] = &[
        ("lib/fits.so", b"no such thing"),
        ("lib/bad.so", b"\x7fELF/short/lib\0"),
    ];
    assert_refused(&entries, files, "lib/bad.so");
    assert_refused(&entries, files, "/the/prefix");
}

#[test]
fn a_symlink_inside_a_package_leads_nowhere_else() {
    let cache = tempfile::tempdir().unwrap();
    let package = package(
        cache.path(),
        "hostile",
        &paths_json(&json!([entry("etc/hostname")])),
        &[],
    );
    std::os::unix::fs::symlink("/etc", package.dir.join("etc")).unwrap();
    let error =
        layout::build(vec![package], &options()).expect_err("the file is not the package's");
    assert!(error.to_string().contains("etc/hostname"), "{error}");
}

#[test]
fn a_package_cannot_replace_what_the_environment_says_of_itself() {
    let cache = tempfile::tempdir().unwrap();
    let entries = paths_json(&json!([
        entry("conda-meta/history"),
        entry("conda-meta/honest-1.0-0.json")
    ]));
    let files: &[(&str, &[u8])] = &[
        ("conda-meta/history", b"lies"),
        ("conda-meta/honest-1.0-0.json", b"lies"),
    ];
    let package = package(cache.path(), "honest", &entries, files);
    let mut options = options();
    options
        .extra_files
        .push(("conda-meta/history".into(), b"truth".to_vec()));
    let tree = layout::build(vec![package], &options).unwrap();
    let fs = rattler_fs::EnvironmentFs::new(tree, support::no_supplier());
    let meta = fs.lookup(1, b"conda-meta").unwrap().unwrap().inode;
    let history = fs.lookup(meta, b"history").unwrap().unwrap().inode;
    let mut bytes = Vec::new();
    fs.read(history, 0, 100, &mut bytes).unwrap();
    assert_eq!(bytes, b"truth");
    let record = fs.lookup(meta, b"honest-1.0-0.json").unwrap().unwrap();
    assert_eq!(record.mode, 0o600);
}

#[test]
fn a_package_called_dot_dot_keeps_nothing_elsewhere() {
    let cache = tempfile::tempdir().unwrap();
    for name in ["..", "."] {
        let entries = paths_json(&json!([entry("a")]));
        let mut lost = package(
            cache.path(),
            &format!("lost{}", name.len()),
            &entries,
            &[("a", b"1")],
        );
        lost.record.package_record.name = name.parse().unwrap();
        let mut won = package(cache.path(), "won", &entries, &[("a", b"2")]);
        won.record.package_record.depends = vec![name.to_owned()];
        if let Ok(tree) = layout::build(vec![lost, won], &options()) {
            let fs = rattler_fs::EnvironmentFs::new(tree, support::no_supplier());
            fs.list(1, 0, &mut |entry| {
                assert_ne!(
                    entry.name, b"__clobbers__",
                    "nothing was lost, so {name:?} won"
                );
                Ok(true)
            })
            .unwrap();
        }
    }
}

#[test]
fn two_packages_of_one_name_are_refused() {
    let cache = tempfile::tempdir().unwrap();
    let one = package(cache.path(), "same", &paths_json(&json!([])), &[]);
    let error = layout::build(vec![one.clone(), one], &options()).unwrap_err();
    assert!(matches!(error, LayoutError::DuplicatePackage(name) if name == "same"));
}

#[test]
fn metadata_that_is_gone_or_damaged_may_be_fetched_again() {
    let cases: [fn(&std::path::Path); 4] = [
        |dir| std::fs::remove_file(dir.join("info/index.json")).unwrap(),
        |dir| std::fs::write(dir.join("info/index.json"), "{").unwrap(),
        |dir| std::fs::write(dir.join("info/paths.json"), "{\"paths\": 3}").unwrap(),
        |dir| std::fs::remove_dir_all(dir).unwrap(),
    ];
    for damage in cases {
        let cache = tempfile::tempdir().unwrap();
        let package = package(cache.path(), "hurt", &paths_json(&json!([])), &[]);
        damage(&package.dir);
        let error = layout::build(vec![package], &options()).unwrap_err();
        let LayoutError::Damaged(damaged) = &error else {
            panic!("{error}");
        };
        assert_eq!(damaged[0].index, 0);
    }
}

/// Strings that paths.json is made of, and everything between them.
fn fragment() -> impl Strategy<Value = String> {
    prop_oneof![
        Just("a".to_owned()),
        Just("a/b".to_owned()),
        Just("b".to_owned()),
        Just("/".to_owned()),
        Just("..".to_owned()),
        Just("conda-meta/x".to_owned()),
        Just("__clobbers__/fuzzed/a".to_owned()),
        Just("site-packages/m.py".to_owned()),
        ".*",
    ]
}

fn arbitrary_entry() -> impl Strategy<Value = Value> {
    let kinds = prop::sample::select(&["hardlink", "softlink", "directory", "windows", ""][..]);
    let modes = prop::sample::select(&["text", "binary", "other"][..]);
    (
        fragment(),
        kinds,
        prop::option::of((modes, fragment())),
        prop::option::of(any::<u64>()),
        any::<bool>(),
    )
        .prop_map(|(path, kind, prefix, size, no_link)| {
            let mut entry = json!({ "_path": path, "path_type": kind, "no_link": no_link });
            if let Some((mode, placeholder)) = prefix {
                entry["file_mode"] = mode.into();
                entry["prefix_placeholder"] = placeholder.into();
            }
            if let Some(size) = size {
                entry["size_in_bytes"] = size.into();
            }
            entry
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn no_paths_json_is_a_panic(
        entries in prop::collection::vec(arbitrary_entry(), 0..6),
        cut in prop::option::of(0usize..400),
        noise in prop::collection::vec((0usize..400, any::<u8>()), 0..3),
    ) {
        let mut text = paths_json(&Value::from(entries));
        if let Some(cut) = cut {
            text.truncate(cut);
        }
        for (position, byte) in noise {
            if let Some(target) = text.get_mut(position) {
                *target = byte;
            }
        }
        let cache = tempfile::tempdir().unwrap();
        let files: &[(&str, &[u8])] = &[("a", b"aaaa"), ("b", b"bbbb"), ("site-packages/m.py", b"")];
        let package = package(cache.path(), "fuzzed", &text, files);
        let _ = layout::build(vec![package], &options());
    }
}
