//! Each package takes a descriptor: the soft limit is no limit, and the hard one is a clear error.

mod support;

use std::process::Command;

use corpus::package::{Entry, Format, Package};
use rustix::process::Signal;
use support::{Mounted, Sandbox, fuse_or_skip};

/// More packages than the limits below have descriptors.
const PACKAGES: usize = 80;

fn many_packages() -> Sandbox {
    let sandbox = Sandbox::new();
    let folder = sandbox.folder.join("archives");
    std::fs::create_dir_all(&folder).unwrap();
    let packages: Vec<_> = (0..PACKAGES)
        .map(|number| {
            Package::new(&format!("package-{number}"), "1.0", "0")
                .with(Entry::file(format!("share/{number}.txt"), "text\n"))
                .write(&folder, Format::Conda)
                .unwrap()
        })
        .collect();
    sandbox.lock(&packages);
    sandbox
}

/// `pixi-mount` under a limit of open files.
fn limited(sandbox: &Sandbox, limit: &str) -> Command {
    let program = sandbox.command("pixi-mount");
    let mut command = Command::new("/bin/sh");
    command
        .arg("-c")
        .arg(format!("ulimit {limit} && exec \"$0\""))
        .arg(program.get_program())
        .env_clear()
        .current_dir(sandbox.workspace());
    for (name, value) in program.get_envs() {
        command.env(name, value.unwrap_or_default());
    }
    command
}

#[test]
fn a_soft_limit_is_raised() {
    if !fuse_or_skip(1) {
        return;
    }
    let sandbox = many_packages();
    let mounted = Mounted::start(limited(&sandbox, "-S -n 64")).unwrap();
    assert!(
        mounted.greeting.contains(&format!("({PACKAGES} packages")),
        "{}",
        mounted.greeting
    );
    assert_eq!(
        std::fs::read_dir(sandbox.prefix().join("share"))
            .unwrap()
            .count(),
        PACKAGES
    );
    assert_eq!(mounted.stop(Signal::INT).0, Some(0));
}

#[test]
fn a_hard_limit_is_one_clear_error() {
    let sandbox = many_packages();
    let output = limited(&sandbox, "-n 64").output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("ulimit -n"), "{said}");
    assert!(!said.contains("fetching"), "nothing is damaged: {said}");
}
