//! Tasks of the project: corpus, demo, bench.
fn main() {}
