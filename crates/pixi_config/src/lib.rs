//! The options of pixi that a mount depends on.
