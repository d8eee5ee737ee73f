//! What the benchmark says: a table, and the same as JSON.

use std::{
    fmt,
    path::{Path, PathBuf},
};

use miette::IntoDiagnostic;
use serde::Serialize;

use super::{
    Samples,
    column::{Bench, Column},
    statistics::Median,
};

/// The report: what was measured, on what, and how it compares.
#[derive(Serialize)]
pub(super) struct Report {
    machine: Machine,
    corpus: CorpusSize,
    rows: Vec<Row>,
    ratios: Vec<Ratio>,
}

#[derive(Serialize)]
struct Machine {
    cpu: String,
    cpus: usize,
    memory_bytes: u64,
    kernel: String,
    file_system: String,
}

#[derive(Serialize)]
struct CorpusSize {
    packages: usize,
    files: usize,
    bytes: u64,
}

/// `median`, `low` and `high` in `unit`: seconds or bytes.
#[derive(Serialize)]
struct Row {
    row: String,
    column: String,
    unit: &'static str,
    n: usize,
    median: f64,
    low: f64,
    high: f64,
}

#[derive(Serialize)]
struct Ratio {
    row: String,
    of: String,
    to: String,
    median: f64,
    low: f64,
    high: f64,
}

impl Report {
    pub(super) fn new(
        bench: &Bench,
        rows: &[String],
        columns: &[Column],
        samples: &Samples,
    ) -> miette::Result<Self> {
        let of = |row: &String, column: Column| samples.get(&(row.clone(), column));
        let measured = rows.iter().flat_map(|row| {
            let columns = columns.iter();
            columns.filter_map(move |&column| {
                let Median {
                    n,
                    median,
                    low,
                    high,
                } = Median::of(of(row, column)?);
                let unit = if row.starts_with("memory") { "B" } else { "s" };
                Some(Row {
                    row: row.clone(),
                    column: column.to_string(),
                    unit,
                    n,
                    median,
                    low,
                    high,
                })
            })
        });
        let ratio =
            |row: &String, (a, of_row): (Column, &String), (b, to_row): (Column, &String)| {
                let Median {
                    median, low, high, ..
                } = Median::of_ratios(of(of_row, a)?, of(to_row, b)?);
                let cold = if of_row == to_row { "" } else { ".cold" };
                Some(Ratio {
                    row: row.clone(),
                    of: a.to_string(),
                    to: format!("{b}{cold}"),
                    median,
                    low,
                    high,
                })
            };
        let mut ratios = Vec::new();
        for row in rows {
            for &of in columns {
                for &to in columns {
                    let is_mount = !matches!(of, Column::Installed | Column::RattlerVfs);
                    if of != to
                        && (to == Column::Installed || (is_mount && to == Column::RattlerVfs))
                    {
                        ratios.extend(ratio(row, (of, row), (to, row)));
                    }
                }
                // A first look at a mount is to be compared with a first look at files that nobody has looked at.
                if of != Column::Installed && row.ends_with(".first") {
                    ratios.extend(ratio(
                        row,
                        (of, row),
                        (Column::Installed, &format!("{row}.cold")),
                    ));
                }
            }
        }
        let corpus = &bench.corpus;
        Ok(Self {
            machine: Machine::this(&corpus.manifest())?,
            corpus: CorpusSize {
                packages: corpus.packages(),
                files: corpus.files(),
                bytes: corpus.bytes(),
            },
            rows: measured.collect(),
            ratios,
        })
    }
}

impl fmt::Display for Report {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Machine {
            cpu,
            cpus,
            memory_bytes,
            kernel,
            file_system,
        } = &self.machine;
        let gigabytes = memory_bytes / 1_000_000_000;
        writeln!(
            formatter,
            "{cpus} × {cpu}, {gigabytes} GB, Linux {kernel}, {file_system}"
        )?;
        let CorpusSize {
            packages,
            files,
            bytes,
        } = &self.corpus;
        writeln!(
            formatter,
            "{packages} packages, {files} files, {} MB\n",
            bytes / 1_000_000
        )?;
        writeln!(
            formatter,
            "{:20}{:16}{:>12}{:>24}{:>6}",
            "row", "column", "median", "95 % interval", "n"
        )?;
        for Row {
            row,
            column,
            unit,
            n,
            median,
            low,
            high,
        } in &self.rows
        {
            let (scale, unit) = if *unit == "B" {
                (1e-6, "MB")
            } else {
                (1.0, "s")
            };
            let [median, low, high] = [median, low, high].map(|value| value * scale);
            let interval = format!("{low:.3} to {high:.3} {unit}");
            writeln!(
                formatter,
                "{row:20}{column:16}{:>12}{interval:>24}{n:>6}",
                format!("{median:.3} {unit}")
            )?;
        }
        writeln!(
            formatter,
            "\n{:20}{:40}{:>8}{:>18}",
            "row", "ratio", "median", "95 % interval"
        )?;
        for Ratio {
            row,
            of,
            to,
            median,
            low,
            high,
        } in &self.ratios
        {
            let (name, interval) = (format!("{of} / {to}"), format!("{low:.2} to {high:.2}"));
            writeln!(formatter, "{row:20}{name:40}{median:>8.2}{interval:>18}")?;
        }
        Ok(())
    }
}

impl Machine {
    fn this(path: &Path) -> miette::Result<Self> {
        let read = |path: &str| fs_err::read_to_string(path).into_diagnostic();
        let field = |text: &str, name: &str| {
            let line = text.lines().find(|line| line.starts_with(name))?;
            Some(line.split(':').nth(1)?.trim().to_owned())
        };
        let memory = field(&read("/proc/meminfo")?, "MemTotal").unwrap_or_default();
        let kilobytes: u64 = memory.trim_end_matches(" kB").parse().unwrap_or(0);
        Ok(Self {
            cpu: field(&read("/proc/cpuinfo")?, "model name")
                .unwrap_or_else(|| std::env::consts::ARCH.to_owned()),
            cpus: std::thread::available_parallelism()
                .into_diagnostic()?
                .get(),
            memory_bytes: kilobytes * 1024,
            kernel: read("/proc/sys/kernel/osrelease")?.trim().to_owned(),
            file_system: file_system(path, &read("/proc/self/mounts")?),
        })
    }
}

/// The type of the file system that a path is on: that of the longest mount point above it.
fn file_system(path: &Path, table: &str) -> String {
    let mounts = table.lines().filter_map(|line| {
        let mut fields = line.split(' ').skip(1);
        Some((PathBuf::from(fields.next()?), fields.next()?))
    });
    let above = mounts.filter(|(mount_point, _)| path.starts_with(mount_point));
    let longest = above.max_by_key(|(mount_point, _)| mount_point.components().count());
    longest.map_or_else(|| "unknown".to_owned(), |(_, kind)| kind.to_owned())
}
