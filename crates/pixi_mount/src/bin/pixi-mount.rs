//! `pixi-mount`: what `pixi mount` runs.

fn main() -> std::process::ExitCode {
    pixi_mount::cli::run_mount()
}
