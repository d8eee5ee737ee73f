//! Packages, channels and reference installations for tests, demo and benchmark.
