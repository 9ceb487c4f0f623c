//! The drawings of one track.

use super::ascii::ascii;
use super::event::Track;
use super::svg::{SvgOptions, svg};

impl Track {
    /// A timeline for a terminal, in lines of about `width` columns (at least 20).
    pub fn ascii(&self, width: usize) -> String {
        ascii(self, width)
    }

    /// A timeline as SVG, for a paper.
    pub fn svg(&self, options: &SvgOptions) -> String {
        svg(self, options)
    }
}
