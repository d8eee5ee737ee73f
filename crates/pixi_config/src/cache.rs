//! Where pixi keeps its caches.

use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::Surroundings;

/// `[cache]`: folders of caches, all absolute.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub struct CacheConfig {
    /// The folder of all caches that have none of their own.
    pub root: Option<PathBuf>,
    /// The folder of extracted conda packages.
    pub conda_packages: Option<PathBuf>,
    /// The folder of detached environments.
    pub detached_environments: Option<PathBuf>,
    /// What to do where the root is on a network file system.
    pub netfs_redirect: NetfsRedirect,
}

/// The caches that matter here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CacheKind {
    /// Extracted conda packages.
    CondaPackages,
    /// Environments outside of their workspaces.
    DetachedEnvironments,
}

impl CacheKind {
    fn folder(self) -> &'static str {
        match self {
            Self::CondaPackages => "pkgs",
            Self::DetachedEnvironments => "envs",
        }
    }

    fn variable(self) -> &'static str {
        match self {
            Self::CondaPackages => "PIXI_CACHE_CONDA_PACKAGES_DIR",
            Self::DetachedEnvironments => "PIXI_CACHE_DETACHED_ENVIRONMENTS_DIR",
        }
    }

    /// Whether the cache is worth sharing between machines, at the price of the network.
    fn is_shared(self) -> bool {
        self == Self::CondaPackages
    }
}

/// Which caches move to the machine's own disk where the root is on a network file system and
/// nobody asked for it to be there.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NetfsRedirect {
    /// Those that are not worth sharing.
    #[default]
    Auto,
    /// All of them.
    Always,
    /// None of them.
    Never,
}

impl NetfsRedirect {
    fn parse(text: &str) -> Option<Self> {
        match text {
            "auto" => Some(Self::Auto),
            "always" => Some(Self::Always),
            "never" => Some(Self::Never),
            _ => None,
        }
    }
}

impl CacheConfig {
    pub(crate) fn paths_mut(&mut self) -> impl Iterator<Item = (&'static str, &mut PathBuf)> {
        let fields = [
            ("root", &mut self.root),
            ("conda-packages", &mut self.conda_packages),
            ("detached-environments", &mut self.detached_environments),
        ];
        fields
            .into_iter()
            .filter_map(|(key, path)| Some((key, path.as_mut()?)))
    }

    pub(crate) fn merge(self, other: Self) -> Self {
        Self {
            root: other.root.or(self.root),
            conda_packages: other.conda_packages.or(self.conda_packages),
            detached_environments: other.detached_environments.or(self.detached_environments),
            netfs_redirect: match other.netfs_redirect {
                NetfsRedirect::Auto => self.netfs_redirect,
                said => said,
            },
        }
    }

    /// The folder of one cache; `None` where nothing says where caches are.
    #[must_use]
    pub fn dir(&self, kind: CacheKind, surroundings: &Surroundings) -> Option<PathBuf> {
        let own = match kind {
            CacheKind::CondaPackages => &self.conda_packages,
            CacheKind::DetachedEnvironments => &self.detached_environments,
        };
        if let Some(dir) = surroundings.path(kind.variable()).or_else(|| own.clone()) {
            return Some(dir);
        }
        if let Some(root) = self.chosen_root(surroundings) {
            return Some(root.join(kind.folder()));
        }
        let root = default_root(surroundings)?;
        if self.is_redirected(kind, &root, surroundings) {
            let user = surroundings
                .text("USER")
                .or_else(|| surroundings.text("USERNAME"))
                .unwrap_or("pixi");
            let dir = scratch_dir(surroundings)
                .join(format!("pixi-cache-{user}"))
                .join(kind.folder());
            tracing::warn!(
                "the cache at {} is on a network file system: using {} instead, as pixi does",
                root.join(kind.folder()).display(),
                dir.display()
            );
            return Some(dir);
        }
        Some(root.join(kind.folder()))
    }

    /// The root that somebody asked for.
    fn chosen_root(&self, surroundings: &Surroundings) -> Option<PathBuf> {
        // An empty variable counts: pixi takes it for a path as well.
        let variable = |name: &str| {
            let value = surroundings.variables.get(std::ffi::OsStr::new(name))?;
            Some(PathBuf::from(value))
        };
        variable("PIXI_CACHE_DIR")
            .or_else(|| variable("RATTLER_CACHE_DIR"))
            .or_else(|| self.root.clone())
    }

    fn is_redirected(&self, kind: CacheKind, root: &Path, surroundings: &Surroundings) -> bool {
        let policy = surroundings
            .text("PIXI_CACHE_NETFS_REDIRECT")
            .and_then(NetfsRedirect::parse)
            .unwrap_or(self.netfs_redirect);
        match policy {
            NetfsRedirect::Never => false,
            NetfsRedirect::Auto if kind.is_shared() => false,
            NetfsRedirect::Auto | NetfsRedirect::Always => {
                if surroundings
                    .variables
                    .contains_key(std::ffi::OsStr::new("PIXI_DISABLE_NETFS_REDIRECT"))
                {
                    false
                } else {
                    surroundings
                        .variables
                        .contains_key(std::ffi::OsStr::new("PIXI_FORCE_NETFS_REDIRECT"))
                        || is_on_network(root)
                }
            }
        }
    }
}

/// The root where nobody asked for another.
fn default_root(surroundings: &Surroundings) -> Option<PathBuf> {
    let base = surroundings.cache_dir.as_ref()?;
    // pixi's own folder counts only where it exists. Its documentation calls it `pixi`, but this is
    // what pixi 0.77 looks for.
    let own = base.join(".pixi");
    if own.exists() {
        return Some(own);
    }
    Some(base.join("rattler").join("cache"))
}

/// A folder on the machine's own disk.
fn scratch_dir(surroundings: &Surroundings) -> PathBuf {
    ["SLURM_TMPDIR", "PBS_JOBFS", "SCRATCH", "TMPDIR"]
        .into_iter()
        .filter_map(|name| surroundings.path(name))
        .find(|path| !is_on_network(path))
        .unwrap_or_else(|| surroundings.temporary_dir.clone())
}

/// Whether `path`, or what will be its parent, is on a file system that other machines serve.
fn is_on_network(path: &Path) -> bool {
    let Some(existing) = path.ancestors().find(|path| path.exists()) else {
        return false;
    };
    rustix::fs::statfs(existing).is_ok_and(|statfs| {
        // The magic numbers fit into 32 bits, whatever the width of the field.
        NETWORK_FILE_SYSTEMS.contains(&(statfs.f_type as u32))
    })
}

const NETWORK_FILE_SYSTEMS: [u32; 9] = [
    0x6969,      // NFS
    0x517b,      // SMB
    0xff53_4d42, // CIFS
    0x6573_5546, // FUSE
    0x0187,      // autofs
    0x1983_0326, // BeeGFS
    0x0bd0_0bd0, // Lustre
    0x4750_4653, // GPFS
    0x00c3_6400, // Ceph
];

#[cfg(test)]
mod tests {
    use super::*;

    const CONDA: CacheKind = CacheKind::CondaPackages;

    fn machine(home: &Path, variables: &[(&str, &str)]) -> Surroundings {
        Surroundings {
            variables: (variables.iter())
                .map(|(name, value)| (name.into(), value.into()))
                .collect(),
            cache_dir: Some(home.join(".cache")),
            temporary_dir: "/tmp".into(),
            ..Surroundings::default()
        }
    }

    #[test]
    fn the_more_special_choice_wins() {
        let home = tempfile::tempdir().unwrap();
        let mut config = CacheConfig::default();
        let mut variables = Vec::new();
        let dir = |config: &CacheConfig, variables: &[_]| {
            config.dir(CONDA, &machine(home.path(), variables)).unwrap()
        };

        let default = home.path().join(".cache/rattler/cache/pkgs");
        assert_eq!(dir(&config, &variables), default);
        std::fs::create_dir_all(home.path().join(".cache/.pixi")).unwrap();
        let own = home.path().join(".cache/.pixi/pkgs");
        assert_eq!(dir(&config, &variables), own);
        config.root = Some("/root".into());
        assert_eq!(dir(&config, &variables), Path::new("/root/pkgs"));
        variables.push(("RATTLER_CACHE_DIR", "/rattler"));
        assert_eq!(dir(&config, &variables), Path::new("/rattler/pkgs"));
        variables.push(("PIXI_CACHE_DIR", "/pixi"));
        assert_eq!(dir(&config, &variables), Path::new("/pixi/pkgs"));
        config.conda_packages = Some("/conda".into());
        assert_eq!(dir(&config, &variables), Path::new("/conda"));
        variables.push(("PIXI_CACHE_CONDA_PACKAGES_DIR", "/variable"));
        assert_eq!(dir(&config, &variables), Path::new("/variable"));
    }

    #[test]
    fn a_cache_on_the_network_moves_by_policy() {
        let home = tempfile::tempdir().unwrap();
        let on_network = [
            ("PIXI_FORCE_NETFS_REDIRECT", "1"),
            ("SCRATCH", "/scratch"),
            ("USER", "me"),
        ];
        let surroundings = machine(home.path(), &on_network);
        let dir = |policy, kind| {
            let config = CacheConfig {
                netfs_redirect: policy,
                ..CacheConfig::default()
            };
            config.dir(kind, &surroundings).unwrap()
        };
        let stays = home.path().join(".cache/rattler/cache");
        let moved = Path::new("/scratch/pixi-cache-me");
        let envs = CacheKind::DetachedEnvironments;
        assert_eq!(dir(NetfsRedirect::Auto, CONDA), stays.join("pkgs"));
        assert_eq!(dir(NetfsRedirect::Auto, envs), moved.join("envs"));
        assert_eq!(dir(NetfsRedirect::Always, CONDA), moved.join("pkgs"));
        assert_eq!(dir(NetfsRedirect::Never, envs), stays.join("envs"));

        let mut chosen = surroundings.clone();
        (chosen.variables).insert("PIXI_CACHE_DIR".into(), "/chosen".into());
        let config = CacheConfig {
            netfs_redirect: NetfsRedirect::Always,
            ..CacheConfig::default()
        };
        assert_eq!(
            config.dir(CONDA, &chosen).unwrap(),
            Path::new("/chosen/pkgs")
        );
    }
}
