//! Pixi workspaces: `pixi.toml` and a `pixi.lock` that locks made packages.

use std::{
    fmt::Write,
    path::{Path, PathBuf},
    str::FromStr,
};

use rattler_conda_types::{ChannelUrl, RepoDataRecord, Subdir};
use rattler_lock::{
    CondaBinaryData, CondaPackageData, LockFile, PlatformData, PlatformName, UrlOrPath,
};
use serde_json::json;
use url::Url;

use crate::{Error, package::Built};

/// The virtual packages that pixi 0.77 gives a plain `platforms = ["linux-64"]`, in its order.
pub const VIRTUAL_PACKAGES: [&str; 4] = [
    "__unix=0=0",
    "__linux=4.18",
    "__glibc=2.28",
    "__archspec=0=x86_64",
];

/// What stands in for a channel on the network; the domain never resolves (RFC 2606).
pub const FICTIVE_CHANNEL: &str = "https://channel.invalid/made/";

/// How the lock file says where a package is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Location {
    /// By URL in this channel. The package has to be in the package cache, unless the channel exists.
    Channel(Url),
    /// By the `file://` URL of the archive.
    FileUrl,
    /// By the absolute path of the archive.
    AbsolutePath,
    /// By the path of the archive relative to the workspace.
    RelativePath,
}

impl Location {
    /// By URL in [`FICTIVE_CHANNEL`].
    pub fn fictive() -> Self {
        Self::Channel(Url::parse(FICTIVE_CHANNEL).expect("the URL is well formed"))
    }
}

/// Which format of lock file to write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LockVersion {
    /// Version 6, without rows of platforms.
    V6,
    /// Version 7.
    V7,
}

/// A workspace to be written.
#[derive(Debug, Clone)]
pub struct Workspace {
    folder: PathBuf,
    version: LockVersion,
    platform: String,
    virtual_packages: Vec<String>,
    environments: Vec<(String, Vec<Locked>)>,
}

#[derive(Debug, Clone)]
struct Locked {
    record: RepoDataRecord,
    location: UrlOrPath,
}

impl Workspace {
    /// A workspace in this folder, without environments; lock file version 7 and a platform row named linux-64.
    ///
    /// # Errors
    ///
    /// The current directory, which a relative path is relative to, is gone.
    pub fn new(folder: &Path) -> Result<Self, Error> {
        Ok(Self {
            folder: std::path::absolute(folder)?,
            version: LockVersion::V7,
            platform: "linux-64".to_owned(),
            virtual_packages: VIRTUAL_PACKAGES.map(str::to_owned).to_vec(),
            environments: Vec::new(),
        })
    }

    /// Writes the lock file in this version.
    #[must_use]
    pub fn lock_version(mut self, version: LockVersion) -> Self {
        self.version = version;
        self
    }

    /// Names the row of platforms, whose subdir stays linux-64. Version 6 knows no names but subdirs.
    #[must_use]
    pub fn platform(mut self, name: &str) -> Self {
        self.platform = name.to_owned();
        self
    }

    /// Puts other virtual packages in place of [`VIRTUAL_PACKAGES`] (version 7).
    #[must_use]
    pub fn virtual_packages(mut self, virtual_packages: &[&str]) -> Self {
        self.virtual_packages = virtual_packages
            .iter()
            .map(|&package| package.to_owned())
            .collect();
        self
    }

    /// Adds packages to an environment, which is made when it is new.
    #[must_use]
    pub fn environment<'a>(
        mut self,
        name: &str,
        packages: impl IntoIterator<Item = &'a Built>,
        location: &Location,
    ) -> Self {
        let locked = packages
            .into_iter()
            .map(|built| self.lock(built, location))
            .collect();
        match self
            .environments
            .iter_mut()
            .find(|(known, _)| known == name)
        {
            Some((_, packages)) => packages.extend(locked),
            None => self.environments.push((name.to_owned(), locked)),
        }
        self
    }

    fn lock(&self, built: &Built, location: &Location) -> Locked {
        let path = |path: PathBuf| UrlOrPath::Path(path.to_string_lossy().as_ref().into());
        match location {
            Location::Channel(channel) => {
                let record = built.in_channel(channel);
                // A `file://` URL is read as a path, from which no subdir follows: written as one, the subdir is kept.
                Locked {
                    location: UrlOrPath::Url(record.url.clone()).normalize().into_owned(),
                    record,
                }
            }
            Location::FileUrl => Locked {
                location: UrlOrPath::Url(built.record.url.clone()),
                record: built.record.clone(),
            },
            Location::AbsolutePath => Locked {
                location: path(built.path.clone()),
                record: built.record.clone(),
            },
            Location::RelativePath => Locked {
                location: path(relative(&self.folder, &built.path)),
                record: built.record.clone(),
            },
        }
    }

    /// Writes `pixi.toml` and `pixi.lock`.
    ///
    /// # Errors
    ///
    /// Writing fails, or the platform's name is none.
    pub fn write(&self) -> Result<(), Error> {
        fs_err::create_dir_all(&self.folder)?;
        fs_err::write(self.manifest(), self.manifest_text())?;
        match self.version {
            LockVersion::V6 => fs_err::write(self.lock_file(), self.version_6()?)?,
            LockVersion::V7 => self.version_7()?.to_path(&self.lock_file())?,
        }
        Ok(())
    }

    /// The workspace's folder; absolute.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// `pixi.toml`.
    pub fn manifest(&self) -> PathBuf {
        self.folder.join("pixi.toml")
    }

    /// `pixi.lock`.
    pub fn lock_file(&self) -> PathBuf {
        self.folder.join("pixi.lock")
    }

    /// Where pixi has an environment.
    pub fn prefix(&self, environment: &str) -> PathBuf {
        self.folder.join(".pixi/envs").join(environment)
    }

    fn channels(&self) -> Vec<String> {
        let packages = self.environments.iter().flat_map(|(_, packages)| packages);
        let mut channels: Vec<String> = packages
            .filter_map(|locked| locked.record.channel.clone())
            .collect();
        channels.sort();
        channels.dedup();
        channels
    }

    fn manifest_text(&self) -> String {
        let mut text = format!(
            "[workspace]\nname = \"made\"\nchannels = {}\nplatforms = [\"linux-64\"]\n",
            json!(self.channels())
        );
        for (name, packages) in &self.environments {
            // Each environment has its own packages only, as `lean` of pixi's own examples.
            let feature = if name == "default" {
                String::new()
            } else {
                format!("feature.{name}.")
            };
            let _ = write!(text, "\n[{feature}dependencies]\n");
            for locked in packages {
                let record = &locked.record.package_record;
                let _ = writeln!(
                    text,
                    "{} = \"=={}\"",
                    record.name.as_normalized(),
                    record.version
                );
            }
        }
        let others: Vec<&str> = self
            .environments
            .iter()
            .map(|(name, _)| name.as_str())
            .filter(|name| *name != "default")
            .collect();
        if !others.is_empty() {
            text.push_str("\n[environments]\n");
        }
        for name in others {
            let _ = writeln!(
                text,
                "{name} = {{ features = [\"{name}\"], no-default-feature = true }}"
            );
        }
        text
    }

    fn version_7(&self) -> Result<LockFile, Error> {
        let name = PlatformName::from_str(&self.platform)
            .map_err(|error| Error::Locked(error.to_string()))?;
        let platform = PlatformData {
            name,
            subdir: Subdir::Linux64,
            virtual_packages: self.virtual_packages.clone(),
        };
        let mut builder = LockFile::builder().with_platforms(vec![platform])?;
        for (environment, packages) in &self.environments {
            builder.set_channels(environment, self.channels());
            builder.add_environment_platform(environment, &self.platform)?;
            for Locked { record, location } in packages {
                let channel = record
                    .channel
                    .as_deref()
                    .map(Url::parse)
                    .transpose()
                    .map_err(std::io::Error::other)?;
                let data = CondaBinaryData {
                    package_record: record.package_record.clone(),
                    location: location.clone(),
                    file_name: record.identifier.clone(),
                    channel: channel.map(ChannelUrl::from),
                };
                builder.add_conda_package(
                    environment,
                    &self.platform,
                    CondaPackageData::from(data),
                )?;
            }
        }
        Ok(builder.finish())
    }

    /// `rattler_lock` reads version 6 but no longer writes it. JSON values are YAML.
    fn version_6(&self) -> Result<String, Error> {
        let mut text = String::from("version: 6\nenvironments:\n");
        for (environment, packages) in &self.environments {
            let _ = write!(text, "  {environment}:\n    channels:\n");
            for channel in self.channels() {
                let _ = writeln!(text, "    - url: {}", json!(channel));
            }
            let _ = write!(text, "    packages:\n      linux-64:\n");
            for locked in packages {
                let _ = writeln!(
                    text,
                    "      - conda: {}",
                    json!(locked.location.to_string())
                );
            }
        }
        text.push_str("packages:\n");
        let mut written: Vec<&UrlOrPath> = Vec::new();
        for locked in self.environments.iter().flat_map(|(_, packages)| packages) {
            if written.contains(&&locked.location) {
                continue;
            }
            written.push(&locked.location);
            let _ = writeln!(text, "- conda: {}", json!(locked.location.to_string()));
            let record = serde_json::to_value(&locked.record.package_record)?;
            let keys = [
                "name",
                "version",
                "build",
                "build_number",
                "subdir",
                "noarch",
                "sha256",
                "md5",
                "depends",
                "constrains",
                "size",
                "timestamp",
                "python_site_packages_path",
            ];
            for key in keys {
                if let Some(value) = record.get(key).filter(|value| !value.is_null()) {
                    let _ = writeln!(text, "  {key}: {value}");
                }
            }
        }
        Ok(text)
    }
}

/// The path of `to` as seen from the folder `from`, both absolute.
fn relative(from: &Path, to: &Path) -> PathBuf {
    let shared = from
        .components()
        .zip(to.components())
        .take_while(|(a, b)| a == b)
        .count();
    let up = from
        .components()
        .skip(shared)
        .map(|_| std::path::Component::ParentDir);
    let path: PathBuf = up.chain(to.components().skip(shared)).collect();
    if path.starts_with("..") {
        path
    } else {
        Path::new(".").join(path)
    }
}
