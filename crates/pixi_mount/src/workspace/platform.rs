//! The platforms that a workspace declares, and the one of them that pixi would use on a machine.
//!
//! A platform of pixi 0.77 is a conda subdir with the virtual packages that it is to have. A
//! workspace lists them, or its features name virtual packages as `[system-requirements]`, from
//! which pixi makes platforms; environments whose features ask for several on one subdir get one
//! that has all. Their names and virtual packages must come out as in pixi: the lock file's rows
//! and the marker of an installed environment speak of them.

use std::fmt;
use std::str::FromStr;

use indexmap::IndexMap;
use rattler_conda_types::package::BuildString;
use rattler_conda_types::{
    GenericVirtualPackage, MatchSpec, Matches, PackageName, Subdir, Version,
};
use rattler_lock::LockFile;

use super::manifest::{DEFAULT_FEATURE, Environment, Feature, LibC, Manifest, PlatformEntry};

/// A virtual package, such as `__glibc=2.28`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VirtualPackage {
    /// The name, with its two underscores.
    pub name: String,
    /// The version.
    pub version: Version,
    /// The build string, mostly empty.
    pub build: String,
}

impl fmt::Display for VirtualPackage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.name, self.version)?;
        if !self.build.is_empty() {
            write!(f, "={}", self.build)?;
        }
        Ok(())
    }
}

impl VirtualPackage {
    fn new(name: &str, version: &str) -> Result<Self, PlatformError> {
        Ok(Self {
            name: name.to_string(),
            version: parse_version(version)?,
            build: String::new(),
        })
    }

    /// Reads the way lock files spell it: `name=version` or `name=version=build`.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.splitn(3, '=');
        Some(Self {
            name: parts.next()?.to_string(),
            version: Version::from_str(parts.next()?).ok()?,
            build: parts.next().unwrap_or_default().to_string(),
        })
    }

    fn to_generic(&self) -> Option<GenericVirtualPackage> {
        Some(GenericVirtualPackage {
            name: PackageName::from_str(&self.name).ok()?,
            version: self.version.clone(),
            build_string: BuildString::new_unchecked(&self.build),
        })
    }

    /// Whether `others` has this package in this version or a later one.
    fn is_provided_by(&self, others: &[Self]) -> bool {
        (others.iter()).any(|other| other.name == self.name && other.version >= self.version)
    }
}

impl From<GenericVirtualPackage> for VirtualPackage {
    fn from(package: GenericVirtualPackage) -> Self {
        Self {
            name: package.name.as_normalized().to_string(),
            version: package.version,
            build: package.build_string.to_string(),
        }
    }
}

/// A platform that a workspace declares.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Platform {
    /// The name, unique in the workspace; the subdir's where nothing is special.
    pub name: String,
    /// The conda subdir.
    pub subdir: Subdir,
    /// All virtual packages: those asked for, then the subdir's usual ones.
    pub virtual_packages: Vec<VirtualPackage>,
}

/// The machine that an environment is to run on.
pub trait Host {
    /// The machine's subdir.
    fn subdir(&self) -> Option<Subdir>;

    /// The virtual packages that the machine has.
    fn virtual_packages(&self) -> Vec<VirtualPackage>;
}

/// Why the platforms of a workspace cannot be worked out.
#[derive(Debug, thiserror::Error)]
pub enum PlatformError {
    /// A subdir that conda does not know.
    #[error("`{0}` is not a platform that conda knows")]
    UnknownSubdir(String),

    /// A version that is none.
    #[error("`{0}` is not a version")]
    InvalidVersion(String),

    /// An entry of `platforms` that makes no sense.
    #[error("an entry of `platforms` makes no sense: {0}")]
    InvalidEntry(String),

    /// A feature names a platform that the workspace does not declare.
    #[error(
        "the feature `{feature}` is for the platform `{platform}`, which the workspace does not declare"
    )]
    Undeclared {
        /// The feature.
        feature: String,
        /// The platform.
        platform: String,
    },
}

/// The platforms of a workspace.
#[derive(Debug, Clone)]
pub struct Platforms {
    declared: Vec<Platform>,
    /// Platforms that features name, where there was a list or `[system-requirements]`.
    of_features: IndexMap<String, Option<Vec<String>>>,
    /// Whether environments get one platform a subdir that is composed of their features'.
    composed: bool,
}

impl Platforms {
    /// Works out the platforms that `manifest` declares.
    ///
    /// # Errors
    ///
    /// See [`PlatformError`].
    pub fn of(manifest: &Manifest) -> Result<Self, PlatformError> {
        let mut declared: Vec<Platform> = Vec::new();
        for entry in &manifest.platforms {
            insert(&mut declared, Platform::from_entry(entry)?);
        }
        let composed = declared.iter().all(Platform::is_plain);

        let mut features = manifest.features.clone();
        for (name, environment) in &manifest.environments {
            if let Some(platforms) = &environment.platforms {
                let inline = Feature {
                    platforms: Some(platforms.clone()),
                    ..Feature::default()
                };
                features.insert(inline_feature(name), inline);
            }
        }
        if composed {
            for name in features
                .values()
                .filter_map(|f| f.platforms.as_ref())
                .flatten()
            {
                if !declared.iter().any(|platform| &platform.name == name) {
                    insert(&mut declared, Platform::plain(parse_subdir(name)?));
                }
            }
        }
        check_references(&declared, &features)?;

        let mut of_features: IndexMap<String, Option<Vec<String>>> = (features.iter())
            .map(|(name, feature)| (name.clone(), feature.platforms.clone()))
            .collect();
        if composed && features.values().any(|f| !f.system_requirements.is_empty()) {
            declared = from_system_requirements(&declared, &features, &mut of_features)?;
        }

        let mut platforms = Self {
            declared,
            of_features,
            composed,
        };
        platforms.register_composed(manifest);
        Ok(platforms)
    }

    /// Adds the platforms that environments and solve groups are composed for.
    fn register_composed(&mut self, manifest: &Manifest) {
        if !self.composed {
            return;
        }
        let mut groups: IndexMap<&str, Vec<&String>> = IndexMap::new();
        let mut combinations: Vec<Vec<&String>> = Vec::new();
        for (name, environment) in &manifest.environments {
            let features = self.features_of(name, environment);
            if let Some(group) = &environment.solve_group {
                groups.entry(group).or_default().extend(&features);
            }
            combinations.push(features);
        }
        combinations.extend(groups.into_values());
        let composed: Vec<Platform> = (combinations.iter())
            .flat_map(|features| {
                (self.subdirs().into_iter())
                    .filter(|&subdir| self.all_support(features, subdir))
                    .map(|subdir| self.compose(features, subdir))
            })
            .collect();
        for platform in composed {
            insert(&mut self.declared, platform);
        }
    }

    /// The names of the features of an environment, its own inline one first.
    fn features_of(&self, name: &str, environment: &Environment) -> Vec<&String> {
        let inline = inline_feature(name);
        let default = (!environment.no_default_feature).then_some(DEFAULT_FEATURE);
        (std::iter::once(inline.as_str()))
            .chain(environment.features.iter().map(String::as_str))
            .chain(default)
            .filter_map(|feature| Some(self.of_features.get_key_value(feature)?.0))
            .collect()
    }

    fn subdirs(&self) -> Vec<Subdir> {
        let mut subdirs = Vec::new();
        for platform in &self.declared {
            if !subdirs.contains(&platform.subdir) {
                subdirs.push(platform.subdir);
            }
        }
        subdirs
    }

    fn by_name(&self, name: &str) -> Option<&Platform> {
        self.declared.iter().find(|platform| platform.name == name)
    }

    fn platforms_of_feature(&self, feature: &str) -> Option<impl Iterator<Item = &Platform>> {
        let names = self.of_features.get(feature)?.as_ref()?;
        Some(names.iter().filter_map(|name| self.by_name(name)))
    }

    fn all_support(&self, features: &[&String], subdir: Subdir) -> bool {
        features.iter().all(|feature| {
            (self.platforms_of_feature(feature))
                .is_none_or(|mut platforms| platforms.any(|platform| platform.subdir == subdir))
        })
    }

    /// The platform that features make together on a subdir.
    fn compose(&self, features: &[&String], subdir: Subdir) -> Platform {
        let mut asked: Vec<&Platform> = Vec::new();
        for platform in (features.iter())
            .filter_map(|feature| self.platforms_of_feature(feature))
            .flatten()
            .filter(|platform| platform.subdir == subdir)
        {
            if !asked.iter().any(|known| known.name == platform.name) {
                asked.push(platform);
            }
        }
        if let [only] = asked[..] {
            return only.clone();
        }
        let mut union: Vec<VirtualPackage> = Vec::new();
        for package in asked.iter().flat_map(|platform| platform.special()) {
            match union.iter_mut().find(|known| known.name == package.name) {
                Some(known) if package.version > known.version => *known = package.clone(),
                Some(_) => {}
                None => union.push(package.clone()),
            }
        }
        union.sort_by(|a, b| a.name.cmp(&b.name));
        Platform::new(synthetic_name(subdir, &union), subdir, union)
    }

    /// The platforms of an environment, the preferred ones first.
    #[must_use]
    pub fn of_environment(&self, name: &str, environment: &Environment) -> Vec<&Platform> {
        let features = self.features_of(name, environment);
        if self.composed {
            let names: Vec<String> = (self.subdirs().into_iter())
                .filter(|&subdir| self.all_support(&features, subdir))
                .map(|subdir| self.compose(&features, subdir).name)
                .collect();
            return (self.declared.iter())
                .filter(|platform| names.contains(&platform.name))
                .collect();
        }
        let asked = |feature: &&String| self.of_features.get(*feature)?.as_ref();
        let exact: Vec<&String> = features.iter().filter_map(asked).flatten().collect();
        let is_exact = |platform: &Platform| exact.contains(&&platform.name);
        let exact_subdirs: Vec<Subdir> = (self.declared.iter())
            .filter(|platform| is_exact(platform))
            .map(|platform| platform.subdir)
            .collect();
        (self.declared.iter())
            .filter(|platform| {
                features.iter().filter_map(asked).all(|names| {
                    (names.iter())
                        .any(|name| *name == platform.name || name == platform.subdir.as_str())
                })
            })
            // Where a feature names a platform, the subdir alone does not stand for its relatives.
            .filter(|platform| is_exact(platform) || !exact_subdirs.contains(&platform.subdir))
            .collect()
    }

    /// The name that this workspace gives to each row of `lock`, where a row is a platform under
    /// another name.
    fn aligned_rows<'lock>(&self, lock: &'lock LockFile) -> Vec<(String, LockRow<'lock>)> {
        let rows: Vec<LockRow<'_>> = lock.platforms().map(LockRow).collect();
        let has_row = |name: &str| rows.iter().any(|row| row.name() == name);
        (rows.iter())
            .map(|row| {
                let special = row.special();
                let mut same = (self.declared.iter()).filter(|platform| {
                    platform.subdir == row.0.subdir() && sorted(platform.special()) == special
                });
                let name = match (same.next(), same.next()) {
                    (Some(platform), None)
                        if !has_row(&platform.name) && self.by_name(row.name()).is_none() =>
                    {
                        platform.name.clone()
                    }
                    _ => row.name().to_string(),
                };
                (name, *row)
            })
            .collect()
    }

    /// The name of the row of `lock` that was solved for `platform`.
    #[must_use]
    pub fn row_for(&self, platform: &Platform, lock: &LockFile) -> Option<String> {
        let rows = self.aligned_rows(lock);
        let find = |wanted: &str| {
            let (_, row) = rows.iter().find(|(name, _)| name == wanted)?;
            Some(*row)
        };
        let row = find(&platform.name).or_else(|| {
            let row = find(platform.subdir.as_str())?;
            let locked = row.0.virtual_packages();
            let is_covered = locked.is_empty()
                || (platform.virtual_packages.iter())
                    .all(|package| locked.contains(&package.to_string()));
            is_covered.then_some(row)
        })?;
        Some(row.name().to_string())
    }
}

#[derive(Clone, Copy)]
struct LockRow<'lock>(rattler_lock::Platform<'lock>);

impl LockRow<'_> {
    fn name(&self) -> &str {
        self.0.name().as_str()
    }

    /// Virtual packages that are not the subdir's usual ones, by name.
    fn special(&self) -> Vec<VirtualPackage> {
        let usual = usual_virtual_packages(self.0.subdir());
        let mut special: Vec<VirtualPackage> = (self.0.virtual_packages().iter())
            .filter_map(|text| VirtualPackage::parse(text))
            .filter(|package| !usual.contains(package))
            .collect();
        special.sort_by(|a, b| a.name.cmp(&b.name));
        special
    }
}

fn sorted<'a>(packages: impl Iterator<Item = &'a VirtualPackage>) -> Vec<VirtualPackage> {
    let mut packages: Vec<_> = packages.cloned().collect();
    packages.sort_by(|a, b| a.name.cmp(&b.name));
    packages
}

/// Picks the first of `candidates` that `host` can run.
#[must_use]
pub fn best<'p>(candidates: &[&'p Platform], host: &dyn Host) -> Option<&'p Platform> {
    let mut detected = None;
    for subdir in runnable_subdirs(host.subdir()?) {
        for platform in candidates.iter().filter(|p| p.subdir == subdir) {
            // Detecting takes a while; most workspaces ask for nothing special.
            let mut needed = platform.special().peekable();
            if needed.peek().is_none()
                || needed.all(|package| {
                    let provided = detected.get_or_insert_with(|| host.virtual_packages());
                    package.is_provided_by(provided)
                })
            {
                return Some(platform);
            }
        }
    }
    None
}

/// Picks the first of `candidates` whose packages ask for nothing that `host` lacks, although the
/// platform itself may: `requirements` gives the specs of virtual packages that its packages depend
/// on.
#[must_use]
pub fn best_by_requirements<'p>(
    candidates: &[&'p Platform],
    host: &dyn Host,
    requirements: impl Fn(&Platform) -> Vec<MatchSpec>,
) -> Option<&'p Platform> {
    let provided: Vec<GenericVirtualPackage> = (host.virtual_packages().iter())
        .filter_map(VirtualPackage::to_generic)
        .collect();
    let is_met = |spec: &MatchSpec| {
        let name = spec.name.as_exact().map(PackageName::as_normalized);
        !name.is_some_and(|name| CHECKED_REQUIREMENTS.contains(&name))
            || provided.iter().any(|package| spec.matches(package))
    };
    (runnable_subdirs(host.subdir()?).into_iter())
        .filter_map(|subdir| candidates.iter().find(|platform| platform.subdir == subdir))
        .find(|platform| requirements(platform).iter().all(is_met))
        .copied()
}

/// Virtual packages whose requirements pixi compares with the machine.
const CHECKED_REQUIREMENTS: [&str; 7] = [
    "__glibc", "__musl", "__eglibc", "__cuda", "__osx", "__win", "__linux",
];

/// The subdirs whose programs a machine of `subdir` runs, its own first.
#[must_use]
pub fn runnable_subdirs(subdir: Subdir) -> Vec<Subdir> {
    let mut subdirs = vec![subdir];
    match subdir {
        Subdir::OsxArm64 => subdirs.push(Subdir::Osx64),
        Subdir::WinArm64 | Subdir::Win32 => subdirs.push(Subdir::Win64),
        Subdir::Win64 => subdirs.push(Subdir::Win32),
        _ => {}
    }
    subdirs
}

impl Platform {
    /// The platform of a subdir with nothing special.
    #[must_use]
    pub fn plain(subdir: Subdir) -> Self {
        Self::new(subdir.to_string(), subdir, Vec::new())
    }

    fn new(name: String, subdir: Subdir, mut virtual_packages: Vec<VirtualPackage>) -> Self {
        const LIBC: [&str; 3] = ["__glibc", "__musl", "__eglibc"];
        let has_libc = (virtual_packages.iter()).any(|p| LIBC.contains(&p.name.as_str()));
        for usual in usual_virtual_packages(subdir) {
            let is_taken = virtual_packages.iter().any(|p| p.name == usual.name);
            if !(is_taken || has_libc && usual.name == "__glibc") {
                virtual_packages.push(usual);
            }
        }
        Self {
            name,
            subdir,
            virtual_packages,
        }
    }

    fn from_entry(entry: &PlatformEntry) -> Result<Self, PlatformError> {
        let mut table = match entry {
            PlatformEntry::Subdir(subdir) => return Ok(Self::plain(parse_subdir(subdir)?)),
            PlatformEntry::Table(table) => table.clone(),
        };
        let mut text = |key: &str| match table.shift_remove(key) {
            Some(toml::Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(PlatformError::InvalidEntry(format!("{key} = {other}"))),
            None => Ok(None),
        };
        let name = text("name")?;
        let subdir = match text("platform")?.as_ref().or(name.as_ref()) {
            Some(subdir) => parse_subdir(subdir)?,
            None => return Err(PlatformError::InvalidEntry("it has no `platform`".into())),
        };

        let mut packages = Vec::new();
        match table.shift_remove("cuda") {
            Some(toml::Value::Table(cuda)) => {
                for (key, package) in [("driver", "__cuda"), ("arch", "__cuda_arch")] {
                    if let Some(version) = cuda.get(key).and_then(toml::Value::as_str) {
                        packages.push(VirtualPackage::new(package, version)?);
                    }
                }
            }
            Some(cuda) => packages.push(VirtualPackage::new("__cuda", &value(&cuda)?)?),
            None => {}
        }
        for (keys, package) in FRIENDLY_KEYS {
            for key in keys {
                let Some(given) = table.shift_remove(*key) else {
                    continue;
                };
                let given = value(&given)?;
                packages.push(if package == "__archspec" {
                    VirtualPackage {
                        build: given,
                        ..VirtualPackage::new(package, "0")?
                    }
                } else {
                    VirtualPackage::new(package, &given)?
                });
            }
        }
        for (key, given) in table.into_iter().filter(|(key, _)| key.starts_with("__")) {
            let given = format!("{key}={}", value(&given)?);
            let package = VirtualPackage::parse(&given);
            packages.push(package.ok_or(PlatformError::InvalidEntry(given))?);
        }
        let name = name.unwrap_or_else(|| synthetic_name(subdir, &packages));
        Ok(Self::new(name, subdir, packages))
    }

    /// Whether this is just a subdir.
    fn is_plain(&self) -> bool {
        self.name == self.subdir.as_str()
    }

    /// The virtual packages that are not the subdir's usual ones.
    fn special(&self) -> impl Iterator<Item = &VirtualPackage> {
        let usual = usual_virtual_packages(self.subdir);
        (self.virtual_packages.iter()).filter(move |package| !usual.contains(package))
    }
}

/// Keys of a platform's table besides `cuda`, in the order in which they make up a name.
const FRIENDLY_KEYS: [(&[&str], &str); 5] = [
    (&["archspec"], "__archspec"),
    (&["glibc"], "__glibc"),
    (&["linux"], "__linux"),
    (&["macos", "osx"], "__osx"),
    (&["windows"], "__win"),
];

fn value(value: &toml::Value) -> Result<String, PlatformError> {
    let text = value.as_str().map(ToString::to_string);
    text.ok_or_else(|| PlatformError::InvalidEntry(value.to_string()))
}

fn insert(platforms: &mut Vec<Platform>, platform: Platform) {
    if !platforms.iter().any(|known| known.name == platform.name) {
        platforms.push(platform);
    }
}

fn inline_feature(environment: &str) -> String {
    // A name that no feature can have.
    format!("environment:{environment}")
}

fn check_references(
    declared: &[Platform],
    features: &IndexMap<String, Feature>,
) -> Result<(), PlatformError> {
    for (feature, platforms) in features {
        for name in platforms.platforms.iter().flatten() {
            if !declared.iter().any(|platform| &platform.name == name) {
                return Err(PlatformError::Undeclared {
                    feature: feature.clone(),
                    platform: name.clone(),
                });
            }
        }
    }
    Ok(())
}

/// Puts platforms in the place of `[system-requirements]`, and points the features to them.
fn from_system_requirements(
    originals: &[Platform],
    features: &IndexMap<String, Feature>,
    of_features: &mut IndexMap<String, Option<Vec<String>>>,
) -> Result<Vec<Platform>, PlatformError> {
    let mut platforms: Vec<Platform> = Vec::new();
    for (name, feature) in features {
        if feature.system_requirements.is_empty() {
            for platform in feature.platforms.iter().flatten() {
                insert(&mut platforms, Platform::plain(parse_subdir(platform)?));
            }
            continue;
        }
        let required = required_virtual_packages(feature)?;
        let subdirs: Vec<Subdir> = match &feature.platforms {
            Some(names) => names
                .iter()
                .map(|n| parse_subdir(n))
                .collect::<Result<_, _>>()?,
            None => originals.iter().map(|platform| platform.subdir).collect(),
        };
        let mut names = Vec::new();
        for subdir in subdirs {
            let packages: Vec<_> = (required.iter())
                .filter(|package| applies(&package.name, subdir))
                .cloned()
                .collect();
            let name = synthetic_name(subdir, &packages);
            names.push(name.clone());
            let packages = if name == subdir.as_str() {
                Vec::new()
            } else {
                packages
            };
            insert(&mut platforms, Platform::new(name, subdir, packages));
        }
        of_features.insert(name.clone(), Some(names));
    }
    let covered: Vec<Subdir> = platforms.iter().map(|platform| platform.subdir).collect();
    for original in originals {
        if !covered.contains(&original.subdir) {
            insert(&mut platforms, original.clone());
        }
    }
    Ok(platforms)
}

fn required_virtual_packages(feature: &Feature) -> Result<Vec<VirtualPackage>, PlatformError> {
    let requirements = &feature.system_requirements;
    let mut packages = Vec::new();
    for (package, version) in [
        ("__linux", &requirements.linux),
        ("__cuda", &requirements.cuda),
        ("__osx", &requirements.macos),
    ] {
        if let Some(version) = version {
            packages.push(VirtualPackage::new(package, version)?);
        }
    }
    match &requirements.libc {
        Some(LibC::Version(version)) => packages.push(VirtualPackage::new("__glibc", version)?),
        Some(LibC::Family { family, version }) => {
            let family = family.as_deref().unwrap_or("glibc");
            packages.push(VirtualPackage::new(&format!("__{family}"), version)?);
        }
        None => {}
    }
    Ok(packages)
}

/// Whether a subdir can have a virtual package.
fn applies(package: &str, subdir: Subdir) -> bool {
    match package {
        "__linux" | "__glibc" | "__musl" | "__eglibc" => subdir.is_linux(),
        "__osx" => subdir.is_osx(),
        "__cuda" => !subdir.is_osx(),
        _ => true,
    }
}

/// The virtual packages that pixi 0.77 gives a subdir where nobody asks for others.
fn usual_virtual_packages(subdir: Subdir) -> Vec<VirtualPackage> {
    let package = |name: &str, version: u64, minor: Option<u64>, build: &str| VirtualPackage {
        name: name.to_string(),
        version: match minor {
            Some(minor) => Version::from_str(&format!("{version}.{minor}"))
                .unwrap_or_else(|_| Version::major(version)),
            None => Version::major(version),
        },
        build: build.to_string(),
    };
    let mut packages = Vec::new();
    if subdir.is_unix() {
        packages.push(package("__unix", 0, None, "0"));
    }
    if subdir.is_linux() {
        packages.push(package("__linux", 4, Some(18), ""));
        packages.push(package("__glibc", 2, Some(28), ""));
    }
    if subdir.is_windows() {
        packages.push(package("__win", 10, Some(0), ""));
    }
    if subdir.is_osx() {
        packages.push(package("__osx", 13, Some(0), ""));
    }
    if let Some(microarchitecture) = microarchitecture(subdir) {
        packages.push(package("__archspec", 0, None, microarchitecture));
    }
    packages
}

/// The oldest microarchitecture of a subdir, as archspec calls it.
fn microarchitecture(subdir: Subdir) -> Option<&'static str> {
    Some(match subdir {
        Subdir::Win32 | Subdir::Linux32 => "x86",
        Subdir::Win64 | Subdir::Osx64 | Subdir::Linux64 => "x86_64",
        Subdir::LinuxAarch64 | Subdir::LinuxArmV6l | Subdir::LinuxArmV7l | Subdir::WinArm64 => {
            "aarch64"
        }
        Subdir::LinuxPpc64le => "ppc64le",
        Subdir::LinuxPpc64 => "ppc64",
        Subdir::LinuxS390X => "s390x",
        Subdir::LinuxRiscv32 => "riscv32",
        Subdir::LinuxRiscv64 => "riscv64",
        Subdir::OsxArm64 => "m1",
        _ => return None,
    })
}

/// The name that pixi makes from a subdir and its special virtual packages.
fn synthetic_name(subdir: Subdir, packages: &[VirtualPackage]) -> String {
    let usual = usual_virtual_packages(subdir);
    let special: Vec<&VirtualPackage> = packages
        .iter()
        .filter(|package| !usual.contains(package))
        .collect();
    let mut parts = vec![subdir.to_string()];
    let mut named = Vec::new();

    let friendly = std::iter::once((&["cuda"][..], "__cuda")).chain(FRIENDLY_KEYS);
    for (keys, name) in friendly {
        let Some(package) = special.iter().find(|package| package.name == name) else {
            continue;
        };
        let value = if name == "__archspec" {
            (package.version == Version::major(0) && !package.build.is_empty())
                .then(|| package.build.clone())
        } else {
            matches!(package.build.as_str(), "" | "0").then(|| package.version.to_string())
        };
        if let Some(value) = value {
            named.push(name);
            parts.push(format!("{}-{}", keys[0], segment(&value)));
        }
    }

    let mut others: Vec<_> = (special.into_iter())
        .filter(|package| !named.contains(&package.name.as_str()))
        .collect();
    others.sort_by(|a, b| a.name.cmp(&b.name));
    for package in others {
        let value = match package.build.as_str() {
            "" | "0" => package.version.to_string(),
            build => format!("{}={build}", package.version),
        };
        let key = package.name.trim_start_matches('_');
        parts.push(format!("{}-{}", segment(key), segment(&value)));
    }
    parts.join("-")
}

/// Letters and digits stay, everything between them becomes one dash.
fn segment(text: &str) -> String {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric());
    let words: Vec<&str> = words.filter(|word| !word.is_empty()).collect();
    words.join("-")
}

fn parse_subdir(text: &str) -> Result<Subdir, PlatformError> {
    Subdir::from_str(text).map_err(|_| PlatformError::UnknownSubdir(text.to_string()))
}

fn parse_version(text: &str) -> Result<Version, PlatformError> {
    Version::from_str(text).map_err(|_| PlatformError::InvalidVersion(text.to_string()))
}

#[cfg(test)]
mod tests {
    use rattler_conda_types::ParseStrictness;

    use super::super::manifest;
    use super::*;

    struct Machine(Subdir, &'static [&'static str]);

    impl Host for Machine {
        fn subdir(&self) -> Option<Subdir> {
            Some(self.0)
        }

        fn virtual_packages(&self) -> Vec<VirtualPackage> {
            let parse = |text: &&str| VirtualPackage::parse(text).unwrap();
            self.1.iter().map(parse).collect()
        }
    }

    const PLAIN: Machine = Machine(Subdir::Linux64, &["__glibc=2.40=0"]);
    const WITH_CUDA: Machine = Machine(Subdir::Linux64, &["__glibc=2.40=0", "__cuda=12.8=0"]);

    fn manifest(text: &str) -> Manifest {
        manifest::parse(text, false).unwrap().unwrap()
    }

    fn platforms(text: &str) -> Platforms {
        Platforms::of(&manifest(text)).unwrap()
    }

    fn names<'a>(platforms: impl IntoIterator<Item = &'a Platform>) -> Vec<&'a str> {
        platforms
            .into_iter()
            .map(|platform| platform.name.as_str())
            .collect()
    }

    /// The name of the platform of an environment on a machine.
    fn chosen(text: &str, environment: &str, host: &Machine) -> Option<String> {
        let manifest = manifest(text);
        let platforms = Platforms::of(&manifest).unwrap();
        let candidates = platforms.of_environment(environment, &manifest.environments[environment]);
        best(&candidates, host).map(|platform| platform.name.clone())
    }

    fn spelled(platform: &Platform) -> Vec<String> {
        platform
            .virtual_packages
            .iter()
            .map(ToString::to_string)
            .collect()
    }

    #[test]
    fn a_subdir_has_its_usual_virtual_packages() {
        let platform = Platform::plain(Subdir::Linux64);
        assert_eq!(
            spelled(&platform),
            [
                "__unix=0=0",
                "__linux=4.18",
                "__glibc=2.28",
                "__archspec=0=x86_64"
            ]
        );
        let platform = Platform::plain(Subdir::OsxArm64);
        assert_eq!(
            spelled(&platform),
            ["__unix=0=0", "__osx=13.0", "__archspec=0=m1"]
        );
    }

    #[test]
    fn what_is_asked_for_comes_first_and_names_the_platform() {
        let platforms = platforms(
            "[workspace]
            platforms = [
                { platform = 'linux-64', glibc = '2.31', cuda = { driver = '12.0', arch = '8.6' } },
                { name = 'box', platform = 'linux-64', archspec = 'x86_64_v3', __musl = '1.2' },
                { platform = 'linux-64', __future = '1=a b' },
                'osx-arm64',
            ]",
        );
        assert_eq!(
            names(&platforms.declared),
            [
                "linux-64-cuda-12-0-glibc-2-31-cuda-arch-8-6",
                "box",
                "linux-64-future-1-a-b",
                "osx-arm64"
            ]
        );
        assert_eq!(
            spelled(&platforms.declared[0]),
            [
                "__cuda=12.0",
                "__cuda_arch=8.6",
                "__glibc=2.31",
                "__unix=0=0",
                "__linux=4.18",
                "__archspec=0=x86_64"
            ]
        );
        // A C library of another family takes the place of glibc.
        assert_eq!(
            spelled(&platforms.declared[1]),
            [
                "__archspec=0=x86_64_v3",
                "__musl=1.2",
                "__unix=0=0",
                "__linux=4.18"
            ]
        );
    }

    #[test]
    fn the_first_platform_that_the_machine_can_run_is_chosen() {
        let text = "[workspace]
            platforms = ['osx-arm64', { name = 'gpu', platform = 'linux-64', cuda = '12' }, 'linux-64']";
        assert_eq!(chosen(text, "default", &WITH_CUDA).as_deref(), Some("gpu"));
        assert_eq!(chosen(text, "default", &PLAIN).as_deref(), Some("linux-64"));
        let arm = Machine(Subdir::LinuxAarch64, &[]);
        assert_eq!(chosen(text, "default", &arm), None);
        let rosetta = Machine(Subdir::OsxArm64, &[]);
        let text = "[workspace]\nplatforms = ['linux-64', 'osx-64']";
        assert_eq!(chosen(text, "default", &rosetta).as_deref(), Some("osx-64"));
    }

    #[test]
    fn environments_have_the_platforms_of_all_their_features() {
        let text = "[workspace]
            platforms = ['linux-64', { name = 'gpu', platform = 'linux-64', cuda = '12' }]
            [feature.cuda]
            platforms = ['gpu']
            [feature.plain]
            platforms = ['linux-64']
            [environments]
            cuda = ['cuda']
            both = ['cuda', 'plain']
            own = { platforms = ['gpu'] }";
        assert_eq!(
            chosen(text, "default", &WITH_CUDA).as_deref(),
            Some("linux-64")
        );
        assert_eq!(chosen(text, "cuda", &WITH_CUDA).as_deref(), Some("gpu"));
        assert_eq!(chosen(text, "cuda", &PLAIN), None);
        assert_eq!(chosen(text, "own", &WITH_CUDA).as_deref(), Some("gpu"));
        // A subdir stands for its variants, and the variant that is named is the one.
        assert_eq!(chosen(text, "both", &WITH_CUDA).as_deref(), Some("gpu"));
    }

    #[test]
    fn system_requirements_become_platforms() {
        let text = "[workspace]
            platforms = ['linux-64', 'osx-arm64']
            [system-requirements]
            libc = '2.30'
            [feature.cuda.system-requirements]
            cuda = '12'
            libc = { family = 'glibc', version = '2.17' }
            [feature.usual.system-requirements]
            linux = '4.18'
            [environments]
            cuda = ['cuda']
            only = { features = ['cuda'], no-default-feature = true }
            usual = { features = ['usual'], no-default-feature = true }";
        let chosen = |environment, host| chosen(text, environment, host);
        assert_eq!(
            chosen("default", &PLAIN).as_deref(),
            Some("linux-64-glibc-2-30")
        );
        assert_eq!(
            chosen("cuda", &WITH_CUDA).as_deref(),
            Some("linux-64-cuda-12-glibc-2-30")
        );
        assert_eq!(
            chosen("only", &WITH_CUDA).as_deref(),
            Some("linux-64-cuda-12-glibc-2-17")
        );
        assert_eq!(chosen("usual", &PLAIN).as_deref(), Some("linux-64"));
        let mac = Machine(Subdir::OsxArm64, &[]);
        assert_eq!(chosen("cuda", &mac).as_deref(), Some("osx-arm64"));
    }

    #[test]
    fn a_promise_that_no_package_needs_does_not_keep_it_from_running() {
        let manifest = manifest(
            "[workspace]
            platforms = ['linux-64']
            [system-requirements]
            cuda = '12'",
        );
        let platforms = Platforms::of(&manifest).unwrap();
        let candidates = platforms.of_environment("default", &manifest.environments["default"]);
        assert_eq!(best(&candidates, &PLAIN), None);
        let by = |requirement: &str, host: &Machine| {
            let spec = MatchSpec::from_str(requirement, ParseStrictness::Lenient).unwrap();
            best_by_requirements(&candidates, host, |_| vec![spec.clone()]).is_some()
        };
        assert!(by("__glibc >=2.17", &PLAIN));
        assert!(by("__archspec 1.* x86_64_v9", &PLAIN));
        assert!(!by("__cuda", &PLAIN));
        assert!(by("__cuda", &WITH_CUDA));
        assert!(!by("__cuda >=13", &WITH_CUDA));
    }

    #[test]
    fn nonsense_is_refused() {
        let error = |text: &str| Platforms::of(&manifest(text)).unwrap_err().to_string();
        assert_eq!(
            error("[workspace]\nplatforms = ['linux-65']"),
            "`linux-65` is not a platform that conda knows"
        );
        assert_eq!(
            error("[workspace]\nplatforms = [{ platform = 'linux-64', cuda = 'no version!' }]"),
            "`no version!` is not a version"
        );
        assert_eq!(
            error(
                "[workspace]
                platforms = [{ name = 'gpu', platform = 'linux-64', cuda = '12' }]
                [feature.x]
                platforms = ['cpu']"
            ),
            "the feature `x` is for the platform `cpu`, which the workspace does not declare"
        );
    }

    #[test]
    fn a_row_is_found_by_name_by_content_and_by_subdir() {
        let lock = |rows: &str| {
            LockFile::from_str_with_base_directory(
                &format!("version: 7\nplatforms:\n{rows}\nenvironments: {{}}\npackages: []\n"),
                None,
            )
            .unwrap()
        };
        let platforms = platforms(
            "[workspace]
            platforms = ['linux-64', { name = 'gpu', platform = 'linux-64', cuda = '12' }]",
        );
        let row = |name: &str, rows: &str| {
            platforms.row_for(platforms.by_name(name).unwrap(), &lock(rows))
        };
        let by_name = "- name: gpu\n  subdir: linux-64\n  virtual-packages: [__cuda=12]";
        assert_eq!(row("gpu", by_name).as_deref(), Some("gpu"));
        let by_content = "- name: linux-64\n- name: p1\n  subdir: linux-64\n  virtual-packages: \
                          [__cuda=12, __linux=4.18]";
        assert_eq!(row("gpu", by_content).as_deref(), Some("p1"));
        assert_eq!(row("linux-64", by_content).as_deref(), Some("linux-64"));
        // A row without virtual packages is of a time when there were none.
        let by_subdir = "- name: linux-64";
        assert_eq!(row("linux-64", by_subdir).as_deref(), Some("linux-64"));
        assert_eq!(row("gpu", by_subdir).as_deref(), Some("linux-64"));
        let other = "- name: p1\n  subdir: linux-64\n  virtual-packages: [__cuda=11]";
        assert_eq!(row("gpu", other), None);
    }
}
