//! Packages, channels and reference installations for tests, demo and benchmark.
//!
//! - [`package`] makes conda packages in code, [`kinds`] is a catalogue of small environments made of them, [`wheels`]
//!   makes large ones out of wheels and a Python interpreter;
//! - [`channel`] and [`workspace`] put packages where programs look for them: a channel, a pixi workspace with its lock
//!   file, the package cache;
//! - [`mod@reference`] installs a locked environment as pixi does, and [`compare`] finds what differs between such an
//!   installation and a mount.

pub mod channel;
pub mod compare;
pub mod kinds;
pub mod package;
pub mod reference;
pub mod wheels;
pub mod workspace;

mod error;
mod interpreter;
mod runtime;

pub use error::Error;
