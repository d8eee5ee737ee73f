//! The command line.

mod diagnostic;
mod list;
mod mount;
mod umount;

use std::ffi::OsString;
use std::fmt::Display;
use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::builder::styling::{AnsiColor, Styles};
use clap::{Args, Parser, Subcommand};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

pub use mount::MountArgs;
pub use umount::UmountArgs;

/// Exit status of an error of ours.
const FAILURE: u8 = 1;

/// Exit status of `pixi-umount` where the mount is in use.
const IN_USE: u8 = 3;

const GLOBAL_OPTIONS: &str = "Global Options";

const STYLES: Styles = Styles::styled()
    .header(AnsiColor::Yellow.on_default().bold())
    .usage(AnsiColor::Yellow.on_default().bold())
    .literal(AnsiColor::Green.on_default().bold())
    .placeholder(AnsiColor::Green.on_default());

/// Which environment of which workspace.
#[derive(Debug, Args)]
pub struct EnvironmentArgs {
    /// The environment, `default` if none is named
    #[arg(long, short)]
    pub environment: Option<String>,

    /// The path to `pixi.toml`, `pyproject.toml`, or the workspace directory
    #[arg(long, short, value_name = "PATH", help_heading = GLOBAL_OPTIONS)]
    pub manifest_path: Option<PathBuf>,
}

/// How much is said.
#[derive(Debug, Args)]
pub struct Verbosity {
    /// Say more (-v for what is done, -vv for details, -vvv for everything)
    #[arg(long, short, action = clap::ArgAction::Count, help_heading = GLOBAL_OPTIONS)]
    verbose: u8,

    /// Say less (-q for errors only, -qq for nothing)
    #[arg(long, short, action = clap::ArgAction::Count, help_heading = GLOBAL_OPTIONS)]
    quiet: u8,
}

impl Verbosity {
    /// Whether the command says what it has done.
    fn says_what_happens(&self) -> bool {
        self.quiet == 0
    }

    fn set_up_logging(&self) {
        let level = match (self.quiet, self.verbose) {
            (0, 0) => LevelFilter::WARN,
            (0, 1) => LevelFilter::INFO,
            (0, 2) => LevelFilter::DEBUG,
            (0, _) => LevelFilter::TRACE,
            (1, _) => LevelFilter::ERROR,
            _ => LevelFilter::OFF,
        };
        let filter = EnvFilter::builder().with_default_directive(level.into());
        let filter = if self.quiet + self.verbose > 0 {
            filter.parse_lossy("")
        } else {
            filter.from_env_lossy()
        };
        tracing_subscriber::fmt()
            .with_env_filter(filter)
            .with_writer(std::io::stderr)
            .with_ansi(std::io::stderr().is_terminal())
            .with_target(false)
            .without_time()
            .init();
    }
}

#[derive(Parser)]
#[command(name = "pixi-mount", version, styles = STYLES, about = mount::ABOUT, long_about = mount::LONG_ABOUT)]
struct MountCommand {
    #[command(flatten)]
    args: MountArgs,
}

#[derive(Parser)]
#[command(name = "pixi-umount", version, styles = STYLES, about = umount::ABOUT, long_about = umount::LONG_ABOUT)]
struct UmountCommand {
    #[command(flatten)]
    args: UmountArgs,
}

/// Environments that are mounted instead of installed
///
/// Serves the environments of pixi workspaces straight from the package cache.
#[derive(Parser)]
#[command(name = "pixi-rattlerfs", version, styles = STYLES, arg_required_else_help = true)]
struct RattlerfsCommand {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    #[command(about = mount::ABOUT, long_about = mount::LONG_ABOUT)]
    Mount(MountArgs),
    #[command(about = umount::ABOUT, long_about = umount::LONG_ABOUT, alias = "unmount")]
    Umount(UmountArgs),
}

/// Runs `pixi-mount` with this process's arguments.
#[must_use]
pub fn run_mount() -> ExitCode {
    let command = MountCommand::parse_from(arguments());
    run(Command::Mount(command.args))
}

/// Runs `pixi-umount` with this process's arguments.
#[must_use]
pub fn run_umount() -> ExitCode {
    let command = UmountCommand::parse_from(arguments());
    run(Command::Umount(command.args))
}

/// Runs `pixi-rattlerfs` with this process's arguments.
#[must_use]
pub fn run_rattlerfs() -> ExitCode {
    run(RattlerfsCommand::parse_from(arguments()).command)
}

fn arguments() -> impl Iterator<Item = OsString> {
    std::env::args_os()
}

/// Writes a line to standard error. Where nobody reads that any more, nothing happens: a server must not
/// end because of it, as it would with `eprintln!`.
fn say(message: impl Display) {
    let _ = writeln!(std::io::stderr(), "{message}");
}

fn run(command: Command) -> ExitCode {
    // Broken paths cannot be copied; terminals wrap by themselves.
    let _ = miette::set_hook(Box::new(|_| {
        Box::new(miette::MietteHandlerOpts::new().wrap_lines(false).build())
    }));
    let result = match command {
        Command::Mount(args) => {
            args.verbosity.set_up_logging();
            mount::run(&args)
        }
        Command::Umount(args) => {
            args.verbosity.set_up_logging();
            umount::run(&args)
        }
    };
    match result {
        Ok(code) => code,
        Err(error) => {
            let report = miette::Report::new(error);
            say(format_args!("{report:?}"));
            ExitCode::from(FAILURE)
        }
    }
}
