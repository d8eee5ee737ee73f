//! The machine that we run on, as pixi sees it.

use pixi_config::Surroundings;
use rattler_conda_types::Subdir;
use rattler_virtual_packages::{VirtualPackageOverrides, VirtualPackages};

use super::platform::{Host, VirtualPackage};

/// This machine, with what the environment variables `PIXI_OVERRIDE_PLATFORM` and
/// `CONDA_OVERRIDE_*` say of it.
#[derive(Debug)]
pub struct ThisMachine<'s>(pub &'s Surroundings);

impl Host for ThisMachine<'_> {
    fn subdir(&self) -> Option<Subdir> {
        let overridden = self.0.text("PIXI_OVERRIDE_PLATFORM").and_then(|value| {
            let subdir = value.parse().ok();
            if subdir.is_none() {
                tracing::warn!("ignoring PIXI_OVERRIDE_PLATFORM={value}: no such platform");
            }
            subdir
        });
        overridden.or_else(Subdir::current)
    }

    fn virtual_packages(&self) -> Vec<VirtualPackage> {
        let detect = |overrides| VirtualPackages::detect(&overrides, None);
        let detected = detect(VirtualPackageOverrides::from_env()).or_else(|error| {
            tracing::warn!("ignoring the CONDA_OVERRIDE variables: {error}");
            detect(VirtualPackageOverrides::default())
        });
        match detected {
            Ok(packages) => (packages.into_generic_virtual_packages())
                .map(VirtualPackage::from)
                .collect(),
            Err(error) => {
                tracing::warn!("cannot detect the virtual packages of this machine: {error}");
                Vec::new()
            }
        }
    }
}
