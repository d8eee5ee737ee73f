//! `pixi-rattlerfs`: all commands under one name, where no pixi is installed.

fn main() -> std::process::ExitCode {
    pixi_mount::cli::run_rattlerfs()
}
