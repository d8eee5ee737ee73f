use std::future::Future;

/// Runs a future to its end on a thread of its own, so that callers may themselves be inside a runtime.
pub(crate) fn block_on<F>(future: F) -> F::Output
where
    F: Future + Send,
    F::Output: Send,
{
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let runtime = tokio::runtime::Builder::new_multi_thread()
                .enable_all()
                .build();
            runtime.expect("threads can be started").block_on(future)
        });
        match thread.join() {
            Ok(output) => output,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}
