//! Conda packages made in code.
//!
//! [`Package`] describes a package, [`Package::write`] makes the archive. The archives are written here rather than
//! with `rattler_package_streaming::write`, which gives every member one date and reduces modes to 0644 and 0755: the
//! dates and modes are what the tests are about.

use std::{
    collections::BTreeMap,
    io::{Seek, Write},
    path::{Path, PathBuf},
};

use fs_err::File;
use rattler_conda_types::{
    PackageRecord, RepoDataRecord,
    package::{CondaArchiveType, DistArchiveIdentifier, IndexJson, PackageFile},
};
use rattler_digest::{Md5, Sha256, compute_bytes_digest, compute_file_digest};
use serde_json::{Value, json};
use url::Url;

use crate::Error;

/// The placeholder prefix of the made packages: 255 characters, as conda-build makes it.
pub const PLACEHOLDER: &str = {
    const BYTES: [u8; 255] = {
        let (start, filler) = (b"/opt/build/", b"placehold_");
        let mut bytes = [0; 255];
        let mut at = 0;
        while at < bytes.len() {
            bytes[at] = if at < start.len() {
                start[at]
            } else {
                filler[(at - start.len()) % filler.len()]
            };
            at += 1;
        }
        bytes
    };
    match std::str::from_utf8(&BYTES) {
        Ok(text) => text,
        Err(_) => unreachable!(),
    }
};

/// Date of every file that is given no other: 2024-01-02 03:04:05 UTC, in seconds since 1970.
pub const FILE_MTIME: u64 = 1_704_164_645;

/// Date of `info/about.json`, unlike the files': 2024-03-04 05:06:07 UTC, in seconds since 1970.
pub const ABOUT_MTIME: u64 = 1_709_528_767;

/// How a placeholder is replaced in a file: `file_mode` of `paths.json`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PrefixMode {
    /// Every occurrence is replaced, the file's length changes.
    Text,
    /// The C strings that hold it are padded to their old length.
    Binary,
}

impl PrefixMode {
    fn as_str(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Binary => "binary",
        }
    }
}

#[derive(Debug, Clone)]
enum Kind {
    File(Vec<u8>),
    Symlink(Vec<u8>),
    /// A hard link, in the archive, to another of its members.
    HardLink(Vec<u8>),
    Directory,
}

/// One path of a package: what the archive holds and what `paths.json` says of it.
#[derive(Debug, Clone)]
pub struct Entry {
    path: Vec<u8>,
    kind: Kind,
    mode: u32,
    mtime: u64,
    prefix: Option<(PrefixMode, String)>,
    no_link: bool,
    archived: bool,
    listed: bool,
    declared: BTreeMap<&'static str, Value>,
}

impl Entry {
    fn new(path: impl AsRef<[u8]>, kind: Kind, mode: u32) -> Self {
        Self {
            path: path.as_ref().to_vec(),
            kind,
            mode,
            mtime: FILE_MTIME,
            prefix: None,
            no_link: false,
            archived: true,
            listed: true,
            declared: BTreeMap::new(),
        }
    }

    /// A regular file of mode 0644.
    pub fn file(path: impl AsRef<[u8]>, bytes: impl Into<Vec<u8>>) -> Self {
        Self::new(path, Kind::File(bytes.into()), 0o644)
    }

    /// A regular file of mode 0755.
    pub fn program(path: impl AsRef<[u8]>, bytes: impl Into<Vec<u8>>) -> Self {
        Self::new(path, Kind::File(bytes.into()), 0o755)
    }

    /// A symlink; `target` as `readlink` will give it.
    pub fn symlink(path: impl AsRef<[u8]>, target: impl AsRef<[u8]>) -> Self {
        Self::new(path, Kind::Symlink(target.as_ref().to_vec()), 0o777)
    }

    /// A hard link, in the archive, to another path of the package.
    pub fn hard_link(path: impl AsRef<[u8]>, target: impl AsRef<[u8]>) -> Self {
        Self::new(path, Kind::HardLink(target.as_ref().to_vec()), 0o644)
    }

    /// A directory of the archive. Not listed in `paths.json`: rattler's installer fails on a listed directory.
    pub fn directory(path: impl AsRef<[u8]>) -> Self {
        Self::new(path, Kind::Directory, 0o755).unlisted()
    }

    /// Permission bits, setuid and the like included.
    #[must_use]
    pub fn mode(mut self, mode: u32) -> Self {
        self.mode = mode;
        self
    }

    /// Modification time in seconds since 1970.
    #[must_use]
    pub fn mtime(mut self, seconds: u64) -> Self {
        self.mtime = seconds;
        self
    }

    /// Says that the file holds [`PLACEHOLDER`], to be replaced in this way.
    #[must_use]
    pub fn prefix(self, mode: PrefixMode) -> Self {
        self.placeholder(mode, PLACEHOLDER)
    }

    /// Says that the file holds this placeholder, to be replaced in this way.
    #[must_use]
    pub fn placeholder(mut self, mode: PrefixMode, placeholder: &str) -> Self {
        self.prefix = Some((mode, placeholder.to_owned()));
        self
    }

    /// Sets `no_link`: the installer copies the file instead of linking it.
    #[must_use]
    pub fn no_link(mut self) -> Self {
        self.no_link = true;
        self
    }

    /// Leaves the path out of `paths.json` (or `info/files`): it is in the archive only.
    #[must_use]
    pub fn unlisted(mut self) -> Self {
        self.listed = false;
        self
    }

    /// Leaves the path out of the archive: it is in `paths.json` only.
    #[must_use]
    pub fn unarchived(mut self) -> Self {
        self.archived = false;
        self
    }

    /// Puts a key of the `paths.json` entry to another value (`_path`, `path_type`, `size_in_bytes`, `sha256` …);
    /// [`Value::Null`] removes it.
    #[must_use]
    pub fn declare(mut self, key: &'static str, value: impl Into<Value>) -> Self {
        self.declared.insert(key, value.into());
        self
    }

    /// How many bytes the file has; 0 for what is no file.
    pub fn size(&self) -> u64 {
        match &self.kind {
            Kind::File(bytes) => bytes.len() as u64,
            _ => 0,
        }
    }

    fn paths_json(&self) -> Value {
        let bytes = match &self.kind {
            Kind::File(bytes) => bytes.as_slice(),
            _ => &[],
        };
        let mut entry = json!({
            "_path": String::from_utf8_lossy(&self.path),
            "path_type": match self.kind {
                Kind::File(_) | Kind::HardLink(_) => "hardlink",
                Kind::Symlink(_) => "softlink",
                Kind::Directory => "directory",
            },
            "sha256": hex::encode(compute_bytes_digest::<Sha256>(bytes)),
            "size_in_bytes": bytes.len(),
        });
        if let Some((mode, placeholder)) = &self.prefix {
            entry["file_mode"] = mode.as_str().into();
            entry["prefix_placeholder"] = placeholder.as_str().into();
        }
        if self.no_link {
            entry["no_link"] = true.into();
        }
        if matches!(self.kind, Kind::HardLink(_)) {
            entry["sha256"] = Value::Null;
            entry["size_in_bytes"] = Value::Null;
        }
        for (key, value) in &self.declared {
            entry[key] = value.clone();
        }
        if let Value::Object(keys) = &mut entry {
            keys.retain(|_, value| !value.is_null());
        }
        entry
    }
}

/// Which kind of archive to write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// `.conda`: two zstd-compressed tarballs in a stored zip.
    Conda,
    /// `.tar.bz2`.
    TarBz2,
}

impl Format {
    fn extension(self) -> &'static str {
        match self {
            Self::Conda => CondaArchiveType::Conda.extension(),
            Self::TarBz2 => CondaArchiveType::TarBz2.extension(),
        }
    }
}

/// A package to be made.
#[derive(Debug, Clone)]
pub struct Package {
    name: String,
    index: Value,
    about: Option<u64>,
    entries: Vec<Entry>,
    entry_points: Vec<String>,
    deprecated: bool,
    info: BTreeMap<String, Option<Vec<u8>>>,
}

impl Package {
    /// A package of the subdir linux-64 without any file.
    pub fn new(name: &str, version: &str, build: &str) -> Self {
        Self {
            name: name.to_owned(),
            index: json!({
                "arch": "x86_64",
                "build": build,
                "build_number": 0,
                "depends": [],
                "name": name,
                "platform": "linux",
                "subdir": "linux-64",
                "timestamp": ABOUT_MTIME * 1000,
                "version": version,
            }),
            about: Some(ABOUT_MTIME),
            entries: Vec::new(),
            entry_points: Vec::new(),
            deprecated: false,
            info: BTreeMap::new(),
        }
    }

    /// The package's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its subdir: linux-64 or noarch, unless [`Package::index`] said otherwise.
    pub fn subdir(&self) -> &str {
        self.index["subdir"].as_str().unwrap_or("linux-64")
    }

    /// The paths that were added.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Makes it `noarch: python`: files below `site-packages/` and `python-scripts/` move when they are installed.
    #[must_use]
    pub fn noarch_python(self) -> Self {
        self.noarch("python")
    }

    /// Makes it `noarch: generic`.
    #[must_use]
    pub fn noarch_generic(self) -> Self {
        self.noarch("generic")
    }

    fn noarch(self, kind: &str) -> Self {
        self.index("noarch", kind)
            .index("subdir", "noarch")
            .index("arch", Value::Null)
            .index("platform", Value::Null)
    }

    /// Adds a dependency, a match specification.
    #[must_use]
    pub fn depends(mut self, specification: &str) -> Self {
        if let Some(depends) = self.index["depends"].as_array_mut() {
            depends.push(specification.into());
        }
        self
    }

    /// Puts a key of `info/index.json` to another value; [`Value::Null`] removes it.
    #[must_use]
    pub fn index(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.index[key] = value.into();
        self
    }

    /// Adds a path.
    #[must_use]
    pub fn with(mut self, entry: Entry) -> Self {
        self.entries.push(entry);
        self
    }

    /// Adds paths.
    #[must_use]
    pub fn with_all(mut self, entries: impl IntoIterator<Item = Entry>) -> Self {
        self.entries.extend(entries);
        self
    }

    /// Adds an entry point of a `noarch: python` package: `command = module:function`.
    #[must_use]
    pub fn entry_point(mut self, entry_point: &str) -> Self {
        self.entry_points.push(entry_point.to_owned());
        self
    }

    /// Dates `info/about.json` (seconds since 1970), or leaves it out.
    #[must_use]
    pub fn about(mut self, mtime: Option<u64>) -> Self {
        self.about = mtime;
        self
    }

    /// Makes it an old package: `info/files`, `info/has_prefix` and `info/no_link` instead of `info/paths.json`.
    #[must_use]
    pub fn without_paths_json(mut self) -> Self {
        self.deprecated = true;
        self
    }

    /// Puts `info/<name>` into the archive as given, in place of what would have been made.
    #[must_use]
    pub fn info(mut self, name: &str, bytes: impl Into<Vec<u8>>) -> Self {
        self.info.insert(name.to_owned(), Some(bytes.into()));
        self
    }

    /// Leaves `info/<name>` out of the archive.
    #[must_use]
    pub fn without_info(mut self, name: &str) -> Self {
        self.info.insert(name.to_owned(), None);
        self
    }

    /// Writes the archive into a folder, under the package's usual file name. Fast rather than small.
    ///
    /// # Errors
    ///
    /// Writing fails, or `info/index.json` is no metadata of a package.
    pub fn write(&self, folder: &Path, format: Format) -> Result<Built, Error> {
        let index = self.index_json();
        let parsed = IndexJson::from_slice(index.to_string().as_bytes())?;
        let stem = format!("{}-{}-{}", self.name, parsed.version, parsed.build);
        let path = std::path::absolute(folder)?.join(format!("{stem}{}", format.extension()));

        fs_err::create_dir_all(folder)?;
        let info = self.info_entries(&index)?;
        let files: Vec<&Entry> = self.entries.iter().filter(|entry| entry.archived).collect();
        let file = File::create(&path)?;
        match format {
            Format::Conda => write_conda(file, &stem, &info, &files)?,
            Format::TarBz2 => {
                let encoder = bzip2::write::BzEncoder::new(file, bzip2::Compression::fast());
                let members = info.iter().chain(files.iter().copied());
                write_tar(encoder, members)?.finish()?;
            }
        }

        let size = fs_err::metadata(&path)?.len();
        let sha256 = compute_file_digest::<Sha256>(&path)?;
        let md5 = compute_file_digest::<Md5>(&path)?;
        let package_record =
            PackageRecord::from_index_json(parsed, Some(size), Some(sha256), Some(md5))
                .map_err(std::io::Error::other)?;
        Ok(Built::new(path, package_record))
    }

    fn index_json(&self) -> Value {
        let mut index = self.index.clone();
        if let Value::Object(keys) = &mut index {
            keys.retain(|_, value| !value.is_null());
        }
        index
    }

    fn info_entries(&self, index: &Value) -> Result<Vec<Entry>, Error> {
        let listed: Vec<&Entry> = self.entries.iter().filter(|entry| entry.listed).collect();
        let lines = |entries: &mut dyn Iterator<Item = Vec<u8>>| {
            entries
                .flat_map(|line| [line, b"\n".to_vec()])
                .flatten()
                .collect::<Vec<u8>>()
        };
        let mut info = BTreeMap::from([
            ("index.json".to_owned(), serde_json::to_vec_pretty(index)?),
            (
                "files".to_owned(),
                lines(&mut listed.iter().map(|entry| entry.path.clone())),
            ),
        ]);
        if self.about.is_some() {
            info.insert("about.json".to_owned(), b"{}\n".to_vec());
        }
        if self.deprecated {
            let prefixed = listed.iter().filter_map(|entry| {
                let (mode, placeholder) = entry.prefix.as_ref()?;
                let path = String::from_utf8_lossy(&entry.path);
                Some(format!("\"{placeholder}\" {} \"{path}\"", mode.as_str()).into_bytes())
            });
            let has_prefix = lines(&mut prefixed.into_iter());
            let no_link = listed.iter().filter(|entry| entry.no_link);
            let no_link = lines(&mut no_link.map(|entry| entry.path.clone()));
            let some = [("has_prefix", has_prefix), ("no_link", no_link)];
            info.extend(
                some.into_iter()
                    .filter(|(_, text)| !text.is_empty())
                    .map(|(name, text)| (name.to_owned(), text)),
            );
        } else {
            let paths: Vec<Value> = listed.iter().map(|entry| entry.paths_json()).collect();
            let paths = json!({ "paths": paths, "paths_version": 1 });
            info.insert("paths.json".to_owned(), serde_json::to_vec_pretty(&paths)?);
        }
        if !self.entry_points.is_empty() {
            let link = json!({
                "noarch": { "type": "python", "entry_points": self.entry_points },
                "package_metadata_version": 1,
            });
            info.insert("link.json".to_owned(), serde_json::to_vec_pretty(&link)?);
        }
        for (name, bytes) in &self.info {
            match bytes {
                Some(bytes) => info.insert(name.clone(), bytes.clone()),
                None => info.remove(name),
            };
        }
        let entries = info.into_iter().map(|(name, bytes)| {
            let mtime = self
                .about
                .filter(|_| name == "about.json")
                .unwrap_or(FILE_MTIME);
            Entry::file(format!("info/{name}"), bytes).mtime(mtime)
        });
        Ok(entries.collect())
    }
}

/// An archive that was written.
#[derive(Debug, Clone)]
pub struct Built {
    /// Where the archive is; absolute.
    pub path: PathBuf,
    /// Its record, with the hashes and size of the archive; the URL is the `file://` one, there is no channel.
    pub record: RepoDataRecord,
}

impl Built {
    /// An archive that somebody else made.
    ///
    /// # Errors
    ///
    /// It cannot be read, or is no conda package by name or by content.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let path = std::path::absolute(path)?;
        let record = rattler_index::package_record_from_archive(&path)?;
        Ok(Self::new(path, record))
    }

    fn new(path: PathBuf, package_record: PackageRecord) -> Self {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let identifier = DistArchiveIdentifier::try_from_filename(&name)
            .expect("the file name was made from the record");
        let url = Url::from_file_path(&path).expect("the path is absolute");
        Self {
            record: RepoDataRecord {
                package_record,
                identifier,
                url,
                channel: None,
            },
            path,
        }
    }

    /// The archive's file name.
    pub fn file_name(&self) -> String {
        self.record.identifier.to_file_name()
    }

    /// The record as a channel at `channel` would have it; the URL need not exist.
    pub fn in_channel(&self, channel: &Url) -> RepoDataRecord {
        let mut base = channel.clone();
        base.set_path(&format!("{}/", base.path().trim_end_matches('/')));
        let location = format!("{}/{}", self.record.package_record.subdir, self.file_name());
        let url = base
            .join(&location)
            .expect("a subdir and a file name make a relative URL");
        RepoDataRecord {
            url,
            channel: Some(base.to_string()),
            ..self.record.clone()
        }
    }
}

fn write_conda(
    file: impl Write + Seek,
    stem: &str,
    info: &[Entry],
    files: &[&Entry],
) -> Result<(), Error> {
    let options = zip::write::SimpleFileOptions::default()
        .compression_method(zip::CompressionMethod::Stored)
        .last_modified_time(zip::DateTime::default())
        .large_file(true);
    let mut archive = zip::ZipWriter::new(file);
    archive.start_file("metadata.json", options)?;
    archive.write_all(br#"{"conda_pkg_format_version":2}"#)?;
    archive.start_file(format!("pkg-{stem}.tar.zst"), options)?;
    write_tar(zstd::Encoder::new(&mut archive, 1)?, files.iter().copied())?.finish()?;
    archive.start_file(format!("info-{stem}.tar.zst"), options)?;
    write_tar(zstd::Encoder::new(&mut archive, 1)?, info)?.finish()?;
    archive.finish()?;
    Ok(())
}

fn write_tar<'a, W: Write>(
    writer: W,
    entries: impl IntoIterator<Item = &'a Entry>,
) -> std::io::Result<W> {
    let mut archive = tar::Builder::new(writer);
    for entry in entries {
        append(&mut archive, entry)?;
    }
    archive.into_inner()
}

/// Appends one member by its bytes: `tar`'s own functions refuse the names that hostile archives have.
fn append<W: Write>(archive: &mut tar::Builder<W>, entry: &Entry) -> std::io::Result<()> {
    let (entry_type, link, bytes) = match &entry.kind {
        Kind::File(bytes) => (tar::EntryType::Regular, None, bytes.as_slice()),
        Kind::Symlink(target) => (tar::EntryType::Symlink, Some(target), [].as_slice()),
        Kind::HardLink(target) => (tar::EntryType::Link, Some(target), [].as_slice()),
        Kind::Directory => (tar::EntryType::Directory, None, [].as_slice()),
    };
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(entry_type);
    header.set_mode(entry.mode);
    header.set_mtime(entry.mtime);
    header.set_uid(0);
    header.set_gid(0);
    header.set_size(bytes.len() as u64);
    if let Some(target) = link {
        append_long_name(archive, tar::EntryType::GNULongLink, target)?;
        fill(&mut header.as_old_mut().linkname, target);
    }
    append_long_name(archive, tar::EntryType::GNULongName, &entry.path)?;
    fill(&mut header.as_old_mut().name, &entry.path);
    header.set_cksum();
    archive.append(&header, bytes)
}

/// A name that does not fit into the header comes before it, as GNU tar does it.
fn append_long_name<W: Write>(
    archive: &mut tar::Builder<W>,
    kind: tar::EntryType,
    name: &[u8],
) -> std::io::Result<()> {
    if name.len() < 100 {
        return Ok(());
    }
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(0o644);
    header.set_size(name.len() as u64 + 1);
    fill(&mut header.as_old_mut().name, b"././@LongLink");
    header.set_cksum();
    archive.append(&header, [name, &[0]].concat().as_slice())
}

fn fill(field: &mut [u8], name: &[u8]) {
    let length = name.len().min(field.len());
    field[..length].copy_from_slice(&name[..length]);
}
