//! The files that configuration is read from, and their order.
//!
//! Later layers win: the system's `config.toml`, the user's (two places), the workspace's, the
//! environment variables. `PIXI_NO_CONFIG` leaves the first two out and `PIXI_CONFIG_FILE` puts
//! another file in their place.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use fs_err as fs;

use crate::{Config, Surroundings, TlsRootCerts, parse_bool, workspace_config_path};

/// Why there is no configuration.
///
/// A file that cannot be read or parsed is no such reason: as in pixi, it is warned of and left
/// out.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// An environment variable has a value that means nothing.
    #[error("the environment variable {name} has the value `{value}`, expected {expected}")]
    InvalidVariable {
        /// The variable.
        name: &'static str,
        /// Its value.
        value: String,
        /// What it may be, in words.
        expected: &'static str,
    },
}

/// Loads the configuration that holds in the workspace at `root`, or outside of any.
///
/// # Errors
///
/// See [`ConfigError`].
pub fn load(root: Option<&Path>, surroundings: &Surroundings) -> Result<Config, ConfigError> {
    let mut config = Config::default();
    for path in global_files(surroundings)?
        .into_iter()
        .chain(root.map(workspace_config_path))
    {
        if let Some(layer) = read(&path, surroundings) {
            config = config.merge(layer);
        }
    }
    Ok(config.merge(from_variables(surroundings)?))
}

fn global_files(surroundings: &Surroundings) -> Result<Vec<PathBuf>, ConfigError> {
    if boolean("PIXI_NO_CONFIG", surroundings)? == Some(true) {
        return Ok(Vec::new());
    }
    if let Some(path) = surroundings.path("PIXI_CONFIG_FILE") {
        if !path.is_file() {
            tracing::warn!("there is no file at PIXI_CONFIG_FILE={}", path.display());
        }
        return Ok(vec![path]);
    }
    let pixi_home = surroundings.path("PIXI_HOME").or_else(|| {
        let home = surroundings.home_dir.as_ref()?;
        Some(home.join(".pixi"))
    });
    let folders = [
        Some(surroundings.system_config_dir.join("pixi")),
        surroundings.config_dir.as_ref().map(|dir| dir.join("pixi")),
        pixi_home,
    ];
    Ok(folders
        .into_iter()
        .flatten()
        .map(|dir| dir.join("config.toml"))
        .collect())
}

fn read(path: &Path, surroundings: &Surroundings) -> Option<Config> {
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            return None;
        }
        Err(error) => {
            tracing::warn!("ignoring a configuration file: {error}");
            return None;
        }
    };
    match Config::parse(&text, surroundings) {
        Ok(config) => {
            tracing::debug!("configuration read from {}", path.display());
            Some(config)
        }
        Err(reason) => {
            tracing::warn!(
                "ignoring the configuration file {}: {reason}",
                path.display()
            );
            None
        }
    }
}

fn from_variables(surroundings: &Surroundings) -> Result<Config, ConfigError> {
    let tls_root_certs = surroundings
        .text("PIXI_TLS_ROOT_CERTS")
        .map(|value| {
            value
                .parse::<TlsRootCerts>()
                .map_err(|_| ConfigError::InvalidVariable {
                    name: "PIXI_TLS_ROOT_CERTS",
                    value: value.to_string(),
                    expected: "`webpki` or `system`",
                })
        })
        .transpose()?;
    Ok(Config {
        offline: boolean("PIXI_OFFLINE", surroundings)?,
        tls_root_certs,
        ..Config::default()
    })
}

fn boolean(name: &'static str, surroundings: &Surroundings) -> Result<Option<bool>, ConfigError> {
    let Some(value) = surroundings.variable(name) else {
        return Ok(None);
    };
    let value = value.to_string_lossy();
    match parse_bool(&value) {
        Some(value) => Ok(Some(value)),
        None => Err(ConfigError::InvalidVariable {
            name,
            value: value.into_owned(),
            expected: "`true` or `false`",
        }),
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::*;

    struct Machine {
        folder: tempfile::TempDir,
        surroundings: Surroundings,
    }

    impl Machine {
        fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            let home = folder.path().join("home");
            let surroundings = Surroundings {
                variables: Default::default(),
                home_dir: Some(home.clone()),
                cache_dir: Some(home.join(".cache")),
                config_dir: Some(home.join(".config")),
                system_config_dir: folder.path().join("etc"),
                temporary_dir: folder.path().join("tmp"),
            };
            Self {
                folder,
                surroundings,
            }
        }

        fn write(&self, path: &str, text: &str) -> &Self {
            let path = self.folder.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
            self
        }

        fn set(&mut self, name: &str, value: impl Into<OsString>) -> &mut Self {
            self.surroundings
                .variables
                .insert(name.into(), value.into());
            self
        }

        fn load(&self) -> Config {
            load(Some(&self.folder.path().join("ws")), &self.surroundings).unwrap()
        }
    }

    fn downloads(number: usize) -> String {
        format!("concurrency.downloads = {number}")
    }

    #[test]
    fn later_layers_win() {
        let mut machine = Machine::new();
        assert_eq!(machine.load().concurrent_downloads(), 50);
        machine.write("etc/pixi/config.toml", &downloads(1));
        assert_eq!(machine.load().concurrent_downloads(), 1);
        machine.write("home/.config/pixi/config.toml", &downloads(2));
        assert_eq!(machine.load().concurrent_downloads(), 2);
        machine.write("home/.pixi/config.toml", &downloads(3));
        assert_eq!(machine.load().concurrent_downloads(), 3);
        machine.write("other/config.toml", &downloads(4));
        let other = machine.folder.path().join("other");
        machine.set("PIXI_HOME", other);
        assert_eq!(machine.load().concurrent_downloads(), 4);
        machine.write("ws/.pixi/config.toml", &downloads(5));
        assert_eq!(machine.load().concurrent_downloads(), 5);
    }

    #[test]
    fn keys_of_one_table_come_from_several_layers() {
        let machine = Machine::new();
        machine
            .write(
                "etc/pixi/config.toml",
                "cache.root = '/a'\n[mirrors]\n'https://one.invalid/' = ['https://a.invalid/']\n",
            )
            .write(
                "ws/.pixi/config.toml",
                "cache.conda-packages = '/b'\n[mirrors]\n'https://two.invalid/' = ['https://b.invalid/']\n",
            );
        let config = machine.load();
        assert_eq!(config.cache.root, Some("/a".into()));
        assert_eq!(config.cache.conda_packages, Some("/b".into()));
        assert_eq!(config.mirrors.len(), 2);
    }

    #[test]
    fn the_global_layers_can_be_replaced_and_left_out() {
        let mut machine = Machine::new();
        machine
            .write("etc/pixi/config.toml", &downloads(1))
            .write("given.toml", &downloads(2));
        let given = machine.folder.path().join("given.toml");
        machine.set("PIXI_CONFIG_FILE", given);
        assert_eq!(machine.load().concurrent_downloads(), 2);
        machine.set("PIXI_NO_CONFIG", "yes");
        assert_eq!(machine.load().concurrent_downloads(), 50);
        machine.write("ws/.pixi/config.toml", &downloads(3));
        assert_eq!(machine.load().concurrent_downloads(), 3);
    }

    #[test]
    fn variables_win_over_files() {
        let mut machine = Machine::new();
        machine.write(
            "ws/.pixi/config.toml",
            "offline = true\ntls-root-certs = 'webpki'",
        );
        assert_eq!(machine.load().offline, Some(true));
        machine
            .set("PIXI_OFFLINE", "0")
            .set("PIXI_TLS_ROOT_CERTS", "native");
        let config = machine.load();
        assert_eq!(config.offline, Some(false));
        assert_eq!(config.tls_root_certs, Some(TlsRootCerts::System));

        machine.set("PIXI_OFFLINE", "perhaps");
        let error = load(None, &machine.surroundings).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the environment variable PIXI_OFFLINE has the value `perhaps`, expected `true` or `false`"
        );
    }

    #[test]
    fn a_file_that_makes_no_sense_is_left_out_and_unknown_keys_are_not_missed() {
        let machine = Machine::new();
        machine
            .write("etc/pixi/config.toml", &downloads(1))
            .write(
                "home/.pixi/config.toml",
                "cache.root = 'relative'\nconcurrency.downloads = 2",
            )
            .write("home/.config/pixi/config.toml", "not = [toml");
        assert_eq!(machine.load().concurrent_downloads(), 1);
        machine.write(
            "ws/.pixi/config.toml",
            "default-channels = ['x']\nexperimental.new = 1\nconcurrency = { solves = 1, downloads = 7 }",
        );
        assert_eq!(machine.load().concurrent_downloads(), 7);
    }

    #[test]
    fn detached_environments_are_in_the_cache_or_where_the_user_says() {
        let machine = Machine::new();
        let detached = || {
            machine
                .load()
                .detached_environments_dir(&machine.surroundings)
        };
        let home = machine.surroundings.home_dir.clone().unwrap();
        assert_eq!(detached(), None);
        machine.write("ws/.pixi/config.toml", "detached-environments = true");
        assert_eq!(detached(), Some(home.join(".cache/rattler/cache/envs")));
        machine.write("ws/.pixi/config.toml", "detached-environments = '~/envs'");
        assert_eq!(detached(), Some(home.join("envs")));
        machine.write("ws/.pixi/config.toml", "detached-environments = false");
        assert_eq!(detached(), None);
    }
}
