//! Progress bars for packages that have to be fetched, on a terminal.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use rattler_cache::package_cache::CacheReporter;
use rattler_conda_types::RepoDataRecord;
use rattler_fs::layout::fetch::FetchReporter;

/// Bars on standard error: one for all packages, and one for each that is under way.
///
/// Where standard error is not a terminal, nothing is drawn.
#[derive(Debug)]
pub struct FetchProgress {
    bars: MultiProgress,
    total: Mutex<Option<ProgressBar>>,
}

impl FetchProgress {
    /// Bars that are not there before something is missing.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Arc::new(Self {
            bars: MultiProgress::with_draw_target(ProgressDrawTarget::stderr()),
            total: Mutex::new(None),
        })
    }
}

impl FetchReporter for FetchProgress {
    fn on_missing(&self, records: &[&RepoDataRecord]) {
        let bar = self.bars.add(ProgressBar::new(records.len() as u64));
        bar.set_style(style(
            "{spinner:.green} fetching packages [{bar:20}] {pos}/{len}",
        ));
        bar.enable_steady_tick(Duration::from_millis(100));
        *lock(&self.total) = Some(bar);
    }

    fn on_package(&self, record: &RepoDataRecord) -> Option<Arc<dyn CacheReporter>> {
        let total = lock(&self.total).clone()?;
        Some(Arc::new(PackageProgress {
            bars: self.bars.clone(),
            name: record.package_record.name.as_source().to_string(),
            total,
            downloads: Mutex::default(),
        }))
    }

    fn on_finished(&self) {
        if let Some(bar) = lock(&self.total).take() {
            bar.finish_and_clear();
        }
        // The bars of packages that an error left behind.
        let _ = self.bars.clear();
    }
}

struct PackageProgress {
    bars: MultiProgress,
    name: String,
    total: ProgressBar,
    downloads: Mutex<HashMap<usize, ProgressBar>>,
}

impl CacheReporter for PackageProgress {
    fn on_validate_start(&self) -> usize {
        0
    }

    fn on_validate_complete(&self, _index: usize) {}

    fn on_download_start(&self) -> usize {
        let bar = self.bars.add(ProgressBar::new(0));
        bar.set_style(style(
            "  {msg:24!} [{bar:20}] {bytes}/{total_bytes} at {bytes_per_sec}",
        ));
        bar.set_message(self.name.clone());
        let mut downloads = lock(&self.downloads);
        let index = downloads.len();
        downloads.insert(index, bar);
        index
    }

    fn on_download_progress(&self, index: usize, progress: u64, total: Option<u64>) {
        if let Some(bar) = lock(&self.downloads).get(&index) {
            bar.set_length(total.unwrap_or(progress));
            bar.set_position(progress);
        }
    }

    fn on_download_completed(&self, index: usize) {
        if let Some(bar) = lock(&self.downloads).get(&index) {
            bar.finish_and_clear();
        }
        self.total.inc(1);
    }
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template)
        .unwrap_or_else(|_| ProgressStyle::default_bar())
        .progress_chars("=> ")
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A bar that was drawn half is still a bar.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
