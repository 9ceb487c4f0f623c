//! A timeline as SVG, for a paper.
//!
//! Guarantees: well-formed XML without external references; every computation is one box as wide as its time; idle time
//! shows as hatched ground.
//!
//! 1. Ranks are rows from top to bottom, time runs to the right over an axis with round ticks.
//! 2. A box's colour is its operation, its shade the chunk, its number the microbatch (omitted where it does not fit). A
//!    fused action is two boxes of half the height, one above the other. Boxes of the second replica of a bidirectional
//!    placement have a dark lower edge.
//! 3. Transfers and collectives are thin bars below their rank's boxes.
//! 4. The legend names what occurs.

mod boxes;
mod drawing;
mod frame;
mod layout;
mod options;
mod paint;

pub use options::SvgOptions;
