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

use super::axis::{short, ticks};
use super::event::{Event, Track};
use super::kind::{Kind, chunks, is_compute};
use super::lanes::lanes;
use crate::plan::{Action, Stage, Task};
use std::collections::BTreeSet;
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

const LEFT: f64 = 58.0;
const RIGHT: f64 = 14.0;
const TITLE: f64 = 30.0;
const GAP: f64 = 6.0;
const LANE: f64 = 5.0;
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
    chunks: Vec<Vec<Stage>>,
    bars: Vec<(usize, &'a Event)>,
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
        Self { track, options, chunks: chunks(track), bars, pitch, end, bottom, body: String::new() }
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
                self.task(event.rank, first, [x, y, width, height / 2.0]);
                self.task(event.rank, second, [x, y + height / 2.0, width, height / 2.0]);
            }
            other => other.tasks().for_each(|task| self.task(event.rank, task, [x, y, width, height])),
        }
        let (action, start, end) = (escape(&event.action.to_string()), short(event.start), short(event.end));
        self.put(format_args!(
            r##"<rect x="{x:.2}" y="{y:.2}" width="{width:.2}" height="{height:.2}" fill="none" stroke="#fff" stroke-width="0.8"><title>{action}: {start} to {end}</title></rect>"##
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
        let size = (height * 0.52).max(9.5).min(height * 0.8).min(width * 1.5 / number.len() as f64).min(14.0);
        if size >= 4.0 {
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
        let peers: Vec<&Stage> = stages.iter().filter(|s| s.replica() == task.stage().replica()).collect();
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

    fn axis(&mut self) {
        let (y, right) = (self.bottom + 2.0, self.x(self.end));
        self.put(format_args!(
            r##"<line x1="{LEFT}" y1="{y:.2}" x2="{right:.2}" y2="{y:.2}" stroke="#222" stroke-width="1"/>"##
        ));
        for tick in ticks(self.end, 12) {
            let (x, label) = (self.x(tick), short(tick));
            self.put(format_args!(
                r##"<line x1="{x:.2}" y1="{y:.2}" x2="{x:.2}" y2="{:.2}" stroke="#222" stroke-width="1"/>"##,
                y + 4.0
            ));
            self.put(format_args!(
                r##"<text x="{x:.2}" y="{:.2}" text-anchor="middle" font-size="11" fill="#222">{label}</text>"##,
                y + 16.0
            ));
        }
        let label = escape(&self.options.time_label);
        self.put(format_args!(
            r##"<text x="{:.2}" y="{:.2}" text-anchor="middle" font-size="12" fill="#222">{label}</text>"##,
            LEFT + self.plot_width() / 2.0,
            y + 32.0
        ));
    }

    fn legend(&mut self) {
        let computing = self.track.events.iter().filter(|e| is_compute(e) || self.options.transfers);
        let tasks: Vec<Task> = computing.flat_map(|e| e.action.tasks()).collect();
        let kinds: BTreeSet<Kind> = tasks.iter().map(|&task| Kind::of(task)).collect();
        let mut entries: Vec<(String, String)> =
            kinds.into_iter().map(|kind| (hex(kind.colour()), kind.words().to_owned())).collect();
        let most = self.chunks.iter().map(|s| s.iter().filter(|s| s.replica() == 0).count()).max().unwrap_or(0);
        entries.push(("url(#idle)".into(), "idle".into()));
        if tasks.iter().any(|t| t.stage().replica() == 1) {
            entries.push(("url(#replica)".into(), "second replica".into()));
        }
        if most > 1 {
            entries.push(("url(#chunks)".into(), format!("chunks 0 to {}, later ones lighter", most - 1)));
        }
        let (mut x, mut y) = (LEFT, self.bottom + 48.0);
        for (fill, words) in entries {
            let width = 28.0 + words.len() as f64 * 6.3;
            if x + width > self.options.width && x > LEFT {
                (x, y) = (LEFT, y + 20.0);
            }
            self.put(format_args!(
                r##"<rect x="{x:.2}" y="{y:.2}" width="16" height="12" fill="{fill}" stroke="#999" stroke-width="0.5"/>"##
            ));
            self.put(format_args!(
                r##"<text x="{:.2}" y="{:.2}" font-size="12" fill="#222">{words}</text>"##,
                x + 21.0,
                y + 10.5
            ));
            x += width + 12.0;
        }
        self.bottom = y + 12.0;
    }

    fn finish(self) -> String {
        let (width, height) = (self.options.width, self.bottom + 10.0);
        let forward = Kind::Forward.colour();
        let light = hex(forward.map(|c| (f64::from(c) + (255.0 - f64::from(c)) * 0.6).round() as u8));
        format!(
            r##"<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0}" height="{height:.0}" viewBox="0 0 {width:.0} {height:.0}" font-family="{FONT}">
<defs>
<pattern id="idle" width="6" height="6" patternUnits="userSpaceOnUse"><rect width="6" height="6" fill="#f4f4f4"/><path d="M-1,1 l2,-2 M0,6 l6,-6 M5,7 l2,-2" stroke="#d9d9d9" stroke-width="0.8"/></pattern>
<pattern id="replica" width="1" height="1" patternUnits="objectBoundingBox" patternContentUnits="objectBoundingBox"><rect width="1" height="1" fill="#fff"/><rect y="0.75" width="1" height="0.25" fill="#222"/></pattern>
<linearGradient id="chunks"><stop offset="0" stop-color="{}"/><stop offset="1" stop-color="{light}"/></linearGradient>
</defs>
<rect width="100%" height="100%" fill="#fff"/>
{}</svg>
"##,
            hex(forward),
            self.body
        )
    }
}

fn hex([r, g, b]: [u8; 3]) -> String {
    format!("#{r:02x}{g:02x}{b:02x}")
}

/// Perceived brightness from 0 to 1 (Rec. 601 weights).
fn luminance([r, g, b]: [u8; 3]) -> f64 {
    (0.299 * f64::from(r) + 0.587 * f64::from(g) + 0.114 * f64::from(b)) / 255.0
}

/// Text as XML takes it; characters that XML forbids are left out.
fn escape(text: &str) -> String {
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
