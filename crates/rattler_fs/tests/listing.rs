//! Look-ups and listings: every name once, wherever a listing is taken up again, and the same numbers each time.

mod support;

use std::collections::BTreeMap;

use rattler_fs::{EnvironmentFs, content::ROOT_INODE, layout};
use serde_json::{Value, json};
use support::{no_supplier, options, package, paths_json};

/// An environment with one directory of `count` files, and a few beside it.
fn environment(cache: &std::path::Path, count: usize) -> EnvironmentFs {
    let names: Vec<String> = (0..count).map(|n| format!("big/file-{n:06}")).collect();
    let mut files: Vec<(&str, &[u8])> = names.iter().map(|name| (&**name, &b"x"[..])).collect();
    files.extend([
        ("bin/tool", &b"#!/bin/sh\n"[..]),
        ("a", b"a"),
        ("z", b"z"),
        ("text", b"p=/placeholder\n"),
    ]);
    let entries: Vec<Value> = files
        .iter()
        .map(|(path, _)| match *path {
            "text" => json!({
                "_path": path, "path_type": "hardlink", "file_mode": "text", "prefix_placeholder": "/placeholder",
            }),
            _ => json!({ "_path": path, "path_type": "hardlink" }),
        })
        .collect();
    let package = package(cache, "listed", &paths_json(&Value::from(entries)), &files);
    EnvironmentFs::new(
        layout::build(vec![package], &options()).unwrap(),
        no_supplier(),
    )
}

/// Names and inode numbers, listed in portions of `portion` entries.
fn list(fs: &EnvironmentFs, inode: u64, portion: usize) -> Vec<(Vec<u8>, u64)> {
    let mut listed = Vec::new();
    let mut cookie = 0;
    loop {
        let before = listed.len();
        fs.list(inode, cookie, &mut |entry| {
            if listed.len() - before == portion {
                return Ok(false);
            }
            cookie = entry.cookie;
            listed.push((entry.name.to_vec(), entry.inode));
            Ok(true)
        })
        .unwrap();
        if listed.len() == before {
            return listed;
        }
    }
}

#[test]
fn a_listing_taken_up_again_misses_and_repeats_nothing() {
    let cache = tempfile::tempdir().unwrap();
    let fs = environment(cache.path(), 500);
    let big = fs.lookup(ROOT_INODE, b"big").unwrap().unwrap().inode;
    let whole = list(&fs, big, usize::MAX);
    assert_eq!(whole.len(), 502);
    assert_eq!(whole[0], (b".".to_vec(), big));
    assert_eq!(whole[1], (b"..".to_vec(), ROOT_INODE));
    for portion in [1, 2, 3, 7, 100, 501, 502, 503] {
        assert_eq!(list(&fs, big, portion), whole, "in portions of {portion}");
    }
    // A directory without children ends at once, from any cookie.
    for cookie in [0, 1, 2, 3, 1 << 40, u64::MAX] {
        fs.list(big, cookie, &mut |_| Ok(true)).unwrap();
    }
}

#[test]
fn names_and_listings_agree() {
    let cache = tempfile::tempdir().unwrap();
    let fs = environment(cache.path(), 50);
    let mut directories = vec![ROOT_INODE];
    let mut seen = BTreeMap::new();
    while let Some(directory) = directories.pop() {
        for (name, inode) in list(&fs, directory, usize::MAX).into_iter().skip(2) {
            let found = fs.lookup(directory, &name).unwrap().unwrap();
            assert_eq!(found.inode, inode);
            assert_eq!(fs.attributes(inode).unwrap(), found);
            assert!(
                seen.insert(inode, name.clone()).is_none(),
                "inode numbers are distinct"
            );
            if found.kind == rattler_fs::content::FileKind::Directory {
                directories.push(inode);
            }
            let mut other = name;
            other.push(b'x');
            assert_eq!(fs.lookup(directory, &other).unwrap(), None);
        }
    }
    assert_eq!(fs.lookup(ROOT_INODE, b"").unwrap(), None);
    assert_eq!(fs.lookup(ROOT_INODE, b"..").unwrap(), None);
    assert!(fs.attributes(0).is_err());
    assert!(fs.attributes(u64::MAX).is_err());
    assert!(fs.attributes(1 + fs.inode_count()).is_err());
}

#[test]
fn inode_numbers_are_the_same_each_time() {
    let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (one, other) = (environment(one.path(), 300), environment(other.path(), 300));
    for inode in 1..=one.inode_count() {
        let (mut a, mut b) = (
            one.attributes(inode).unwrap(),
            other.attributes(inode).unwrap(),
        );
        // The two caches were not filled at the same moment.
        (a.mtime, a.size) = (b.mtime, a.size.min(b.size));
        b.size = a.size;
        assert_eq!(a, b);
    }
}

#[test]
fn a_size_is_listed_only_when_it_is_settled() {
    let cache = tempfile::tempdir().unwrap();
    let fs = environment(cache.path(), 1);
    let attributes = |name: &[u8]| {
        let mut found = None;
        fs.list(ROOT_INODE, 0, &mut |entry| {
            if entry.name == name {
                found = entry.attributes;
            }
            Ok(true)
        })
        .unwrap();
        found
    };
    assert!(attributes(b"a").is_some());
    assert!(attributes(b"text").is_none());
    let size = fs.lookup(ROOT_INODE, b"text").unwrap().unwrap().size;
    assert_eq!(size, "p=/the/prefix\n".len() as u64);
    assert_eq!(attributes(b"text").unwrap().size, size);
}
