//! Sizes, labels, colours and text of a drawing.

use crate::plan::Task;
use crate::trace::event::Track;
use crate::trace::kind::is_compute;

// Distances in pixels, and the font.
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

/// `#rrggbb`.
pub(super) fn hex([r, g, b]: [u8; 3]) -> String {
    format!("#{r:02x}{g:02x}{b:02x}")
}

/// The colour, mixed with this share of white.
pub(super) fn lighter(colour: [u8; 3], share: f64) -> [u8; 3] {
    colour.map(|c| (f64::from(c) + (255.0 - f64::from(c)) * share).round() as u8)
}

/// Perceived brightness from 0 to 1 (Rec. 601 weights).
pub(super) fn luminance([r, g, b]: [u8; 3]) -> f64 {
    (0.299 * f64::from(r) + 0.587 * f64::from(g) + 0.114 * f64::from(b)) / 255.0
}

/// Text with XML's special characters escaped; characters that XML forbids are removed.
pub(super) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => {}
            c => escaped.push(c),
        }
    }
    escaped
}
