//! What of a process's surroundings decides where things are.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

/// Environment variables and base folders, taken once, so that a decision can be repeated and
/// tested.
#[derive(Debug, Clone, Default)]
pub struct Surroundings {
    /// The environment variables.
    pub variables: HashMap<OsString, OsString>,
    /// The user's home.
    pub home_dir: Option<PathBuf>,
    /// The base folder of caches, such as `~/.cache`.
    pub cache_dir: Option<PathBuf>,
    /// The base folder of configurations, such as `~/.config`.
    pub config_dir: Option<PathBuf>,
    /// The folder of the machine's configurations, `/etc`.
    pub system_config_dir: PathBuf,
    /// The folder of temporary files.
    pub temporary_dir: PathBuf,
}

impl Surroundings {
    /// Those of this process.
    #[must_use]
    pub fn of_this_process() -> Self {
        Self {
            variables: std::env::vars_os().collect(),
            home_dir: dirs::home_dir(),
            cache_dir: dirs::cache_dir(),
            config_dir: dirs::config_dir(),
            system_config_dir: Path::new("/etc").to_path_buf(),
            temporary_dir: std::env::temp_dir(),
        }
    }

    /// The variable's value, if it is set and not empty.
    #[must_use]
    pub fn variable(&self, name: &str) -> Option<&OsStr> {
        let value = self.variables.get(OsStr::new(name))?;
        (!value.is_empty()).then_some(value)
    }

    /// The variable's value, if it is set, not empty and valid Unicode.
    #[must_use]
    pub fn text(&self, name: &str) -> Option<&str> {
        self.variable(name)?.to_str()
    }

    /// The variable's value as a path, if it is set and not empty.
    #[must_use]
    pub fn path(&self, name: &str) -> Option<PathBuf> {
        self.variable(name).map(PathBuf::from)
    }
}

/// Reads a boolean the way command lines spell it; `None` for anything else.
#[must_use]
pub fn parse_bool(text: &str) -> Option<bool> {
    match text.to_ascii_lowercase().as_str() {
        "1" | "true" | "t" | "yes" | "y" | "on" => Some(true),
        "0" | "false" | "f" | "no" | "n" | "off" => Some(false),
        _ => None,
    }
}
