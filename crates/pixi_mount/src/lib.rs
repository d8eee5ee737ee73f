//! Mounting the environments of pixi workspaces: finding them as pixi finds them, bringing their
//! packages together, and the command line.
//!
//! What an environment contains and how it is served is the business of [`rattler_fs`].

pub mod cli;
pub mod environment;
pub mod marker;
pub mod mount_point;
pub mod mount_users;
pub mod network;
pub mod progress;
pub mod supply;
pub mod workspace;
