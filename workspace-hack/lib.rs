//! Nothing: `Cargo.toml` is what this package is for.
