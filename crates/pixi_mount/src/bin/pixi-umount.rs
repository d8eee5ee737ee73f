//! `pixi-umount`: what `pixi umount` runs.

fn main() -> std::process::ExitCode {
    pixi_mount::cli::run_umount()
}
