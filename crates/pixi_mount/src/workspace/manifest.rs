//! What of a pixi manifest decides which environments there are, for which platforms, and where.
//!
//! Everything else in a manifest is passed over: checking it is pixi's business.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use indexmap::IndexMap;
use pixi_config::S3Options;
use rattler_fs::regular_file::read_text;
use serde::Deserialize;

/// The files that can hold a manifest, in the order in which pixi looks for them.
pub const FILE_NAMES: [&str; 3] = ["pixi.toml", PYPROJECT, "mojoproject.toml"];

const PYPROJECT: &str = "pyproject.toml";

/// The name of the environment that every workspace has.
pub const DEFAULT_ENVIRONMENT: &str = "default";

/// The name of the feature made of the manifest's own tables.
pub const DEFAULT_FEATURE: &str = "default";

/// A manifest that holds a workspace.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Manifest {
    /// The workspace's name, if the manifest says one.
    pub name: Option<String>,
    /// `[workspace] platforms`.
    pub platforms: Vec<PlatformEntry>,
    /// `[workspace.s3-options]`.
    pub s3_options: HashMap<String, S3Options>,
    /// The features in the manifest's order, the default one first.
    pub features: IndexMap<String, Feature>,
    /// The environments in the manifest's order; `default` is always there.
    pub environments: IndexMap<String, Environment>,
}

/// An entry of `[workspace] platforms`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(untagged)]
pub enum PlatformEntry {
    /// A conda subdir.
    Subdir(String),
    /// A subdir with virtual packages that it is to have.
    Table(IndexMap<String, toml::Value>),
}

/// A set of tables that environments are composed of.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub struct Feature {
    /// Names of the workspace's platforms, or subdirs; everywhere where there are none.
    pub platforms: Option<Vec<String>>,
    /// The older way of naming virtual packages.
    pub system_requirements: SystemRequirements,
}

/// `[system-requirements]`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub struct SystemRequirements {
    /// Version of the Linux kernel.
    pub linux: Option<String>,
    /// Version of CUDA.
    pub cuda: Option<String>,
    /// Version of macOS.
    pub macos: Option<String>,
    /// Version of the C library.
    pub libc: Option<LibC>,
    /// Microarchitecture; pixi does not use it any more.
    pub archspec: Option<String>,
}

impl SystemRequirements {
    /// Whether nothing is required.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// `libc` of [`SystemRequirements`].
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(untagged)]
pub enum LibC {
    /// A version of glibc.
    Version(String),
    /// A version of some C library.
    Family {
        /// `glibc` where there is none.
        family: Option<String>,
        /// The version.
        version: String,
    },
}

/// An environment: the features that it is composed of.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Environment {
    /// Names of features, without the default one.
    pub features: Vec<String>,
    /// Whether the default feature is left out.
    pub no_default_feature: bool,
    /// Platforms of the environment itself.
    pub platforms: Option<Vec<String>>,
    /// Environments of one group are solved together.
    pub solve_group: Option<String>,
}

/// Why a manifest cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ManifestError {
    /// The file cannot be read.
    #[error("cannot read the manifest {}", path.display())]
    Read {
        /// The manifest.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },

    /// The file is not what a manifest should be.
    #[error("cannot parse the manifest {}", path.display())]
    Parse {
        /// The manifest.
        path: PathBuf,
        /// What is wrong, with the place.
        source: Box<toml::de::Error>,
    },
}

/// No manifest comes near this size in bytes.
const MAX_SIZE: u64 = 16 << 20;

/// Reads the manifest at `path`; `None` where the file holds no workspace of pixi.
///
/// # Errors
///
/// See [`ManifestError`].
pub fn read(path: &Path) -> Result<Option<Manifest>, ManifestError> {
    let text = read_text(path, MAX_SIZE).map_err(|source| ManifestError::Read {
        path: path.to_path_buf(),
        source,
    })?;
    let is_pyproject = path.file_name().is_some_and(|name| name == PYPROJECT);
    parse(&text, is_pyproject).map_err(|source| ManifestError::Parse {
        path: path.to_path_buf(),
        source: Box::new(source),
    })
}

/// Parses a manifest; `None` where it holds no workspace of pixi.
///
/// # Errors
///
/// What is wrong with the text.
pub fn parse(text: &str, is_pyproject: bool) -> Result<Option<Manifest>, toml::de::Error> {
    if !is_pyproject {
        return Ok(toml::from_str::<PixiTable>(text)?.into_manifest(None));
    }
    let document: Pyproject = toml::from_str(text)?;
    let outer_name = (document.project.name).or(document.tool.poetry.name);
    Ok((document.tool.pixi).and_then(|pixi| pixi.into_manifest(outer_name)))
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct PixiTable {
    workspace: Option<WorkspaceTable>,
    // The older name of the table.
    project: Option<WorkspaceTable>,
    #[serde(default)]
    package: Named,
    #[serde(default)]
    system_requirements: SystemRequirements,
    #[serde(default)]
    feature: IndexMap<String, Feature>,
    #[serde(default)]
    environments: IndexMap<String, EnvironmentEntry>,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct WorkspaceTable {
    name: Option<String>,
    #[serde(default)]
    platforms: Vec<PlatformEntry>,
    #[serde(default)]
    s3_options: HashMap<String, S3Options>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum EnvironmentEntry {
    Features(Vec<String>),
    Table(EnvironmentTable),
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct EnvironmentTable {
    #[serde(default)]
    features: Vec<String>,
    #[serde(default)]
    no_default_feature: bool,
    platforms: Option<Vec<String>>,
    solve_group: Option<String>,
}

#[derive(Deserialize)]
struct Pyproject {
    #[serde(default)]
    project: Named,
    #[serde(default)]
    tool: Tool,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Tool {
    pixi: Option<PixiTable>,
    poetry: Named,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Named {
    // A package's name can be a table that refers to the workspace's.
    #[serde(deserialize_with = "text_or_nothing")]
    name: Option<String>,
}

fn text_or_nothing<'de, D: serde::Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<String>, D::Error> {
    let value = toml::Value::deserialize(deserializer)?;
    Ok(value.as_str().map(ToString::to_string))
}

impl PixiTable {
    fn into_manifest(self, outer_name: Option<String>) -> Option<Manifest> {
        let workspace = self.workspace.or(self.project)?;
        let default = Feature {
            platforms: None,
            system_requirements: self.system_requirements,
        };
        let mut features = IndexMap::from([(DEFAULT_FEATURE.to_string(), default)]);
        features.extend(self.feature);

        let mut environments = IndexMap::new();
        if !self.environments.contains_key(DEFAULT_ENVIRONMENT) {
            environments.insert(DEFAULT_ENVIRONMENT.to_string(), Environment::default());
        }
        environments.extend((self.environments.into_iter()).map(|(name, entry)| {
            let environment = match entry {
                EnvironmentEntry::Features(features) => Environment {
                    features,
                    ..Environment::default()
                },
                EnvironmentEntry::Table(table) => Environment {
                    features: table.features,
                    no_default_feature: table.no_default_feature,
                    platforms: table.platforms,
                    solve_group: table.solve_group,
                },
            };
            (name, environment)
        }));

        Some(Manifest {
            name: workspace.name.or(self.package.name).or(outer_name),
            platforms: workspace.platforms,
            s3_options: workspace.s3_options,
            features,
            environments,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn environments_are_lists_or_tables() {
        let manifest = parse(
            "[workspace]
            name = 'ws'
            platforms = ['linux-64', { platform = 'linux-64', cuda = '12' }]
            [feature.test.dependencies]
            x = '*'
            [environments]
            test = ['test']
            lean = { features = ['test'], no-default-feature = true, solve-group = 'g' }",
            false,
        )
        .unwrap()
        .unwrap();
        assert_eq!(manifest.name.as_deref(), Some("ws"));
        let names: Vec<_> = manifest.environments.keys().map(String::as_str).collect();
        assert_eq!(names, ["default", "test", "lean"]);
        assert!(manifest.environments["lean"].no_default_feature);
        assert_eq!(manifest.environments["test"].features, ["test"]);
        assert_eq!(manifest.platforms.len(), 2);
    }

    #[test]
    fn a_pyproject_is_a_workspace_where_pixi_has_a_table() {
        let name = |text| {
            let manifest = parse(text, true).unwrap()?;
            Some(manifest.name.unwrap_or_default())
        };
        assert_eq!(name("[project]\nname = 'a'"), None);
        assert_eq!(name("[project]\nname = 'a'\n[tool.pixi.package]"), None);
        assert_eq!(
            name("[project]\nname = 'a'\n[tool.pixi.workspace]"),
            Some("a".into())
        );
        assert_eq!(
            name("[tool.poetry]\nname = 'p'\n[tool.pixi.project]"),
            Some("p".into())
        );
        assert_eq!(
            name("[project]\nname = 'a'\n[tool.pixi.workspace]\nname = 'b'"),
            Some("b".into())
        );
    }

    #[test]
    fn a_package_alone_is_no_workspace() {
        assert_eq!(parse("[package]\nname = 'a'", false).unwrap(), None);
        let manifest = parse("[workspace]\n[package]\nname.workspace = true", false).unwrap();
        assert_eq!(manifest.unwrap().name, None);
    }
}
