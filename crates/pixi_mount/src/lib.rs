//! Environment backends and the command line.
