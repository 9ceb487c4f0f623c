//! Sizes and labels of a drawing.

use super::layout::{LEFT, RIGHT, digits};
use crate::trace::event::Track;
use crate::trace::kind::is_compute;

/// Sizes and labels of a drawing.
#[derive(Clone, PartialEq, Debug)]
pub struct SvgOptions {
    /// Width of the whole drawing, in pixels.
    pub width: f64,
    /// Height of a rank's boxes, in pixels.
    pub row_height: f64,
    /// The label below the axis.
    pub time_label: String,
    /// The end of the axis, to draw several tracks at one scale; `None` for the end of the track.
    pub until: Option<f64>,
    /// True to draw transfers and collectives.
    pub transfers: bool,
}

impl Default for SvgOptions {
    fn default() -> Self {
        Self { width: 1200.0, row_height: 28.0, time_label: "time (s)".into(), until: None, transfers: true }
    }
}

impl SvgOptions {
    /// The defaults, but wide enough (up to 8000 pixels) to read the numbers in boxes of median length.
    pub fn fitting(track: &Track) -> Self {
        let mut lengths: Vec<f64> =
            track.events.iter().filter(|e| is_compute(e)).map(|e| e.end - e.start).filter(|&l| l > 0.0).collect();
        lengths.sort_by(f64::total_cmp);
        let usual = lengths.get(lengths.len() / 2).copied().unwrap_or(1.0);
        let digits = digits(track);
        let wanted = LEFT + RIGHT + track.end() / usual * (6.5 * digits as f64).max(8.0);
        let least = Self::default();
        Self { width: if wanted.is_finite() { wanted.clamp(least.width, 8000.0) } else { least.width }, ..least }
    }
}
