//! Tasks of the project: corpora, comparison, demo, benchmark.
#![expect(
    clippy::print_stdout,
    reason = "what a task finds out is what it prints"
)]

mod bench;
mod compare;
mod demo;
mod interruption;
mod mount;
mod place;
mod probe;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use corpus::wheels::Size;
use miette::IntoDiagnostic;

/// Tasks of the project.
#[derive(Parser)]
#[command(name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Make a channel, a workspace and a package cache out of wheels
    Corpus {
        #[command(flatten)]
        size: SizeArguments,
        /// Where to put it, in a folder named by its size [default: $PIXI_MOUNT_CORPUS, or `corpus` in the target folder]
        #[arg(long, value_name = "DIR")]
        out: Option<PathBuf>,
    },
    /// Install an environment, mount it at the same place, and print what differs
    Compare {
        #[command(flatten)]
        size: SizeArguments,
        /// Compare the environments that are made in code instead of a corpus
        #[arg(long, conflicts_with_all = ["small", "large"])]
        made: bool,
    },
    /// Install and mount a handful of packages made in code, and run a program in both
    Demo,
    /// Measure mounts against installations
    Bench(bench::Options),
    #[command(flatten)]
    Probe(probe::Probe),
}

#[derive(Args, Clone, Copy)]
struct SizeArguments {
    /// A dozen wheels (the default)
    #[arg(long, conflicts_with = "large")]
    small: bool,
    /// All 208 wheels
    #[arg(long)]
    large: bool,
}

impl SizeArguments {
    fn size(self) -> Size {
        if self.large { Size::Large } else { Size::Small }
    }
}

fn main() -> miette::Result<()> {
    match Cli::parse().task {
        Task::Corpus { size, out } => {
            let folder = out.unwrap_or_else(place::corpus_folder);
            let corpus = place::make_corpus(size.size(), &folder)?;
            println!(
                "{} packages, {} files, {} MB\nChannel    {}\nWorkspace  {}",
                corpus.packages(),
                corpus.files(),
                corpus.bytes() / 1_000_000,
                corpus.channel().display(),
                corpus.manifest().display(),
            );
            Ok(())
        }
        Task::Compare { made: true, .. } => compare::made(),
        Task::Compare { size, .. } => compare::corpus(size.size()),
        Task::Demo => demo::run(),
        Task::Bench(options) => bench::run(&options),
        Task::Probe(probe) => probe.run().into_diagnostic(),
    }
}
