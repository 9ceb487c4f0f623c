//! A timeline as SVG, for a paper.
//!
//! Guarantees: well-formed XML without external references. Every computation is one box as wide as its time. Idle time
//! shows as hatched background.
//!
//! 1. Ranks are rows from top to bottom; time runs to the right along an axis with round ticks.
//! 2. The colour of a box is its operation, the shade its chunk, the number its microbatch (omitted if it does not
//!    fit). A fused action is two boxes of half the height, one above the other. Boxes of the second route of a
//!    bidirectional placement have a dark lower edge.
//! 3. Transfers and collectives are thin bars below their rank's boxes.
//! 4. The legend lists only what the drawing contains.

mod boxes;
mod drawing;
mod frame;
mod style;

pub use style::SvgOptions;
