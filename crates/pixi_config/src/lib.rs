//! The options of pixi that a mount depends on.
//!
//! pixi owns its configuration; this crate reads what concerns finding folders and fetching
//! packages, by the rules of pixi 0.77: the layers in [`layers`], the folders in [`cache`].

pub mod cache;
pub mod layers;
mod surroundings;

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use url::Url;

pub use cache::{CacheConfig, CacheKind, NetfsRedirect};
pub use layers::{ConfigError, load};
pub use rattler_config::config::proxy::ProxyConfig;
pub use rattler_config::config::run_post_link_scripts::RunPostLinkScripts;
pub use rattler_config::config::tls::TlsRootCerts;
pub use surroundings::{Surroundings, parse_bool};

/// Downloads at a time where nothing else is configured, as in pixi.
pub const DEFAULT_CONCURRENT_DOWNLOADS: usize = 50;

/// The options of all layers merged, or of one layer.
///
/// `None` and empty mean that no layer says anything.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub struct Config {
    /// A file with credentials that is asked before the system's key ring.
    #[serde(alias = "authentication_override_file")]
    pub authentication_override_file: Option<PathBuf>,

    /// Accept any certificate.
    #[serde(alias = "tls_no_verify")]
    pub tls_no_verify: Option<bool>,

    /// The root certificates to trust.
    pub tls_root_certs: Option<TlsRootCerts>,

    /// Never use the network.
    pub offline: Option<bool>,

    /// Where to go instead of a URL prefix, the first that answers.
    pub mirrors: HashMap<Url, Vec<Url>>,

    /// Endpoints of S3 buckets, by bucket.
    pub s3_options: HashMap<String, S3Options>,

    /// Whether and where environments live outside of their workspace.
    pub detached_environments: Option<DetachedEnvironments>,

    /// Limits on what happens at a time.
    pub concurrency: ConcurrencyConfig,

    /// Whether link scripts of packages are run.
    pub run_post_link_scripts: Option<RunPostLinkScripts>,

    /// The proxies to use where the environment names none.
    pub proxy_config: ProxyConfig,

    /// The folders of caches.
    pub cache: CacheConfig,
}

/// How a bucket is reached.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct S3Options {
    /// The endpoint.
    pub endpoint_url: Url,
    /// The region's name.
    pub region: String,
    /// Whether the bucket is named in the path, and not in the host's name.
    pub force_path_style: bool,
}

/// `detached-environments`: a boolean or a folder.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub enum DetachedEnvironments {
    /// In the cache, or in the workspace as usual.
    Enabled(bool),
    /// In this folder.
    Folder(PathBuf),
}

/// `[concurrency]`, as far as it matters here.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub struct ConcurrencyConfig {
    /// The number of downloads at a time.
    pub downloads: Option<usize>,
}

impl Config {
    /// Reads one layer; keys that are not known here are passed over.
    ///
    /// # Errors
    ///
    /// A description of what is wrong with the text.
    pub(crate) fn parse(text: &str, surroundings: &Surroundings) -> Result<Self, String> {
        let mut config: Self = toml::from_str(text).map_err(|error| error.to_string())?;
        for (key, path) in config.cache.paths_mut() {
            expand(path, surroundings);
            if !path.is_absolute() {
                return Err(format!(
                    "`cache.{key}` must be an absolute path: {}",
                    path.display()
                ));
            }
        }
        if let Some(DetachedEnvironments::Folder(path)) = &mut config.detached_environments {
            expand(path, surroundings);
            if !path.is_absolute() {
                return Err(format!(
                    "`detached-environments` must be an absolute path: {}",
                    path.display()
                ));
            }
        }
        Ok(config)
    }

    /// Puts `other` over this layer.
    #[must_use]
    pub(crate) fn merge(mut self, other: Self) -> Self {
        self.mirrors.extend(other.mirrors);
        self.s3_options.extend(other.s3_options);
        let proxies = self.proxy_config;
        Self {
            authentication_override_file: other
                .authentication_override_file
                .or(self.authentication_override_file),
            tls_no_verify: other.tls_no_verify.or(self.tls_no_verify),
            tls_root_certs: other.tls_root_certs.or(self.tls_root_certs),
            offline: other.offline.or(self.offline),
            mirrors: self.mirrors,
            s3_options: self.s3_options,
            detached_environments: other.detached_environments.or(self.detached_environments),
            concurrency: ConcurrencyConfig {
                downloads: other.concurrency.downloads.or(self.concurrency.downloads),
            },
            run_post_link_scripts: other.run_post_link_scripts.or(self.run_post_link_scripts),
            proxy_config: ProxyConfig {
                https: other.proxy_config.https.or(proxies.https),
                http: other.proxy_config.http.or(proxies.http),
                non_proxy_hosts: if other.proxy_config.non_proxy_hosts.is_empty() {
                    proxies.non_proxy_hosts
                } else {
                    other.proxy_config.non_proxy_hosts
                },
            },
            cache: self.cache.merge(other.cache),
        }
    }

    /// Downloads at a time.
    #[must_use]
    pub fn concurrent_downloads(&self) -> usize {
        let configured = self.concurrency.downloads.filter(|&number| number > 0);
        configured.unwrap_or(DEFAULT_CONCURRENT_DOWNLOADS)
    }

    /// The folder of extracted conda packages.
    ///
    /// `None` only where neither the configuration nor the user's home says where caches are.
    #[must_use]
    pub fn package_cache_dir(&self, surroundings: &Surroundings) -> Option<PathBuf> {
        self.cache.dir(CacheKind::CondaPackages, surroundings)
    }

    /// The folder below which detached environments lie; `None` where they are not detached.
    #[must_use]
    pub fn detached_environments_dir(&self, surroundings: &Surroundings) -> Option<PathBuf> {
        match self.detached_environments.as_ref()? {
            DetachedEnvironments::Enabled(false) => None,
            DetachedEnvironments::Enabled(true) => self
                .cache
                .dir(CacheKind::DetachedEnvironments, surroundings),
            DetachedEnvironments::Folder(path) => Some(path.clone()),
        }
    }
}

/// Replaces a leading `~` with the user's home.
fn expand(path: &mut PathBuf, surroundings: &Surroundings) {
    if let (Ok(rest), Some(home)) = (path.strip_prefix("~"), &surroundings.home_dir) {
        *path = home.join(rest);
    }
}

/// The layer that belongs to the workspace at `root`.
#[must_use]
pub fn workspace_config_path(root: &Path) -> PathBuf {
    root.join(".pixi").join("config.toml")
}
