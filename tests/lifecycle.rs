//! How mounts come and go: signals, commands, dead servers, other users.

mod support;

use std::{
    fs,
    io::{BufRead, BufReader},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use corpus::workspace::{Location, Workspace};
use rattler_fs::fuse::mount_table;
use rustix::process::Signal;
use serde_json::{Value, json};
use support::{Mounted, Sandbox, fuse_or_skip};

/// Users that every system has: `nobody` and `daemon`.
const NOBODY: u32 = 65534;
const DAEMON: u32 = 1;

fn sandbox() -> Option<Sandbox> {
    fuse_or_skip(1).then(|| Sandbox::with_kind("plain"))
}

/// Other users can only be played by root.
fn sandbox_of_an_ordinary_user() -> Option<Sandbox> {
    if !rustix::process::geteuid().is_root() {
        eprintln!("only root can play other users: 1 test skipped");
        return None;
    }
    let sandbox = sandbox()?;
    sandbox.give_to(NOBODY);
    Some(sandbox)
}

fn is_mounted(path: &Path) -> bool {
    mount_table::find(path).unwrap().is_some()
}

/// Exit code and what was said on standard error.
fn run(mut command: Command) -> (Option<i32>, String) {
    let output = command.stdin(Stdio::null()).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    (output.status.code(), said)
}

fn umount(sandbox: &Sandbox, arguments: &[&str]) -> (Option<i32>, String) {
    let mut command = sandbox.command("pixi-umount");
    command.args(arguments);
    run(command)
}

fn list(sandbox: &Sandbox) -> Vec<Value> {
    let output = sandbox
        .command("pixi-mount")
        .args(["--list", "--json"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let mounts: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    // Other tests and people mount, too.
    let is_ours = |mount: &Value| {
        let path = mount["mount_point"].as_str().unwrap();
        Path::new(path).starts_with(&sandbox.folder)
    };
    mounts.into_iter().filter(is_ours).collect()
}

/// A process whose current folder is in the mount, until it is dropped.
struct Inhabitant(Child);

impl Inhabitant {
    fn of(folder: &Path) -> Self {
        let mut command = Command::new("cat");
        command.current_dir(folder).stdin(Stdio::piped());
        Self(command.spawn().unwrap())
    }

    fn named(&self) -> String {
        format!("cat ({})", self.0.id())
    }
}

impl Drop for Inhabitant {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

/// Leaves a mount behind whose server was killed.
fn dead_mount(sandbox: &Sandbox) {
    sandbox.mount().stop(Signal::KILL);
    assert!(is_mounted(&sandbox.prefix()));
}

fn install(path: &Path) {
    fs::create_dir_all(path.join("conda-meta")).unwrap();
    fs::write(path.join("conda-meta/history"), "installed").unwrap();
}

fn is_installed(path: &Path) -> bool {
    fs::read_to_string(path.join("conda-meta/history")).is_ok_and(|text| text == "installed")
}

#[test]
fn signals_unmount_and_leave_nothing() {
    for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
        let Some(sandbox) = sandbox() else { return };
        let mounted = sandbox.mount();
        let prefix = sandbox.prefix();
        assert_eq!(
            mounted.greeting,
            format!(
                "Mounted {} (1 packages, 10 files, fuse, read-only). Press Ctrl+C to unmount.\n",
                prefix.display()
            )
        );
        assert!(prefix.join("bin/hello").exists());
        let (code, said) = mounted.stop(signal);
        assert_eq!(code, Some(0), "{said}");
        assert_eq!(said, format!("Unmounted {}\n", prefix.display()));
        assert!(!is_mounted(&prefix));
        assert!(!prefix.parent().unwrap().exists());
    }
}

#[test]
fn a_mount_that_is_in_use_takes_a_second_ctrl_c() {
    let Some(sandbox) = sandbox() else { return };
    let mut mounted = sandbox.mount();
    let prefix = sandbox.prefix();
    let inhabitant = Inhabitant::of(&prefix.join("share"));
    mounted.signal(Signal::INT);
    assert_eq!(
        mounted.line(),
        format!("{} is in use by {}.", prefix.display(), inhabitant.named())
    );
    assert_eq!(mounted.line(), "Press Ctrl+C again to unmount it anyway.");
    assert!(prefix.join("bin/hello").exists());
    let (code, said) = mounted.stop(Signal::INT);
    assert_eq!(code, Some(0), "{said}");
    assert!(!is_mounted(&prefix));
}

#[test]
fn who_asks_again_once_it_is_free_gets_a_clean_end() {
    let Some(sandbox) = sandbox() else { return };
    let mut mounted = sandbox.mount();
    let inhabitant = Inhabitant::of(&sandbox.prefix());
    mounted.signal(Signal::INT);
    mounted.line();
    mounted.line();
    drop(inhabitant);
    let (code, said) = mounted.stop(Signal::INT);
    assert_eq!(code, Some(0), "{said}");
    assert!(!sandbox.prefix().exists());
}

#[test]
fn a_service_is_stopped_although_its_mount_is_in_use() {
    for signal in [Signal::TERM, Signal::HUP] {
        let Some(sandbox) = sandbox() else { return };
        let mounted = sandbox.mount();
        let _inhabitant = Inhabitant::of(&sandbox.prefix());
        let (code, said) = mounted.stop(signal);
        assert_eq!(code, Some(0), "{said}");
        assert!(!is_mounted(&sandbox.prefix()));
        assert!(!sandbox.prefix().exists());
    }
}

#[test]
fn umount_unmounts() {
    let Some(sandbox) = sandbox() else { return };
    let mut mounted = sandbox.mount();
    let unmounted = format!("Unmounted {}\n", sandbox.prefix().display());
    assert_eq!(umount(&sandbox, &[]), (Some(0), unmounted.clone()));
    assert_eq!(mounted.wait(), (Some(0), unmounted));
    assert!(!sandbox.prefix().exists());

    let (code, said) = umount(&sandbox, &[]);
    assert_eq!(code, Some(1));
    let message = format!("× nothing is mounted at {}", sandbox.prefix().display());
    assert!(said.contains(&message), "{said}");
}

#[test]
fn umount_refuses_while_the_mount_is_in_use() {
    let Some(sandbox) = sandbox() else { return };
    let mut mounted = sandbox.mount();
    let prefix = sandbox.prefix();
    let inhabitant = Inhabitant::of(&prefix);
    let (code, said) = umount(&sandbox, &[]);
    assert_eq!(code, Some(3), "{said}");
    assert_eq!(
        said,
        format!(
            "{} is in use by {}.\n`--force` unmounts it anyway.\n",
            prefix.display(),
            inhabitant.named()
        )
    );
    assert!(prefix.join("bin/hello").exists());
    let (code, said) = umount(&sandbox, &["--force"]);
    assert_eq!(code, Some(0), "{said}");
    assert!(!is_mounted(&prefix));
    // The server goes with the last process that uses the mount.
    drop(inhabitant);
    assert_eq!(mounted.wait().0, Some(0));
}

#[test]
fn a_dead_mount_is_cleared_by_umount() {
    let Some(sandbox) = sandbox() else { return };
    dead_mount(&sandbox);
    let (code, said) = umount(&sandbox, &[]);
    assert_eq!((code, said.lines().count()), (Some(0), 1), "{said}");
    assert!(!is_mounted(&sandbox.prefix()));
}

#[test]
fn a_dead_mount_is_cleared_although_a_process_lives_in_it() {
    let Some(sandbox) = sandbox() else { return };
    let mounted = sandbox.mount();
    let _inhabitant = Inhabitant::of(&sandbox.prefix());
    mounted.stop(Signal::KILL);
    let (code, said) = umount(&sandbox, &[]);
    assert_eq!(code, Some(0), "{said}");
    assert!(!is_mounted(&sandbox.prefix()));
}

/// As a user who has no other mounts: those of other tests and of people are to stay.
#[test]
fn all_mounts_of_a_user_are_unmounted() {
    let Some(sandbox) = sandbox_of_an_ordinary_user() else {
        return;
    };
    sandbox.give_to(DAEMON);
    let as_user = |program: &str, arguments: &[&str]| {
        let mut command = sandbox.command(program);
        command.args(arguments).uid(DAEMON).gid(DAEMON);
        command
    };
    let mut alive = Mounted::start(as_user("pixi-mount", &[])).unwrap();
    let dead = Mounted::start(as_user("pixi-mount", &["--mount-point", "dead"])).unwrap();
    dead.stop(Signal::KILL);
    let (code, said) = run(as_user("pixi-umount", &["--all"]));
    assert_eq!((code, said.lines().count()), (Some(0), 2), "{said}");
    assert_eq!(alive.wait().0, Some(0));
    assert!(!is_mounted(&sandbox.prefix()));
    assert!(!is_mounted(&sandbox.workspace().join("dead")));
    assert_eq!(
        run(as_user("pixi-umount", &["--all"])),
        (Some(0), String::new())
    );
}

#[test]
fn a_dead_mount_is_cleared_by_the_next_mount() {
    let Some(sandbox) = sandbox() else { return };
    dead_mount(&sandbox);
    let mounted = sandbox.mount();
    assert!(sandbox.prefix().join("bin/hello").exists());
    let (code, said) = mounted.stop(Signal::INT);
    assert_eq!(code, Some(0), "{said}");
    assert!(!is_mounted(&sandbox.prefix()));
}

#[test]
fn a_server_that_hangs_does_not_take_others_with_it() {
    let Some(sandbox) = sandbox() else { return };
    let mounted = sandbox.mount();
    mounted.signal(Signal::STOP);
    assert_eq!(list(&sandbox)[0]["state"], "stale");
    let (code, said) = run(sandbox.command("pixi-mount"));
    assert_eq!(code, Some(1));
    assert!(said.contains("but its server does not answer"), "{said}");
    let (code, said) = umount(&sandbox, &["--force"]);
    assert_eq!(code, Some(0), "{said}");
    assert!(!is_mounted(&sandbox.prefix()));
    mounted.signal(Signal::CONT);
}

#[test]
fn mounts_are_listed() {
    let Some(sandbox) = sandbox() else { return };
    assert_eq!(list(&sandbox), [] as [Value; 0]);
    let mounted = sandbox.mount();
    let expected = |state: &str| {
        json!([{
            "workspace": "made",
            "environment": "default",
            "mount_point": sandbox.prefix(),
            "pid": null,
            "transport": "fuse",
            "read_only": true,
            "state": state,
        }])
    };
    assert_eq!(json!(list(&sandbox)), expected("ready"));
    let output = sandbox
        .command("pixi-rattlerfs")
        .args(["mount", "--list"])
        .output()
        .unwrap();
    let table = String::from_utf8(output.stdout).unwrap();
    let path = sandbox.prefix().display().to_string();
    assert!(
        table
            .lines()
            .any(|line| line.starts_with("made ") && line.ends_with(&path)),
        "{table}"
    );
    mounted.stop(Signal::KILL);
    assert_eq!(json!(list(&sandbox)), expected("stale"));
}

#[test]
fn an_installed_environment_comes_back_after_the_mount() {
    let Some(sandbox) = sandbox() else { return };
    let prefix = sandbox.prefix();
    let aside = prefix.with_file_name("default.installed");
    install(&prefix);
    let mounted = sandbox.mount_with(["--replace"]);
    assert!(is_installed(&aside) && !is_installed(&prefix));
    assert!(prefix.join("bin/hello").exists());
    let (code, said) = mounted.stop(Signal::INT);
    assert_eq!(code, Some(0), "{said}");
    assert!(is_installed(&prefix) && !aside.exists());

    // When the server died, whoever clears the mount brings it back.
    sandbox.mount_with(["--replace"]).stop(Signal::KILL);
    assert!(is_installed(&aside));
    let (code, said) = umount(&sandbox, &[]);
    assert_eq!(code, Some(0), "{said}");
    assert!(is_installed(&prefix) && !aside.exists());

    sandbox.mount_with(["--replace"]).stop(Signal::KILL);
    let (code, said) = sandbox.mount().stop(Signal::INT);
    assert_eq!(code, Some(0), "{said}");
    assert!(is_installed(&prefix) && !aside.exists());
}

#[test]
fn one_of_two_wins() {
    let Some(sandbox) = sandbox() else { return };
    let start = || Mounted::start(sandbox.command("pixi-mount"));
    let (mut one, mut other) = std::thread::scope(|scope| {
        let (one, other) = (scope.spawn(start), scope.spawn(start));
        (one.join().unwrap(), other.join().unwrap())
    });
    if one.is_err() {
        std::mem::swap(&mut one, &mut other);
    }
    let Err(said) = other else {
        panic!("both have mounted at the same place")
    };
    assert!(said.starts_with("exit status: 1: "), "{said}");
    let (code, said) = one.unwrap().stop(Signal::INT);
    assert_eq!(code, Some(0), "{said}");
    // The one that lost may have made the folder, which is not for the winner to remove then.
    assert!(!is_mounted(&sandbox.prefix()));
    assert!(fs::read_dir(sandbox.prefix()).map_or(true, |mut entries| entries.next().is_none()));
}

#[test]
fn environments_go_where_pixi_has_them() {
    if !fuse_or_skip(1) {
        return;
    }
    let sandbox = Sandbox::with_kind("plain");
    let packages = sandbox.archives(&corpus::kinds::all()[0]);
    Workspace::new(&sandbox.workspace())
        .unwrap()
        .platform("p1")
        .environment("default", &packages, &Location::fictive())
        .environment("test", &packages, &Location::RelativePath)
        .write()
        .unwrap();
    let detached = sandbox.folder.join("detached");
    let config = format!("detached-environments = {:?}", detached.to_str().unwrap());
    fs::create_dir(sandbox.workspace().join(".pixi")).unwrap();
    fs::write(sandbox.workspace().join(".pixi/config.toml"), config).unwrap();

    let manifest = sandbox.workspace().join("pixi.toml");
    let named = ["-e", "test", "--manifest-path", manifest.to_str().unwrap()];
    let mut command = sandbox.command("pixi-mount");
    command.args(named).current_dir("/");
    let mut mounted = Mounted::start(command).unwrap();
    let path = PathBuf::from(list(&sandbox)[0]["mount_point"].as_str().unwrap());
    assert!(
        path.starts_with(&detached) && path.ends_with("envs/test"),
        "{path:?}"
    );
    // The workspace's own folder leads there.
    let link = sandbox.workspace().join(".pixi/envs/test");
    assert_eq!(link.canonicalize().unwrap(), path);
    let prefix = fs::read_to_string(link.join("conda-meta/pixi_env_prefix")).unwrap();
    assert_eq!(Path::new(&prefix), path.join("conda-meta"));
    let (code, said) = umount(&sandbox, &named);
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(mounted.wait().0, Some(0));
    assert!(!detached.exists());

    // A place of one's own, named by a path with a symlink in it.
    fs::create_dir_all(sandbox.folder.join("real")).unwrap();
    std::os::unix::fs::symlink("real", sandbox.folder.join("link")).unwrap();
    let mut mounted = sandbox.mount_with(["--mount-point", "../link/here"]);
    let here = sandbox.folder.join("real/here");
    let prefix = fs::read_to_string(here.join("conda-meta/pixi_env_prefix")).unwrap();
    assert_eq!(Path::new(&prefix), here.join("conda-meta"));
    let (code, said) = umount(&sandbox, &["--mount-point", "../link/here"]);
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(mounted.wait().0, Some(0));
}

#[test]
fn an_ordinary_user_mounts_and_others_stay_out() {
    let Some(sandbox) = sandbox_of_an_ordinary_user() else {
        return;
    };
    let as_user = |program: &str, uid: u32| {
        let mut command = sandbox.command(program);
        command.uid(uid).gid(uid);
        command
    };
    // The others have to get as far as the mount.
    open(&sandbox.folder);
    let mut mounted = Mounted::start(as_user("pixi-mount", NOBODY)).unwrap();
    let prefix = sandbox.prefix();
    let cat = |uid: u32| {
        let mut command = Command::new("cat");
        command
            .arg(prefix.join("conda-meta/history"))
            .uid(uid)
            .gid(uid);
        command.output().unwrap().status.success()
    };
    assert!(cat(NOBODY));
    assert!(!cat(DAEMON));
    assert!(!cat(0));

    let named = "pixi:made/default is already mounted at";
    let (code, said) = run(as_user("pixi-mount", DAEMON));
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains(named) && said.contains("by nobody"), "{said}");
    let (code, said) = run(as_user("pixi-umount", DAEMON));
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("by nobody"), "{said}");
    let (code, said) = run(as_user("pixi-mount", 0));
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains(named), "{said}");

    let (code, said) = run(as_user("pixi-umount", NOBODY));
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(mounted.wait().0, Some(0));
    assert!(!prefix.exists());
}

#[test]
fn an_ordinary_user_clears_dead_mounts() {
    let Some(sandbox) = sandbox_of_an_ordinary_user() else {
        return;
    };
    let as_user = |program: &str| {
        let mut command = sandbox.command(program);
        command.uid(NOBODY).gid(NOBODY);
        command
    };
    for clear in ["pixi-umount", "pixi-mount"] {
        let mounted = Mounted::start(as_user("pixi-mount")).unwrap();
        mounted.stop(Signal::KILL);
        assert!(is_mounted(&sandbox.prefix()));
        if clear == "pixi-umount" {
            let (code, said) = run(as_user(clear));
            assert_eq!(code, Some(0), "{said}");
        } else {
            let mounted = Mounted::start(as_user(clear)).unwrap();
            let (code, said) = mounted.stop(Signal::TERM);
            assert_eq!(code, Some(0), "{said}");
        }
        assert!(!is_mounted(&sandbox.prefix()));
    }
}

#[test]
fn root_lets_everybody_in() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("only root can play other users: 1 test skipped");
        return;
    }
    let Some(sandbox) = sandbox() else { return };
    open(&sandbox.folder);
    let mounted = sandbox.mount();
    let mut command = Command::new(sandbox.prefix().join("bin/hello"));
    let output = command.uid(NOBODY).gid(NOBODY).output().unwrap();
    assert_eq!(output.stdout, b"hello\n", "{output:?}");
    let (code, said) = mounted.stop(Signal::INT);
    assert_eq!(code, Some(0), "{said}");
}

/// Lets everybody look into a folder.
fn open(folder: &Path) {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(folder, fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn a_standard_error_that_nobody_reads_any_more_ends_nothing() {
    let Some(sandbox) = sandbox() else { return };
    let mut command = sandbox.command("pixi-mount");
    let mut server = command.stderr(Stdio::piped()).spawn().unwrap();
    let mut stderr = BufReader::new(server.stderr.take().unwrap());
    let mut line = String::new();
    stderr.read_line(&mut line).unwrap();
    assert!(line.starts_with("Mounted "), "{line}");
    drop(stderr);

    let full = fs::File::options().write(true).open("/dev/full").unwrap();
    let mut command = sandbox.command("pixi-umount");
    let status = command.stderr(full).status().unwrap();
    assert_eq!(status.code(), Some(0));
    assert_eq!(server.wait().unwrap().code(), Some(0));
    assert!(!is_mounted(&sandbox.prefix()));
}
