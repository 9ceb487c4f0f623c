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

mod frame;
mod paint;

use super::axis::short;
use super::event::{Event, Track};
use super::kind::{Kind, chunks, is_compute};
use super::lanes::lanes;
use crate::plan::{Action, StageId, Task};
use paint::{escape, hex, luminance};
use std::fmt::Write;

/// Sizes and words of a drawing.
#[derive(Clone, PartialEq, Debug)]
pub struct SvgOptions {
    /// Width of the whole drawing, in pixels.
    pub width: f64,
    /// Height of a rank's boxes, in pixels.
    pub row_height: f64,
    /// What stands below the axis.
    pub time_label: String,
    /// The end of the axis, to draw several tracks to one scale; without it, the track's own end.
    pub until: Option<f64>,
    /// Are transfers and collectives drawn?
    pub transfers: bool,
}

impl Default for SvgOptions {
    fn default() -> Self {
        Self { width: 1200.0, row_height: 28.0, time_label: "time (s)".into(), until: None, transfers: true }
    }
}

impl SvgOptions {
    /// The defaults, but as wide as it takes to read the numbers in boxes of the usual length (up to 8000 pixels).
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

const LEFT: f64 = 58.0;
const RIGHT: f64 = 14.0;
const TITLE: f64 = 30.0;
const GAP: f64 = 6.0;
const LANE: f64 = 5.0;
/// The smallest number that is still drawn.
const SMALLEST: f64 = 5.0;
const FONT: &str = "Helvetica, Arial, sans-serif";

/// Draws a track.
pub fn svg(track: &Track, options: &SvgOptions) -> String {
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

struct Drawing<'a> {
    track: &'a Track,
    options: &'a SvgOptions,
    chunks: Vec<Vec<StageId>>,
    bars: Vec<(usize, &'a Event)>,
    digits: usize,
    pitch: f64,
    end: f64,
    bottom: f64,
    body: String,
}

impl<'a> Drawing<'a> {
    fn new(track: &'a Track, options: &'a SvgOptions) -> Self {
        let bars = if options.transfers { lanes(track) } else { Vec::new() };
        let lanes = bars.iter().map(|&(lane, _)| lane + 1).max().unwrap_or(0);
        let pitch = options.row_height + lanes as f64 * LANE + GAP;
        let end = options.until.unwrap_or(0.0).max(track.end());
        let bottom = TITLE + pitch * track.rows() as f64;
        let digits = digits(track);
        Self { track, options, chunks: chunks(track), bars, digits, pitch, end, bottom, body: String::new() }
    }

    fn put(&mut self, text: std::fmt::Arguments<'_>) {
        // Writing into a string cannot fail.
        let _ = self.body.write_fmt(text);
        self.body.push('\n');
    }

    fn plot_width(&self) -> f64 {
        (self.options.width - LEFT - RIGHT).max(10.0)
    }

    fn x(&self, time: f64) -> f64 {
        LEFT + if self.end > 0.0 { time / self.end * self.plot_width() } else { 0.0 }
    }

    fn y(&self, rank: usize) -> f64 {
        TITLE + self.pitch * rank as f64
    }

    /// The ground of each rank, which shows where nothing is drawn over it.
    fn rows(&mut self) {
        let (height, width) = (self.options.row_height, self.plot_width());
        let title = escape(&self.track.name);
        self.put(format_args!(
            r##"<text x="{LEFT}" y="{:.1}" font-size="14" font-weight="bold" fill="#222">{title}</text>"##,
            TITLE - 12.0
        ));
        for rank in 0..self.track.rows() {
            let y = self.y(rank);
            self.put(format_args!(
                r#"<rect x="{LEFT}" y="{y:.2}" width="{width:.2}" height="{height:.2}" fill="url(#idle)"/>"#
            ));
            self.put(format_args!(
                r##"<text x="{:.1}" y="{:.2}" text-anchor="end" font-size="12" fill="#222">rank {rank}</text>"##,
                LEFT - 8.0,
                y + height / 2.0 + 4.0
            ));
        }
    }

    fn event(&mut self, event: &Event) {
        let (x, width) = (self.x(event.start), self.x(event.end) - self.x(event.start));
        let (y, height) = (self.y(event.rank), self.options.row_height);
        match event.action {
            Action::Overlap(first, second) => {
                self.task(event.rank, first.into(), [x, y, width, height / 2.0]);
                self.task(event.rank, second.into(), [x, y + height / 2.0, width, height / 2.0]);
            }
            other => other.tasks().for_each(|task| self.task(event.rank, task, [x, y, width, height])),
        }
        let (action, start, end) = (escape(&event.action.to_string()), short(event.start), short(event.end));
        let edge = (width * 0.1).min(0.8);
        self.put(format_args!(
            r##"<rect x="{x:.2}" y="{y:.2}" width="{width:.2}" height="{height:.2}" fill="none" stroke="#fff" stroke-width="{edge:.2}"><title>{action}: {start} to {end}</title></rect>"##
        ));
    }

    fn task(&mut self, rank: usize, task: Task, [x, y, width, height]: [f64; 4]) {
        let fill = self.shade(rank, task);
        let ink = if luminance(fill) > 0.45 { "#111" } else { "#fff" };
        self.put(format_args!(
            r#"<rect x="{x:.2}" y="{y:.2}" width="{width:.2}" height="{height:.2}" fill="{}"/>"#,
            hex(fill)
        ));
        if task.stage().replica() == 1 {
            let foot = (height * 0.16).max(2.0);
            self.put(format_args!(
                r##"<rect x="{x:.2}" y="{:.2}" width="{width:.2}" height="{foot:.2}" fill="#222"/>"##,
                y + height - foot
            ));
        }
        let Some(number) = task.microbatch().map(|m| m.to_string()) else { return };
        // All numbers as large as the longest one may be, so that boxes of one length look alike.
        let fitting = width * 1.25 / self.digits as f64;
        let size = (height * 0.52).max(9.5).min(height * 0.8).min(fitting).min(14.0);
        if size >= SMALLEST {
            self.put(format_args!(
                r#"<text x="{:.2}" y="{:.2}" text-anchor="middle" font-size="{size:.1}" fill="{ink}">{number}</text>"#,
                x + width / 2.0,
                y + height / 2.0 + size * 0.35
            ));
        }
    }

    /// The colour of a task: later chunks of a rank are lighter.
    fn shade(&self, rank: usize, task: Task) -> [u8; 3] {
        let stages = &self.chunks[rank];
        // The replica has its own mark, so that only chunks of one replica need shades.
        let peers: Vec<&StageId> = stages.iter().filter(|s| s.replica() == task.stage().replica()).collect();
        let chunk = peers.iter().position(|&&stage| stage == task.stage()).unwrap_or(0);
        let light = if peers.len() < 2 { 0.0 } else { 0.6 * chunk as f64 / (peers.len() - 1).max(1) as f64 };
        Kind::of(task).colour().map(|c| (f64::from(c) + (255.0 - f64::from(c)) * light).round() as u8)
    }

    fn bars(&mut self) {
        for (lane, event) in std::mem::take(&mut self.bars) {
            let Some(task) = event.action.tasks().next() else { continue };
            let y = self.y(event.rank) + self.options.row_height + 1.0 + lane as f64 * LANE;
            let (x, width) = (self.x(event.start), (self.x(event.end) - self.x(event.start)).max(0.6));
            let (fill, action) = (hex(Kind::of(task).colour()), escape(&event.action.to_string()));
            self.put(format_args!(
                r#"<rect x="{x:.2}" y="{y:.2}" width="{width:.2}" height="{:.1}" fill="{fill}"><title>{action}: {} to {}</title></rect>"#,
                LANE - 1.0,
                short(event.start),
                short(event.end)
            ));
        }
    }
}

/// Digits of the largest microbatch number.
fn digits(track: &Track) -> usize {
    let numbers = track.events.iter().flat_map(|event| event.action.tasks()).filter_map(Task::microbatch);
    numbers.max().map_or(1, |largest| largest.to_string().len())
}
