//! Lock files that were damaged on the way: an error, never a panic. The fuzz target `lock_file` goes further.

mod support;

use corpus::workspace::{Location, LockVersion, Workspace};
use proptest::prelude::*;
use rattler_fs::layout::{self, fetch::CachedPackage, lock_file};
use support::options;

/// Texts of whole lock files, one of each version.
fn lock_files() -> Vec<Vec<u8>> {
    let folder = tempfile::tempdir().unwrap();
    let kind = corpus::kinds::all()
        .into_iter()
        .find(|kind| kind.name == "noarch-python")
        .unwrap();
    let built: Vec<_> = kind
        .packages
        .iter()
        .map(|package| package.write(folder.path(), kind.format).unwrap())
        .collect();
    [LockVersion::V6, LockVersion::V7]
        .map(|version| {
            let workspace = Workspace::new(folder.path())
                .unwrap()
                .lock_version(version)
                .environment("default", &built, &Location::fictive())
                .environment("other", &built[..1], &Location::RelativePath);
            workspace.write().unwrap();
            std::fs::read(workspace.lock_file()).unwrap()
        })
        .to_vec()
}

/// Goes from a lock file's bytes as far as they lead. Returns how many environments were laid out or refused.
fn lay_out(bytes: &[u8]) -> usize {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pixi.lock");
    std::fs::write(&path, bytes).unwrap();
    let Ok(lock) = lock_file::read(&path) else {
        return 0;
    };
    let mut reached = 0;
    for (environment, _) in lock.environments() {
        for platform in lock.platforms() {
            let Ok(selected) =
                lock_file::select(&lock, &path, environment, platform.name().as_str())
            else {
                continue;
            };
            let packages = selected.packages.into_iter().map(|package| CachedPackage {
                record: package.record,
                dir: folder.path().join("no such package"),
            });
            let _ = layout::build(packages.collect(), &options());
            reached += 1;
        }
    }
    reached
}

#[derive(Debug, Clone)]
enum Damage {
    Byte(usize, u8),
    Cut(usize),
    Drop(usize),
    Double(usize),
    Swap(usize, usize),
}

impl Damage {
    fn apply(&self, bytes: &mut Vec<u8>) {
        let mut lines: Vec<Vec<u8>> = bytes
            .split(|&byte| byte == b'\n')
            .map(<[u8]>::to_vec)
            .collect();
        let (len, count) = (bytes.len().max(1), lines.len());
        match *self {
            Self::Byte(at, byte) => {
                if let Some(target) = bytes.get_mut(at % len) {
                    *target = byte;
                }
                return;
            }
            Self::Cut(at) => return bytes.truncate(at % len),
            Self::Drop(line) => drop(lines.remove(line % count)),
            Self::Double(line) => lines.insert(line % count, lines[line % count].clone()),
            Self::Swap(a, b) => lines.swap(a % count, b % count),
        }
        *bytes = lines.join(&b'\n');
    }
}

fn damage() -> impl Strategy<Value = Damage> {
    prop_oneof![
        (any::<usize>(), any::<u8>()).prop_map(|(at, byte)| Damage::Byte(at, byte)),
        any::<usize>().prop_map(Damage::Cut),
        any::<usize>().prop_map(Damage::Drop),
        any::<usize>().prop_map(Damage::Double),
        (any::<usize>(), any::<usize>()).prop_map(|(a, b)| Damage::Swap(a, b)),
    ]
}

#[test]
fn whole_lock_files_reach_the_layout() {
    for bytes in lock_files() {
        assert_eq!(lay_out(&bytes), 2);
    }
}

#[test]
fn no_lock_file_is_a_panic() {
    let originals = lock_files();
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig::with_cases(600));
    let strategy = (0..originals.len(), prop::collection::vec(damage(), 1..4));
    runner
        .run(&strategy, |(which, damages)| {
            let mut bytes = originals[which].clone();
            for damage in damages {
                damage.apply(&mut bytes);
            }
            lay_out(&bytes);
            Ok(())
        })
        .unwrap();
}
