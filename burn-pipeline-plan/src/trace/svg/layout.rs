//! Distances in pixels, and the font.

use crate::plan::Task;
use crate::trace::event::Track;

pub(super) const LEFT: f64 = 58.0;
pub(super) const RIGHT: f64 = 14.0;
pub(super) const TITLE: f64 = 30.0;
pub(super) const GAP: f64 = 6.0;
pub(super) const LANE: f64 = 5.0;
pub(super) const FONT: &str = "Helvetica, Arial, sans-serif";

/// Digits of the largest microbatch number.
pub(super) fn digits(track: &Track) -> usize {
    let numbers = track.events.iter().flat_map(|event| event.action.tasks()).filter_map(Task::microbatch);
    numbers.max().map_or(1, |largest| largest.to_string().len())
}
