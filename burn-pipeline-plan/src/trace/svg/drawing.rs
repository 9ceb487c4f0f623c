//! The drawing: the order of its parts, positions of times and ranks, and the SVG text so far.

use super::style::{GAP, LANE, LEFT, RIGHT, SvgOptions, TITLE, digits};
use crate::plan::StageId;
use crate::trace::event::{Event, Track};
use crate::trace::kind::{chunks, is_compute, lanes};
use std::fmt::Write;

impl Track {
    /// A timeline as SVG, for a paper.
    pub fn svg(&self, options: &SvgOptions) -> String {
        let mut drawing = Drawing::new(self, options);
        drawing.rows();
        for event in self.events.iter().filter(|event| is_compute(event)) {
            drawing.event(event);
        }
        drawing.bars();
        drawing.axis();
        drawing.legend();
        drawing.finish()
    }
}

pub(super) struct Drawing<'a> {
    pub(super) track: &'a Track,
    pub(super) options: &'a SvgOptions,
    pub(super) chunks: Vec<Vec<StageId>>,
    pub(super) bars: Vec<(usize, &'a Event)>,
    pub(super) digits: usize,
    pub(super) pitch: f64,
    pub(super) end: f64,
    pub(super) bottom: f64,
    pub(super) body: String,
}

impl<'a> Drawing<'a> {
    pub(super) fn new(track: &'a Track, options: &'a SvgOptions) -> Self {
        let bars = if options.transfers { lanes(track) } else { Vec::new() };
        let lanes = bars.iter().map(|&(lane, _)| lane + 1).max().unwrap_or(0);
        let pitch = options.row_height + lanes as f64 * LANE + GAP;
        let end = options.until.unwrap_or(0.0).max(track.end());
        let bottom = TITLE + pitch * track.rows() as f64;
        let digits = digits(track);
        Self { track, options, chunks: chunks(track), bars, digits, pitch, end, bottom, body: String::new() }
    }

    pub(super) fn put(&mut self, text: std::fmt::Arguments<'_>) {
        // Writing into a string cannot fail.
        let _ = self.body.write_fmt(text);
        self.body.push('\n');
    }

    pub(super) fn plot_width(&self) -> f64 {
        (self.options.width - LEFT - RIGHT).max(10.0)
    }

    pub(super) fn x(&self, time: f64) -> f64 {
        LEFT + if self.end > 0.0 { time / self.end * self.plot_width() } else { 0.0 }
    }

    pub(super) fn y(&self, rank: usize) -> f64 {
        TITLE + self.pitch * rank as f64
    }
}
