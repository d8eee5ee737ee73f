//! Ctrl-C and SIGTERM: a task stops at its next step, and unmounts and removes what it made.

use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicBool, Ordering},
};

use miette::{IntoDiagnostic, bail};
use signal_hook::consts::{SIGINT, SIGTERM};

static INTERRUPTED: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// From now on, when there is something to clean up, signals are noticed by [`check`] instead of ending the process.
pub(crate) fn watch() -> miette::Result<()> {
    let flag = INTERRUPTED.get_or_init(Arc::default);
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, flag.clone()).into_diagnostic()?;
    }
    Ok(())
}

/// Fails once a signal has come.
pub(crate) fn check() -> miette::Result<()> {
    if INTERRUPTED
        .get()
        .is_some_and(|flag| flag.load(Ordering::Relaxed))
    {
        bail!("interrupted");
    }
    Ok(())
}
