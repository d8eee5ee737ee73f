//! Corpora as they are in real life: a channel and a workspace made of wheels from PyPI and a Python interpreter.
//!
//! `wheels.txt` pins the wheels, for CPython 3.11 on x86-64 Linux. Every wheel becomes a conda package: pure ones
//! `noarch: python` with their entry points, the others with their files below `lib/python3.11/site-packages` and their
//! entry points as scripts. The placeholder is in the text files that name the prefix and in about a tenth of the shared
//! objects, where a string is added behind the end of the ELF image: the loader never looks there.

use std::{
    collections::BTreeSet,
    io::{Cursor, Read},
    path::{Path, PathBuf},
    process::Command,
};

use rattler_digest::{Sha256, compute_bytes_digest};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use crate::{
    Error,
    channel::Channel,
    interpreter::Interpreter,
    kinds::PYTHON_VERSION,
    package::{Built, Entry, Format, PLACEHOLDER, Package, PrefixMode},
    reference::fill_package_cache,
    workspace::{Location, Workspace},
};

/// The pinned wheels, `name==version` a line.
const WHEELS: &str = include_str!("../wheels.txt");

/// The wheels of the small corpus: pure and compiled, with scripts and without, and what they need.
const SMALL: [&str; 14] = [
    "certifi",
    "charset-normalizer",
    "click",
    "idna",
    "jinja2",
    "markdown-it-py",
    "markupsafe",
    "mdurl",
    "numpy",
    "pygments",
    "pyyaml",
    "requests",
    "rich",
    "urllib3",
];

/// Changes with how packages are made, so that a corpus that was made otherwise is made again.
const RECIPE: u32 = 2;

/// How many wheels to take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Size {
    /// A dozen.
    Small,
    /// All of `wheels.txt`.
    Large,
}

impl Size {
    /// The folder's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Small => "small",
            Self::Large => "large",
        }
    }

    /// The requirements, `name==version`.
    pub fn requirements(self) -> Vec<&'static str> {
        let lines = WHEELS.lines().filter(|line| !line.is_empty());
        lines
            .filter(|line| self == Self::Large || SMALL.contains(&requirement_name(line)))
            .collect()
    }
}

/// A corpus that was made: a channel, a workspace whose environment `default` has all of its packages, and a package
/// cache that holds them.
#[derive(Debug, Clone)]
pub struct Corpus {
    folder: PathBuf,
    counts: Counts,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Counts {
    recipe: u32,
    requirements: Vec<String>,
    interpreter: PathBuf,
    packages: usize,
    files: usize,
    bytes: u64,
}

impl Corpus {
    /// The channel's folder.
    pub fn channel(&self) -> PathBuf {
        self.folder.join("channel")
    }

    /// The workspace's `pixi.toml`; `pixi.lock` is beside it.
    pub fn manifest(&self) -> PathBuf {
        self.folder.join("workspace/pixi.toml")
    }

    /// What `PIXI_CACHE_DIR` has to be for [`Corpus::package_cache`] to be pixi's package cache.
    pub fn cache(&self) -> PathBuf {
        self.folder.join("cache")
    }

    /// The folder of extracted packages.
    pub fn package_cache(&self) -> PathBuf {
        self.cache().join("pkgs")
    }

    /// How many packages the environment has.
    pub fn packages(&self) -> usize {
        self.counts.packages
    }

    /// How many files and symlinks the packages have.
    pub fn files(&self) -> usize {
        self.counts.files
    }

    /// How many bytes those files have.
    pub fn bytes(&self) -> u64 {
        self.counts.bytes
    }
}

/// Makes a corpus in `<folder>/<size>`, or takes the one that was made there before. Wheels are downloaded with the
/// interpreter's pip to `<folder>/wheels`, and stay there. `progress` hears what is being done.
///
/// # Errors
///
/// There is no Python 3.11 that owns its prefix, pip fails, or a wheel is not what it should be.
pub fn make(size: Size, folder: &Path, progress: &dyn Fn(&str)) -> Result<Corpus, Error> {
    let folder = std::path::absolute(folder)?;
    let interpreter = Interpreter::find()?;
    let requirements = size.requirements();
    let mut corpus = Corpus {
        folder: folder.join(size.name()),
        counts: Counts {
            recipe: RECIPE,
            requirements: requirements.iter().map(ToString::to_string).collect(),
            interpreter: interpreter.prefix().to_owned(),
            packages: 0,
            files: 0,
            bytes: 0,
        },
    };
    let stamp = corpus.folder.join("corpus.json");
    if let Ok(text) = fs_err::read(&stamp)
        && let Ok(made) = serde_json::from_slice::<Counts>(&text)
        && made
            == (Counts {
                packages: made.packages,
                files: made.files,
                bytes: made.bytes,
                ..corpus.counts.clone()
            })
    {
        corpus.counts = made;
        return Ok(corpus);
    }

    progress(&format!("Fetching {} wheels", requirements.len()));
    let wheels = download(&interpreter, &requirements, &folder.join("wheels"))?;
    if corpus.folder.exists() {
        fs_err::remove_dir_all(&corpus.folder)?;
    }
    progress("Making packages");
    let channel = Channel::create(&corpus.channel())?;
    let names: BTreeSet<String> = requirements
        .iter()
        .map(|line| requirement_name(line).to_owned())
        .collect();
    let add = |package: Package| -> Result<(Built, usize, u64), Error> {
        let bytes = package.entries().iter().map(Entry::size).sum();
        Ok((
            channel.add(&package, Format::Conda)?,
            package.entries().len(),
            bytes,
        ))
    };
    let (python, wheels) = rayon::join(
        || add(interpreter.package()?),
        || {
            wheels
                .par_iter()
                .map(|wheel| add(package(wheel, &names)?))
                .collect::<Result<Vec<_>, Error>>()
        },
    );
    let mut packages = wheels?;
    packages.push(python?);
    corpus.counts.packages = packages.len();
    corpus.counts.files = packages.iter().map(|(_, files, _)| files).sum();
    corpus.counts.bytes = packages.iter().map(|(_, _, bytes)| bytes).sum();
    let packages: Vec<Built> = packages.into_iter().map(|(built, ..)| built).collect();

    progress("Indexing the channel");
    channel.index()?;
    let workspace = Workspace::new(&corpus.folder.join("workspace"))?;
    workspace
        .environment("default", &packages, &Location::Channel(channel.url()))
        .write()?;
    progress("Filling the package cache");
    fill_package_cache(&corpus.package_cache(), &packages)?;
    fs_err::write(stamp, serde_json::to_vec_pretty(&corpus.counts)?)?;
    Ok(corpus)
}

/// The name of a requirement, as `wheels.txt` writes it: normalized (PEP 503).
fn requirement_name(line: &str) -> &str {
    line.split("==").next().unwrap_or(line)
}

/// Has pip fetch what is not there yet, and gives one wheel a requirement.
fn download(
    interpreter: &Interpreter,
    requirements: &[&str],
    folder: &Path,
) -> Result<Vec<PathBuf>, Error> {
    fs_err::create_dir_all(folder)?;
    let find = |requirement: &str| -> Result<Option<PathBuf>, Error> {
        for entry in fs_err::read_dir(folder)? {
            let path = entry?.path();
            let name = WheelName::parse(&path);
            if name.is_some_and(|name| format!("{}=={}", name.name, name.version) == requirement) {
                return Ok(Some(path));
            }
        }
        Ok(None)
    };
    let mut missing = Vec::new();
    for requirement in requirements {
        if find(requirement)?.is_none() {
            missing.push(*requirement);
        }
    }
    if !missing.is_empty() {
        let mut pip = Command::new(interpreter.program());
        pip.args([
            "-m",
            "pip",
            "download",
            "--quiet",
            "--disable-pip-version-check",
            "--no-deps",
        ]);
        let output = pip
            .args(["--only-binary", ":all:", "--dest"])
            .arg(folder)
            .args(&missing)
            .output()?;
        if !output.status.success() {
            let reason = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            return Err(Error::Program {
                program: "pip download".to_owned(),
                reason,
            });
        }
    }
    requirements
        .iter()
        .map(|requirement| {
            find(requirement)?.ok_or_else(|| Error::Program {
                program: "pip download".to_owned(),
                reason: format!("it brought no wheel for {requirement}"),
            })
        })
        .collect()
}

/// What a wheel's file name says (PEP 427).
struct WheelName {
    /// The name as wheels write it, with underscores; `.dist-info` and `.data` start with it.
    stem: String,
    name: String,
    version: String,
    pure: bool,
}

impl WheelName {
    fn parse(path: &Path) -> Option<Self> {
        let parts: Vec<&str> = path
            .file_name()?
            .to_str()?
            .strip_suffix(".whl")?
            .split('-')
            .collect();
        let (first, second, last) = (parts.first()?, parts.get(1)?, parts.last()?);
        let mut name = String::new();
        for character in first.chars() {
            match character {
                '-' | '_' | '.' if name.ends_with('-') => {}
                '-' | '_' | '.' => name.push('-'),
                other => name.extend(other.to_lowercase()),
            }
        }
        Some(Self {
            stem: format!("{first}-{second}"),
            name,
            version: (*second).to_owned(),
            pure: *last == "any",
        })
    }
}

/// The conda package of one wheel. It depends on those of `names` that the wheel needs whatever the circumstances.
fn package(wheel: &Path, names: &BTreeSet<String>) -> Result<Package, Error> {
    let name = WheelName::parse(wheel).ok_or_else(|| {
        std::io::Error::other(format!("{} is not named like a wheel", wheel.display()))
    })?;
    let mut archive = zip::ZipArchive::new(Cursor::new(fs_err::read(wheel)?))?;
    let site_packages = if name.pure {
        "site-packages".to_owned()
    } else {
        format!("lib/python{PYTHON_VERSION}/site-packages")
    };
    let scripts = if name.pure { "python-scripts" } else { "bin" };

    let build = if name.pure { "pyhd_0" } else { "py311_0" };
    let mut package =
        Package::new(&name.name, &name.version, build).depends("python >=3.11,<3.12.0a0");
    if name.pure {
        package = package.noarch_python();
    }
    for at in 0..archive.len() {
        let mut member = archive.by_index(at)?;
        if member.is_dir() {
            continue;
        }
        let path = member.name().to_owned();
        let executable = member.unix_mode().is_some_and(|mode| mode & 0o111 != 0);
        let mut bytes = Vec::with_capacity(usize::try_from(member.size()).unwrap_or(0) + 512);
        member.read_to_end(&mut bytes)?;

        if path == format!("{}.dist-info/METADATA", name.stem) {
            for needed in requires(&String::from_utf8_lossy(&bytes)) {
                if names.contains(&needed) && needed != name.name {
                    package = package.depends(&needed);
                }
            }
        } else if path == format!("{}.dist-info/entry_points.txt", name.stem) {
            for entry_point in entry_points(&String::from_utf8_lossy(&bytes)) {
                // tensorflow brings tensorboard's command, too. Where an entry point is another package's file, the
                // installer lets chance decide.
                let command = entry_point.split('=').next().unwrap_or_default().trim();
                if command != name.name && names.contains(command) {
                    continue;
                }
                package = match (name.pure, script(&entry_point)) {
                    (true, _) => package.entry_point(&entry_point),
                    (false, Some(entry)) => package.with(entry),
                    (false, None) => package,
                };
            }
        }

        let data = path
            .strip_prefix(&format!("{}.data/", name.stem))
            .and_then(|rest| rest.split_once('/'));
        let path = match data {
            None | Some(("purelib" | "platlib", _)) => {
                format!(
                    "{site_packages}/{}",
                    data.map_or(path.as_str(), |(_, rest)| rest)
                )
            }
            Some(("scripts", rest)) => format!("{scripts}/{rest}"),
            Some(("headers", rest)) => {
                format!("include/python{PYTHON_VERSION}/{}/{rest}", name.name)
            }
            Some((_, rest)) => rest.to_owned(),
        };
        let is_script = matches!(data, Some(("scripts", _)));
        let mode = if executable || is_script {
            0o755
        } else {
            0o644
        };
        package = package.with(file(path, bytes, is_script).mode(mode));
    }
    Ok(package)
}

/// Brings the placeholder into a script and into one of ten shared objects.
fn file(path: String, mut bytes: Vec<u8>, is_script: bool) -> Entry {
    if is_script && bytes.starts_with(b"#!python") {
        bytes.splice(
            ..b"#!python".len(),
            format!("#!{PLACEHOLDER}/bin/python").into_bytes(),
        );
        return Entry::file(path, bytes).prefix(PrefixMode::Text);
    }
    let chosen = compute_bytes_digest::<Sha256>(&path)[0] < 26;
    if chosen && bytes.starts_with(b"\x7fELF") {
        bytes.extend_from_slice(format!("{PLACEHOLDER}/lib\0").as_bytes());
        return Entry::file(path, bytes).prefix(PrefixMode::Binary);
    }
    Entry::file(path, bytes)
}

/// The script of an entry point, `command = module:function`, as conda-build writes it.
fn script(entry_point: &str) -> Option<Entry> {
    let (command, target) = entry_point.split_once('=')?;
    let (module, function) = target.split_once(':')?;
    let (module, function) = (module.trim(), function.trim());
    let imported = function.split('.').next().unwrap_or(function);
    let text = format!(
        "#!{PLACEHOLDER}/bin/python\nimport sys\n\nfrom {module} import {imported}\n\n\
         if __name__ == '__main__':\n    sys.exit({function}())\n"
    );
    Some(Entry::program(format!("bin/{}", command.trim()), text).prefix(PrefixMode::Text))
}

/// The console and graphical entry points of `entry_points.txt`, without extras.
fn entry_points(text: &str) -> Vec<String> {
    let mut section = "";
    let mut found = Vec::new();
    for line in text.lines().map(str::trim) {
        if line.starts_with('[') {
            section = line;
        } else if matches!(section, "[console_scripts]" | "[gui_scripts]")
            && line.contains(':')
            && !line.starts_with('#')
        {
            found.push(line.split('[').next().unwrap_or(line).trim().to_owned());
        }
    }
    found
}

/// The normalized names of the requirements without a condition.
fn requires(metadata: &str) -> Vec<String> {
    let lines = metadata.lines().take_while(|line| !line.is_empty());
    lines
        .filter_map(|line| line.strip_prefix("Requires-Dist:"))
        .filter(|requirement| !requirement.contains(';'))
        .map(|requirement| {
            let name = |character: char| {
                character.is_alphanumeric() || matches!(character, '-' | '_' | '.')
            };
            let name: String = requirement
                .trim()
                .chars()
                .take_while(|&character| name(character))
                .collect();
            name.to_lowercase().replace(['_', '.'], "-")
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wheel_names() {
        let pure = WheelName::parse(Path::new("/x/Markdown_It.Py-4.3.0-py3-none-any.whl")).unwrap();
        assert_eq!(
            (pure.name.as_str(), pure.version.as_str(), pure.pure),
            ("markdown-it-py", "4.3.0", true)
        );
        let name = "numpy-2.1.3-cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64.whl";
        assert!(!WheelName::parse(Path::new(name)).unwrap().pure);
    }

    #[test]
    fn requirements_without_a_condition() {
        let metadata = "Name: a\nRequires-Dist: mdurl~=0.1\nRequires-Dist: b ; extra == 'x'\n\
                        Requires-Dist: Typing_Extensions (>=4)\n\nRequires-Dist: c\n";
        assert_eq!(requires(metadata), ["mdurl", "typing-extensions"]);
    }

    #[test]
    fn entry_points_of_scripts_only() {
        let text = "[console_scripts]\na = m:f\nb=m.n:c.f [extra]\n\n[other]\nc = m:f\n[gui_scripts]\nd = m:f\n";
        assert_eq!(entry_points(text), ["a = m:f", "b=m.n:c.f", "d = m:f"]);
    }

    #[test]
    fn the_small_corpus_is_pinned() {
        assert_eq!(Size::Small.requirements().len(), SMALL.len());
    }
}
