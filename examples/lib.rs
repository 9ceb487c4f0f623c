//! Support code of the examples.
