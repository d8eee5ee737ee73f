use std::{
    path::{Path, PathBuf},
    process::Command,
};

use crate::{
    Error,
    kinds::PYTHON_VERSION,
    package::{Entry, PLACEHOLDER, Package, PrefixMode},
};

/// A Python 3.11 that owns its prefix: nothing but Python is in it, and its packages go below it.
pub(crate) struct Interpreter {
    program: PathBuf,
    prefix: PathBuf,
    version: String,
}

/// Prints the prefix, the version, and where packages go.
const QUESTION: &str = "import site, sys, os; \
    print(os.path.realpath(sys.base_prefix)); print('.'.join(map(str, sys.version_info[:3]))); \
    print(os.path.realpath(site.getsitepackages([sys.base_prefix])[0]))";

impl Interpreter {
    /// Asks the Pythons on PATH.
    pub(crate) fn find() -> Result<Self, Error> {
        let mut refusals = Vec::new();
        for program in ["python3.11", "python3", "python"] {
            match Self::ask(program) {
                Ok(interpreter) => return Ok(interpreter),
                Err(refusal) => refusals.push(format!("{program} {refusal}")),
            }
        }
        let reason = format!(
            "{}. One that owns its prefix is needed, as pyenv, uv or a build from source makes it",
            refusals.join("; ")
        );
        Err(Error::Python(reason))
    }

    fn ask(program: &str) -> Result<Self, String> {
        let output = Command::new(program).args(["-I", "-c", QUESTION]).output();
        let output = output.map_err(|error| format!("does not run ({error})"))?;
        let answer = String::from_utf8_lossy(&output.stdout).into_owned();
        let lines: Vec<&str> = answer.lines().collect();
        let [prefix, version, site_packages] = lines.as_slice() else {
            return Err("does not say where its prefix is".to_owned());
        };
        let library = Path::new(prefix)
            .join("lib")
            .join(format!("python{PYTHON_VERSION}"));
        if !version.starts_with(&format!("{PYTHON_VERSION}.")) {
            return Err(format!("is version {version}"));
        }
        if Path::new(prefix) == Path::new("/usr")
            || Path::new(site_packages) != library.join("site-packages")
        {
            return Err(format!(
                "is the system's (its packages are in {site_packages})"
            ));
        }
        if !library.join("os.py").is_file() {
            return Err(format!("has no library in {}", library.display()));
        }
        let program = Path::new(prefix)
            .join("bin")
            .join(format!("python{PYTHON_VERSION}"));
        Ok(Self {
            program,
            prefix: PathBuf::from(prefix),
            version: (*version).to_owned(),
        })
    }

    /// The executable.
    pub(crate) fn program(&self) -> &Path {
        &self.program
    }

    /// `sys.base_prefix`.
    pub(crate) fn prefix(&self) -> &Path {
        &self.prefix
    }

    /// The conda package `python`: what is in the prefix but for bytecode and what was installed with pip.
    pub(crate) fn package(&self) -> Result<Package, Error> {
        let mut package = Package::new("python", &self.version, "h0_cpython").index(
            "python_site_packages_path",
            format!("lib/python{PYTHON_VERSION}/site-packages"),
        );
        let walk = walkdir::WalkDir::new(&self.prefix)
            .sort_by_file_name()
            .min_depth(1);
        let walk = walk.into_iter().filter_entry(|entry| {
            let name = entry.file_name().to_string_lossy();
            let in_bin = entry.path().parent() == Some(&self.prefix.join("bin"));
            !matches!(name.as_ref(), "__pycache__" | "site-packages")
                && (!in_bin || is_of_python(&name))
        });
        for entry in walk {
            let entry = entry.map_err(std::io::Error::from)?;
            let path = entry
                .path()
                .strip_prefix(&self.prefix)
                .unwrap_or(entry.path());
            let Some(path) = path.to_str() else { continue };
            if entry.file_type().is_symlink() {
                let target = fs_err::read_link(entry.path())?;
                package = package.with(Entry::symlink(path, target.to_string_lossy().as_bytes()));
            } else if entry.file_type().is_file() {
                let executable = {
                    use std::os::unix::fs::PermissionsExt;
                    entry
                        .metadata()
                        .map_err(std::io::Error::from)?
                        .permissions()
                        .mode()
                        & 0o111
                        != 0
                };
                let mode = if executable { 0o755 } else { 0o644 };
                package = package.with(self.file(path, fs_err::read(entry.path())?).mode(mode));
            }
        }
        Ok(package)
    }

    fn file(&self, path: &str, bytes: Vec<u8>) -> Entry {
        let prefix = self.prefix.to_string_lossy();
        if bytes.starts_with(b"\x7fELF") {
            return Entry::file(path, relocated(path, bytes, &prefix));
        }
        match String::from_utf8(bytes) {
            Ok(text) if text.contains(&*prefix) => {
                Entry::file(path, text.replace(&*prefix, PLACEHOLDER)).prefix(PrefixMode::Text)
            }
            Ok(text) => Entry::file(path, text),
            Err(error) => Entry::file(path, error.into_bytes()),
        }
    }
}

/// Whether a program in `bin` comes with Python.
fn is_of_python(name: &str) -> bool {
    ["python", "idle", "pydoc", "2to3"]
        .iter()
        .any(|start| name.starts_with(start))
}

/// Makes the search path for `libpython`, which is the prefix that Python was built for, relative to the file: there is
/// no room for a placeholder.
fn relocated(path: &str, mut bytes: Vec<u8>, prefix: &str) -> Vec<u8> {
    let old = format!("\0{prefix}/lib\0").into_bytes();
    let up = "/..".repeat(path.split('/').count() - 1);
    let mut new = format!("\0$ORIGIN{up}/lib").into_bytes();
    if new.len() > old.len() {
        return bytes;
    }
    new.resize(old.len(), 0);
    let mut at = 0;
    while let Some(found) = bytes[at..]
        .windows(old.len())
        .position(|window| window == old)
    {
        bytes[at + found..at + found + old.len()].copy_from_slice(&new);
        at += found + old.len() - 1;
    }
    bytes
}
