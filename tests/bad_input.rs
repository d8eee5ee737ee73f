//! What cannot be mounted is refused with one clear message, exit status 1, and nothing left behind.

mod support;

use std::{
    fs,
    os::unix::{fs::symlink, process::CommandExt},
    path::Path,
    process::Command,
};

use corpus::{
    kinds::Kind,
    package::Built,
    workspace::{Location, Workspace},
};
use rattler_fs::fuse::mount_table;
use support::{Mounted, Sandbox, fuse_or_skip};

/// What the command says when it refuses, with the sandbox's folder as `$`: the message, its causes and the help, a line
/// each.
fn refusal(sandbox: &Sandbox, command: Command) -> String {
    let said = match Mounted::start(command) {
        Err(said) => said,
        Ok(mounted) => panic!("it was not refused: {}", mounted.greeting),
    };
    let said = said
        .strip_prefix("exit status: 1: ")
        .unwrap_or_else(|| panic!("{said}"));
    assert_eq!(said.matches('×').count(), 1, "one diagnostic: {said}");
    let left = mount_table::read().unwrap();
    assert!(
        !left
            .iter()
            .any(|mount| mount.mount_point.starts_with(&sandbox.folder)),
        "{left:?}"
    );
    let lines: Vec<&str> = said
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .collect();
    lines
        .join("\n")
        .replace(sandbox.folder.to_str().unwrap(), "$")
}

fn mount(sandbox: &Sandbox, arguments: &[&str]) -> String {
    let mut command = sandbox.command("pixi-mount");
    command.args(arguments);
    refusal(sandbox, command)
}

/// As [`mount`], and the workspace is as it was.
fn mount_changes_nothing(sandbox: &Sandbox, arguments: &[&str]) -> String {
    let before = listing(&sandbox.workspace());
    let said = mount(sandbox, arguments);
    assert_eq!(listing(&sandbox.workspace()), before);
    said
}

fn listing(folder: &Path) -> Vec<String> {
    let mut lines = Vec::new();
    for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
        lines.push(entry.path().display().to_string());
        if entry.file_type().unwrap().is_dir() {
            lines.extend(listing(&entry.path()));
        }
    }
    lines.sort();
    lines
}

fn write(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

/// A workspace of one small package that lies in the cache.
fn plain() -> Sandbox {
    Sandbox::with_kind("plain")
}

fn kind(name: &str) -> Kind {
    corpus::kinds::all()
        .into_iter()
        .find(|kind| kind.name == name)
        .unwrap()
}

/// A workspace of the packages of a kind, none of them in the cache.
fn not_cached(kind: &Kind, location: &Location) -> (Sandbox, Vec<Built>) {
    let sandbox = Sandbox::new();
    let packages = sandbox.archives(kind);
    Workspace::new(&sandbox.workspace())
        .unwrap()
        .environment("default", &packages, location)
        .write()
        .unwrap();
    (sandbox, packages)
}

#[test]
fn no_workspace() {
    let sandbox = Sandbox::new();
    fs::create_dir_all(sandbox.workspace()).unwrap();
    let mut command = sandbox.command("pixi-mount");
    // Upwards from the temporary folder there may be one; from the root there is none.
    command.current_dir("/");
    assert_eq!(
        refusal(&sandbox, command),
        "× there is no pixi workspace in / or the folders above it\n\
         help: go to a workspace, or name its `pixi.toml`, `pyproject.toml` or folder with `--manifest-path`; \
         `pixi init` makes a new one"
    );
    let said = mount(&sandbox, &["--manifest-path", "nowhere/pixi.toml"]);
    assert!(
        said.starts_with("× there is no manifest at nowhere/pixi.toml\n"),
        "{said}"
    );
}

#[test]
fn a_manifest_that_does_not_parse() {
    let sandbox = plain();
    write(&sandbox.workspace().join("pixi.toml"), "[workspace\n");
    let said = mount_changes_nothing(&sandbox, &[]);
    assert!(
        said.starts_with("× cannot parse the manifest $/workspace/pixi.toml\n"),
        "{said}"
    );
    assert!(said.contains("line 1, column 11"), "{said}");
}

#[test]
fn no_lock_file() {
    let sandbox = plain();
    fs::remove_file(sandbox.workspace().join("pixi.lock")).unwrap();
    assert_eq!(
        mount_changes_nothing(&sandbox, &[]),
        "× there is no lock file at $/workspace/pixi.lock\nhelp: make one: `pixi lock`"
    );
}

#[test]
fn a_lock_file_that_does_not_parse() {
    let sandbox = plain();
    let path = sandbox.workspace().join("pixi.lock");
    for (text, cause) in [
        ("version: 7\nplatforms: 3\n", "invalid type: integer `3`"),
        ("nothing", "missing `version` field in lock file"),
        ("\u{0}", "control characters are not allowed"),
        ("version: 1000", "newer lockfile format version 1000"),
    ] {
        write(&path, text);
        let said = mount_changes_nothing(&sandbox, &[]);
        assert!(
            said.starts_with("× cannot parse the lock file $/workspace/pixi.lock\n"),
            "{said}"
        );
        assert!(said.contains(cause), "{said}");
        assert!(said.ends_with("make a new one: `pixi lock`"), "{said}");
    }
}

#[test]
fn an_environment_that_the_workspace_does_not_have() {
    let sandbox = plain();
    assert_eq!(
        mount_changes_nothing(&sandbox, &["--environment", "production"]),
        "× the workspace `made` has no environment `production`\nhelp: there is default"
    );
}

#[test]
fn an_environment_that_the_lock_file_does_not_have() {
    let sandbox = plain();
    let manifest = sandbox.workspace().join("pixi.toml");
    let text = fs::read_to_string(&manifest).unwrap();
    write(
        &manifest,
        &format!("{text}\n[feature.test]\n[environments]\ntest = ['test']\n"),
    );
    assert_eq!(
        mount_changes_nothing(&sandbox, &["-e", "test"]),
        "× the environment `test` is not in the lock file $/workspace/pixi.lock\n\
         help: there is default; bring it up to date: `pixi lock`"
    );
}

#[test]
fn an_environment_for_other_machines() {
    let sandbox = plain();
    let manifest = sandbox.workspace().join("pixi.toml");
    let text = fs::read_to_string(&manifest).unwrap();
    write(&manifest, &text.replace("linux-64", "win-64"));
    let said = mount_changes_nothing(&sandbox, &[]);
    let machine = rattler_conda_types::Subdir::current().unwrap();
    assert_eq!(
        said,
        format!(
            "× the environment `default` is not for this machine ({machine})\n\
             help: it is for win-64; add a platform for this machine to the workspace: \
             `pixi workspace platform add {machine}`"
        )
    );
}

#[test]
fn a_platform_that_the_lock_file_does_not_have() {
    let sandbox = plain();
    let lock = sandbox.workspace().join("pixi.lock");
    let text = fs::read_to_string(&lock).unwrap();
    write(&lock, &text.replace("linux-64", "osx-64"));
    assert_eq!(
        mount_changes_nothing(&sandbox, &[]),
        "× the lock file $/workspace/pixi.lock has nothing for the platform `linux-64`\n\
         help: it has osx-64; bring it up to date: `pixi lock`"
    );
}

#[test]
fn packages_of_kinds_that_cannot_be_served_are_all_named() {
    let sandbox = plain();
    let lock = sandbox.workspace().join("pixi.lock");
    write(
        &lock,
        "version: 7
platforms:
- name: linux-64
environments:
  default:
    channels:
    - url: https://channel.invalid/
    packages:
      linux-64:
      - conda_source: built[0123abcd] @ ./built
      - pypi: https://index.invalid/six-1.17.0-py2.py3-none-any.whl
      - pypi: ./local
packages:
- conda_source: built[0123abcd] @ ./built
- pypi: https://index.invalid/six-1.17.0-py2.py3-none-any.whl
  name: six
  version: 1.17.0
- pypi: ./local
  name: local
",
    );
    assert_eq!(
        mount_changes_nothing(&sandbox, &[]),
        "× the environment `default` has packages that cannot be mounted yet: \
         built (built from source), local (PyPI), six (PyPI)\n\
         help: install the environment instead: `pixi install`"
    );
}

#[test]
fn a_package_whose_file_is_gone() {
    for location in [
        Location::FileUrl,
        Location::AbsolutePath,
        Location::RelativePath,
    ] {
        let (sandbox, packages) = not_cached(&kind("plain"), &location);
        let gone = &packages[0].path;
        fs::remove_file(gone).unwrap();
        let name = gone.file_name().unwrap().to_str().unwrap();
        let folder = match location {
            Location::RelativePath => "$/workspace/../archives",
            _ => "$/archives",
        };
        assert_eq!(
            mount_changes_nothing(&sandbox, &[]),
            format!(
                "× the package `{name}` is not in the package cache, and its file is gone: {folder}/{name}\n\
                 help: put the file back, or lock without it: `pixi lock`"
            )
        );
    }
}

#[test]
fn a_package_that_is_another_one() {
    let (sandbox, packages) = not_cached(&kind("plain"), &Location::FileUrl);
    let other = sandbox.archives(&kind("empty"));
    fs::copy(&other[0].path, &packages[0].path).unwrap();
    let said = mount_changes_nothing(&sandbox, &[]);
    assert!(said.starts_with("× cannot fetch the package `"), "{said}");
    assert!(said.contains("hash mismatch"), "{said}");
}

#[test]
fn a_package_that_would_need_the_network_while_offline() {
    let (sandbox, _) = not_cached(&kind("plain"), &Location::fictive());
    let mut command = sandbox.command("pixi-mount");
    command.env("PIXI_OFFLINE", "1");
    let said = refusal(&sandbox, command);
    assert!(said.starts_with("× cannot fetch the package `"), "{said}");
    assert!(said.contains("offline"), "{said}");
}

#[test]
fn a_mount_point_that_is_not_empty() {
    let sandbox = plain();
    let path = sandbox.folder.join("here");
    write(&path.join("file"), "");
    for arguments in [
        &["--mount-point", "../here"][..],
        &["--replace", "--mount-point", "../here"],
    ] {
        assert_eq!(
            mount_changes_nothing(&sandbox, arguments),
            "× the mount point $/here is not empty\n\
             help: an environment is mounted on an empty folder, or where there is none yet; name another with \
             `--mount-point`"
        );
    }
    assert!(path.join("file").exists());
}

#[test]
fn a_mount_point_with_an_installed_environment() {
    let sandbox = plain();
    write(&sandbox.prefix().join("conda-meta/history"), "");
    assert_eq!(
        mount_changes_nothing(&sandbox, &[]),
        "× an environment is installed at $/workspace/.pixi/envs/default\n\
         help: `--replace` moves it aside while the mount is there"
    );
    write(
        &sandbox
            .prefix()
            .with_file_name("default.installed")
            .join("x"),
        "",
    );
    assert_eq!(
        mount_changes_nothing(&sandbox, &["--replace"]),
        "× cannot move the environment at $/workspace/.pixi/envs/default aside: \
         $/workspace/.pixi/envs/default.installed exists already\n\
         help: remove $/workspace/.pixi/envs/default.installed, or move it back by hand"
    );
}

#[test]
fn a_mount_point_that_is_no_folder() {
    let sandbox = plain();
    write(&sandbox.folder.join("file"), "");
    symlink("file", sandbox.folder.join("link")).unwrap();
    for name in ["file", "link"] {
        let said = mount_changes_nothing(&sandbox, &["--mount-point", &format!("../{name}")]);
        assert!(
            said.starts_with("× the mount point $/file is not a folder\n"),
            "{said}"
        );
    }
}

#[test]
fn a_mount_point_where_an_environment_is_mounted() {
    if !fuse_or_skip(1) {
        return;
    }
    let sandbox = plain();
    let mounted = sandbox.mount();
    let second = sandbox.command("pixi-mount").output().unwrap();
    let said = String::from_utf8(second.stderr).unwrap();
    assert_eq!(second.status.code(), Some(1), "{said}");
    let message = format!(
        "× pixi:made/default is already mounted at {}",
        sandbox.prefix().display()
    );
    assert!(said.contains(&message), "{said}");
    // The first one is unharmed.
    assert!(sandbox.prefix().join("conda-meta/history").exists());
    let (code, said) = mounted.stop(rustix::process::Signal::TERM);
    assert_eq!(code, Some(0), "{said}");
}

/// A damaged package that comes from a channel that does not exist.
#[test]
fn a_package_that_is_damaged_in_the_cache_and_cannot_be_fetched() {
    let sandbox = plain();
    let package = fs::read_dir(sandbox.package_cache())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .find(|path| path.is_dir())
        .unwrap();
    fs::remove_file(package.join("bin/hello")).unwrap();
    let mut command = sandbox.command("pixi-mount");
    command.env("PIXI_OFFLINE", "1");
    let said = refusal(&sandbox, command);
    assert!(said.contains("× cannot fetch the package `"), "{said}");
}

#[test]
fn a_path_that_is_too_long_for_a_binary() {
    let sandbox = Sandbox::with_kind("prefix-binary");
    let long = "x".repeat(200);
    let path = format!("../{long}/{long}");
    let said = mount_changes_nothing(&sandbox, &["--mount-point", &path]);
    assert!(
        said.starts_with("× the path of the environment is too long for the package "),
        "{said}"
    );
    assert!(
        said.ends_with("help: mount at a shorter path: `--mount-point`"),
        "{said}"
    );
}

#[test]
fn options_that_are_not_there_yet() {
    let sandbox = plain();
    assert_eq!(
        mount_changes_nothing(&sandbox, &["--mount-backend", "nfs"]),
        "× the mount backend `nfs` is not available\nhelp: available is `fuse`, which `auto` takes"
    );
    let writable = "× writable mounts are not there yet\n\
                    help: leave `--writable` and PIXI_MOUNT_READ_ONLY away to mount read-only";
    assert_eq!(mount_changes_nothing(&sandbox, &["--writable"]), writable);
    for (value, expected) in [
        ("false", writable),
        (
            "maybe",
            "× the environment variable PIXI_MOUNT_READ_ONLY has the value `maybe`, expected `true` or `false`",
        ),
    ] {
        let mut command = sandbox.command("pixi-mount");
        command.env("PIXI_MOUNT_READ_ONLY", value);
        assert_eq!(refusal(&sandbox, command), expected);
    }
}

#[test]
fn wrong_usage_is_status_2() {
    let sandbox = plain();
    for arguments in [
        &["--no-such-flag"][..],
        &["--read-only", "--writable"],
        &["--list", "--replace"],
        &["--json"],
        &["--detach"],
        &["--mount-backend", "smb"],
    ] {
        let output = sandbox
            .command("pixi-mount")
            .args(arguments)
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
    }
}

/// The command in a name space of its own whose `/dev` has nothing in it. Only root can make one.
fn without_devices(command: &Command) -> Command {
    let mut alone = Command::new("unshare");
    alone.args([
        "--mount",
        "sh",
        "-c",
        "mount -t tmpfs none /dev && exec \"$@\"",
        "sh",
    ]);
    alone.arg(command.get_program()).args(command.get_args());
    alone.env_clear();
    alone.envs(
        command
            .get_envs()
            .filter_map(|(name, value)| Some((name, value?))),
    );
    alone.current_dir(command.get_current_dir().unwrap());
    alone
}

#[test]
fn a_system_without_fuse() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("only root can take /dev/fuse away: 1 test skipped");
        return;
    }
    let sandbox = plain();
    let command = without_devices(&sandbox.command("pixi-mount"));
    let said = refusal(&sandbox, command);
    assert_eq!(
        said,
        "× /dev/fuse does not exist: this system offers no FUSE\n\
         help: load the kernel's module with `modprobe fuse`; a container needs `--device /dev/fuse`"
    );
    assert!(!sandbox.prefix().exists());
}

#[test]
fn an_ordinary_user_without_fusermount() {
    if !fuse_or_skip(1) {
        return;
    }
    let sandbox = plain();
    let mut command = sandbox.command("pixi-mount");
    command.env("PATH", sandbox.folder.join("nothing"));
    if rustix::process::geteuid().is_root() {
        sandbox.give_to(65534);
        command.uid(65534).gid(65534);
    }
    let said = refusal(&sandbox, command);
    assert_eq!(
        said,
        "× fusermount3 was not found, and only root mounts without it\n\
         help: install it: the package is called `fuse3` on most systems"
    );
    assert!(!sandbox.prefix().exists());
}
