//! How mounts come and go: signals, commands, dead servers, other users.

mod support;
