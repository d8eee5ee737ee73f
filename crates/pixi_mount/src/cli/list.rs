//! `pixi-mount --list`: what this user has mounted on this machine.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use rattler_fs::fuse::mount_table::{self, MountEntry, ServerState};
use serde::Serialize;

use super::diagnostic::CommandError;
use super::mount::io;
use crate::mount_point::{FS_TYPE, PATIENCE};

/// A mount as `--list --json` shows it.
#[derive(Debug, Serialize)]
struct ListedMount {
    workspace: String,
    environment: String,
    mount_point: PathBuf,
    /// The server's, unknown where it left no record.
    pid: Option<u32>,
    transport: &'static str,
    read_only: bool,
    state: &'static str,
}

impl ListedMount {
    fn new(entry: MountEntry) -> Self {
        let state = match mount_table::server_state(&entry.mount_point, PATIENCE) {
            ServerState::Alive => "ready",
            ServerState::Dead | ServerState::Unresponsive => "stale",
        };
        let source = entry.source.strip_prefix("pixi:").unwrap_or(&entry.source);
        let (workspace, environment) = source.rsplit_once('/').unwrap_or((source, ""));
        Self {
            workspace: workspace.to_string(),
            environment: environment.to_string(),
            mount_point: entry.mount_point,
            pid: None,
            transport: "fuse",
            read_only: entry.read_only,
            state,
        }
    }
}

/// The environments that this user has mounted.
pub(super) fn own_mounts() -> Result<Vec<MountEntry>, CommandError> {
    let me = rustix::process::getuid().as_raw();
    let entries =
        mount_table::read().map_err(|source| io("cannot read the mount table", source))?;
    Ok((entries.into_iter())
        .filter(|entry| entry.fs_type == FS_TYPE && entry.user_id == Some(me))
        .collect())
}

pub(super) fn run(json: bool) -> Result<ExitCode, CommandError> {
    let mounts: Vec<ListedMount> = own_mounts()?.into_iter().map(ListedMount::new).collect();
    let text = if json {
        serde_json::to_string_pretty(&mounts).unwrap_or_default() + "\n"
    } else {
        table(&mounts)
    };
    std::io::stdout()
        .write_all(text.as_bytes())
        .map_err(|source| io("cannot write to standard output", source))?;
    Ok(ExitCode::SUCCESS)
}

fn table(mounts: &[ListedMount]) -> String {
    if mounts.is_empty() {
        return "Nothing is mounted.\n".to_string();
    }
    let rows: Vec<[String; 4]> =
        std::iter::once(["Workspace", "Environment", "State", "Mount point"].map(String::from))
            .chain(mounts.iter().map(|mount| {
                [
                    mount.workspace.clone(),
                    mount.environment.clone(),
                    mount.state.to_string(),
                    mount.mount_point.display().to_string(),
                ]
            }))
            .collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let widths: Vec<usize> = (0..3).map(|column| width(column).unwrap_or(0)).collect();
    let line = |[workspace, environment, state, mount_point]: &[String; 4]| {
        format!(
            "{workspace:0$}  {environment:1$}  {state:2$}  {mount_point}\n",
            widths[0], widths[1], widths[2]
        )
    };
    rows.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_needed() {
        let mount = |workspace: &str, mount_point: &str| ListedMount {
            workspace: workspace.into(),
            environment: "default".into(),
            mount_point: mount_point.into(),
            pid: None,
            transport: "fuse",
            read_only: true,
            state: "ready",
        };
        assert_eq!(
            table(&[mount("a-long-workspace", "/a"), mount("b", "/b c")]),
            "Workspace         Environment  State  Mount point\n\
             a-long-workspace  default      ready  /a\n\
             b                 default      ready  /b c\n"
        );
        assert_eq!(table(&[]), "Nothing is mounted.\n");
    }
}
