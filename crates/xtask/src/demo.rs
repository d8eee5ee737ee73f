//! `cargo xtask demo`: the main job on packages made in code, without any network.

use std::{
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

use corpus::{
    kinds,
    package::{Built, Entry, Format, PLACEHOLDER, Package, PrefixMode},
    reference::fill_package_cache,
    workspace::{Location, Workspace},
};
use miette::{Context, IntoDiagnostic, bail};

use crate::{interruption, mount, place};

/// Installs, mounts, runs a program in both, and cleans up whatever happens.
pub(crate) fn run() -> miette::Result<()> {
    let pixi_mount = place::pixi_mount()?;
    interruption::watch()?;

    let folder = tempfile::Builder::new()
        .prefix("pixi-mount-demo-")
        .tempdir()
        .into_diagnostic()?;
    let root = fs_err::canonicalize(folder.path()).into_diagnostic()?;
    let packages = packages()?;
    println!("Making {} packages", packages.len());
    let packages: Vec<Built> = packages
        .iter()
        .map(|package| package.write(&root.join("packages"), Format::Conda))
        .collect::<Result<_, _>>()
        .into_diagnostic()?;
    let cache = root.join("cache");
    fill_package_cache(&cache.join("pkgs"), &packages).into_diagnostic()?;
    let workspace = Workspace::new(&root.join("workspace")).into_diagnostic()?;
    let workspace = workspace.environment("default", &packages, &Location::fictive());
    workspace.write().into_diagnostic()?;
    let prefix = workspace.prefix("default");
    interruption::check()?;

    println!("Installing them with rattler");
    let (manifest, package_cache) = (workspace.manifest(), cache.join("pkgs"));
    let arguments = [
        "__install".as_ref(),
        manifest.as_os_str(),
        prefix.as_os_str(),
        package_cache.as_os_str(),
    ];
    let installed_ready = Duration::from_secs_f64(mount::measure(None, &arguments)?);
    let (installed_said, installed_run) = run_program(&prefix)?;
    fs_err::remove_dir_all(&prefix).into_diagnostic()?;
    interruption::check()?;

    println!("Mounting them at the same place");
    let command = mount::pixi_mount(&pixi_mount, &workspace.manifest(), &prefix, &cache, &root);
    let server = mount::Server::start(command, &prefix, "bin/python", None, &root.join("output"))?;
    let mounted_ready = server.ready();
    let (mounted_said, mounted_run) = run_program(&prefix)?;
    server.stop()?;
    drop(folder);

    println!("The program said, in both:\n\n{}", indented(&mounted_said));
    println!("{:24}{:>12}{:>12}", "", "installed", "mounted");
    let row = |name: &str, installed: Duration, mounted: Duration| {
        let milliseconds = |time: Duration| format!("{:.1} ms", time.as_secs_f64() * 1e3);
        println!(
            "{name:24}{:>12}{:>12}",
            milliseconds(installed),
            milliseconds(mounted)
        );
    };
    row("environment ready", installed_ready, mounted_ready);
    row("program run", installed_run, mounted_run);
    if installed_said != mounted_said {
        bail!("installed, the program said something else:\n{installed_said}");
    }
    Ok(())
}

/// Some kinds of the catalogue, and a package with the program: a script with the prefix in it that runs another
/// package's entry point and a native executable.
fn packages() -> miette::Result<Vec<Package>> {
    let native = fs_err::read("/bin/true")
        .into_diagnostic()
        .context("a native program is needed")?;
    let script = format!(
        "#!/bin/sh\nset -e\n. {PLACEHOLDER}/etc/demo.conf\n{PLACEHOLDER}/bin/native\n\
         echo \"native program ran: $?\"\n\"$root/bin/greet\" demo\n\
         echo \"$(ls \"$root/share/large\" | wc -l) files in share/large\"\n"
    );
    let program = Package::new("demo", "1.0", "0")
        .with(Entry::program("bin/native", native))
        .with(Entry::program("bin/demo", script).prefix(PrefixMode::Text))
        .with(
            Entry::file("etc/demo.conf", format!("root={PLACEHOLDER}\n")).prefix(PrefixMode::Text),
        );
    let wanted = [
        "noarch-python",
        "large-directory",
        "prefix-binary",
        "clobbered-by-two",
    ];
    let kinds = kinds::all()
        .into_iter()
        .filter(|kind| wanted.contains(&kind.name));
    let mut packages: Vec<Package> = kinds.flat_map(|kind| kind.packages).collect();
    packages.push(program);
    Ok(packages)
}

fn run_program(prefix: &Path) -> miette::Result<(String, Duration)> {
    let start = Instant::now();
    let output = Command::new(prefix.join("bin/demo"))
        .output()
        .into_diagnostic()
        .context("the program does not run")?;
    let time = start.elapsed();
    if !output.status.success() {
        bail!(
            "the program failed ({}): {}",
            output.status,
            String::from_utf8_lossy(&output.stderr)
        );
    }
    Ok((String::from_utf8_lossy(&output.stdout).into_owned(), time))
}

fn indented(text: &str) -> String {
    text.lines().map(|line| format!("    {line}\n")).collect()
}
