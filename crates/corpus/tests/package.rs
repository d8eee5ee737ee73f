//! What is asked for is in the archive: dates, modes, names, and metadata that lies.

use std::os::unix::fs::MetadataExt;

use corpus::{
    package::{ABOUT_MTIME, Built, Entry, FILE_MTIME, Format, PLACEHOLDER, Package, PrefixMode},
    reference::fill_package_cache,
};
use rattler_conda_types::package::{PackageFile, PathsJson};

fn package() -> Package {
    Package::new("probe", "1.0", "0")
        .with(Entry::file("share/plain.txt", "plain\n"))
        .with(
            Entry::program("bin/program", "#!/bin/sh\n")
                .mode(0o750)
                .mtime(1_600_000_000),
        )
        .with(Entry::file("etc/prefix.conf", PLACEHOLDER).prefix(PrefixMode::Text))
        .with(Entry::file("share/liar.txt", "5 bytes").declare("size_in_bytes", 5))
        .with(Entry::file("share/absent.txt", "").unarchived())
        .with(Entry::file("share/unlisted.txt", "").unlisted())
        .with(Entry::file(format!("share/{}", "n".repeat(255)), ""))
}

#[test]
fn both_formats_extract_to_the_same() {
    for format in [Format::Conda, Format::TarBz2] {
        let folder = tempfile::tempdir().unwrap();
        let built = package().write(folder.path(), format).unwrap();
        fill_package_cache(&folder.path().join("cache"), [&built]).unwrap();
        let extracted = folder.path().join("cache/probe-1.0-0");
        let look = |path: &str| fs_err::metadata(extracted.join(path)).unwrap();

        assert_eq!(
            look("info/about.json").mtime() as u64,
            ABOUT_MTIME,
            "{format:?}"
        );
        assert_eq!(look("share/plain.txt").mtime() as u64, FILE_MTIME);
        assert_eq!(look("bin/program").mtime(), 1_600_000_000);
        assert_eq!(look("bin/program").mode() & 0o100, 0o100);
        assert_eq!(look(&format!("share/{}", "n".repeat(255))).len(), 0);
        assert!(!extracted.join("share/absent.txt").exists());

        let paths = PathsJson::from_package_directory(&extracted).unwrap().paths;
        let find = |path: &str| {
            paths
                .iter()
                .find(|entry| entry.relative_path.as_os_str() == path)
        };
        assert_eq!(find("share/liar.txt").unwrap().size_in_bytes, Some(5));
        assert_eq!(
            find("etc/prefix.conf")
                .unwrap()
                .prefix_placeholder
                .as_ref()
                .unwrap()
                .placeholder,
            PLACEHOLDER
        );
        assert!(find("share/absent.txt").is_some());
        assert!(find("share/unlisted.txt").is_none());
    }
}

#[test]
fn the_record_is_that_of_the_archive() {
    let folder = tempfile::tempdir().unwrap();
    let built = package()
        .depends("other >=1")
        .write(folder.path(), Format::Conda)
        .unwrap();
    assert_eq!(built.record, Built::open(&built.path).unwrap().record);
    assert_eq!(built.record.package_record.depends, ["other >=1"]);
    assert_eq!(built.file_name(), "probe-1.0-0.conda");
}

#[test]
fn metadata_can_be_given_as_text_or_left_out() {
    let folder = tempfile::tempdir().unwrap();
    let package = package()
        .info("paths.json", "{ no JSON")
        .without_info("about.json")
        .without_info("files");
    let built = package.write(folder.path(), Format::TarBz2).unwrap();
    let file = fs_err::File::open(&built.path).unwrap();
    let mut archive = tar::Archive::new(bzip2::read::BzDecoder::new(file));
    let names: Vec<String> = archive
        .entries()
        .unwrap()
        .map(|entry| entry.unwrap().path().unwrap().display().to_string())
        .collect();
    assert_eq!(
        names[..3],
        ["info/index.json", "info/paths.json", "share/plain.txt"]
    );
}

#[test]
fn hostile_names_reach_the_archive() {
    let folder = tempfile::tempdir().unwrap();
    let hostile: [&[u8]; 4] = [b"../up", b"/absolute", b"not-utf8-\xff", &[b'x'; 300]];
    let package =
        Package::new("hostile", "1.0", "0").with_all(hostile.map(|name| Entry::file(name, "x")));
    let built = package.write(folder.path(), Format::TarBz2).unwrap();
    let file = fs_err::File::open(&built.path).unwrap();
    let mut archive = tar::Archive::new(bzip2::read::BzDecoder::new(file));
    let names: Vec<Vec<u8>> = archive
        .entries()
        .unwrap()
        .map(|entry| entry.unwrap().path_bytes().into_owned())
        .collect();
    for name in hostile {
        assert!(
            names.iter().any(|found| found == name),
            "{}",
            String::from_utf8_lossy(name)
        );
    }
}
