//! Draws one track, part by part.

use super::drawing::Drawing;
use super::options::SvgOptions;
use crate::trace::event::Track;
use crate::trace::kind::is_compute;

/// Draws a track.
pub(in crate::trace) fn svg(track: &Track, options: &SvgOptions) -> String {
    let mut drawing = Drawing::new(track, options);
    drawing.rows();
    for event in track.events.iter().filter(|event| is_compute(event)) {
        drawing.event(event);
    }
    drawing.bars();
    drawing.axis();
    drawing.legend();
    drawing.finish()
}
