//! A conda environment as a file system.
