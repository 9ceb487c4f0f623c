//! A timeline as SVG, made to be put in a paper.
//!
//! Guarantees: well-formed XML without references to anything outside it; every computation is one box as long as it
//! took; time in which a rank does nothing is seen as hatched ground.
//!
//! 1. Ranks are rows from top to bottom, time runs to the right over an axis with round ticks.
//! 2. A box's colour is its operation, its shade the chunk, its number the microbatch (left out where it has no
//!    room). A fused action is a box in two storeys. The second replica of a bidirectional placement has a dark edge
//!    at the foot of its boxes.
//! 3. Transfers and collectives are thin bars below their rank's boxes.
//! 4. The legend names what occurs.

mod boxes;
mod draw;
mod drawing;
mod frame;
mod layout;
mod options;
mod paint;

pub use draw::svg;
pub use options::SvgOptions;
