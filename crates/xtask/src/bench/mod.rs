//! `cargo xtask bench`: mounts measured against installations.
//!
//! A column is made ready, walked twice and read twice, in this order, each by a fresh process; then the next column's
//! turn comes. That is one pair; ratios are taken within it, so that what the machine does meanwhile falls on both.
//! Before each column the package files are in the page cache; for the `.cold` rows instead all caches are dropped before
//! the environment is made, before its first walk and before its first read.

mod column;
mod report;
mod statistics;

use std::{collections::BTreeMap, path::PathBuf};

use clap::{Args, ValueEnum};
use miette::{IntoDiagnostic, bail};

use crate::{interruption, place};
use column::{Bench, Column};
use report::Report;

/// Options of the benchmark.
#[derive(Args)]
pub(crate) struct Options {
    /// Which corpus to measure
    #[arg(long, value_enum, default_value = "large")]
    corpus: CorpusSize,
    /// The rows to measure, among ready.first, walk.first, walk.again, read.first, read.again, each also with .cold, and
    /// memory.server [default: those without .cold]
    #[arg(long, value_delimiter = ',', value_name = "ROWS")]
    rows: Vec<String>,
    /// The columns to measure
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        value_name = "COLUMNS",
        default_value = "installed,mounted,rattler_vfs"
    )]
    columns: Vec<ColumnName>,
    /// How many interleaved pairs to measure
    #[arg(long, default_value_t = 15)]
    pairs: usize,
    /// Mount as an ordinary user (nobody) instead of root
    #[arg(long)]
    as_user: bool,
    /// Also write the report to a file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

#[derive(ValueEnum, Clone, Copy)]
enum CorpusSize {
    Small,
    Large,
}

#[derive(ValueEnum, Clone, Copy, PartialEq, Eq)]
#[value(rename_all = "snake_case")]
enum ColumnName {
    Installed,
    #[value(aliases = ["mounted.root", "mounted.user"])]
    Mounted,
    RattlerVfs,
}

/// The rows of one kind of caches.
const ROWS: [&str; 5] = [
    "ready.first",
    "walk.first",
    "walk.again",
    "read.first",
    "read.again",
];

/// The rows of a server's memory, at the end and at most.
const MEMORY_ROWS: [&str; 2] = ["memory.server", "memory.server.peak"];

/// Every measurement: row and column to one number a pair.
type Samples = BTreeMap<(String, Column), Vec<f64>>;

/// Measures, prints a table, and writes the report.
pub(crate) fn run(options: &Options) -> miette::Result<()> {
    let known =
        |row: &str| ROWS.contains(&row.trim_end_matches(".cold")) || MEMORY_ROWS.contains(&row);
    if let Some(row) = options.rows.iter().find(|row| !known(row)) {
        bail!("there is no row {row}");
    }
    let rows: Vec<String> = match options.rows.as_slice() {
        [] => ROWS
            .iter()
            .chain(&MEMORY_ROWS)
            .map(ToString::to_string)
            .collect(),
        rows => rows.to_vec(),
    };
    let size = match options.corpus {
        CorpusSize::Small => corpus::wheels::Size::Small,
        CorpusSize::Large => corpus::wheels::Size::Large,
    };
    let columns: Vec<Column> = options
        .columns
        .iter()
        .map(|name| match (name, options.as_user) {
            (ColumnName::Installed, _) => Column::Installed,
            (ColumnName::Mounted, false) => Column::MountedRoot,
            (ColumnName::Mounted, true) => Column::MountedUser,
            (ColumnName::RattlerVfs, _) => Column::RattlerVfs,
        })
        .collect();

    let corpus = place::make_corpus(size, &place::corpus_folder())?;
    let bench = Bench::new(corpus, &columns)?;
    interruption::watch()?;
    let mut samples = Samples::new();
    let (cold, warm): (Vec<&str>, Vec<&str>) = rows
        .iter()
        .map(String::as_str)
        .partition(|row| row.ends_with(".cold"));
    for pair in 0..options.pairs {
        for (rows, is_cold) in [(&warm, false), (&cold, true)] {
            if rows.is_empty() {
                continue;
            }
            // Whoever comes first is another each time.
            for at in 0..columns.len() {
                let column = columns[(at + pair) % columns.len()];
                eprintln!(
                    "Pair {} of {}: {column}{}",
                    pair + 1,
                    options.pairs,
                    if is_cold { ", cold" } else { "" }
                );
                for (row, value) in bench.measure(column, rows, is_cold)? {
                    samples.entry((row, column)).or_default().push(value);
                }
            }
        }
    }
    let report = Report::new(&bench, &rows, &columns, &samples)?;
    println!("{report}");
    if let Some(path) = &options.json {
        fs_err::write(path, serde_json::to_vec_pretty(&report).into_diagnostic()?)
            .into_diagnostic()?;
    }
    Ok(())
}
