//! Support code of the benches.
