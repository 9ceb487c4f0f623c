//! The contents of a rank's row: hatched background, boxes for computations, bars for transfers and collectives.

use super::drawing::Drawing;
use super::style::{LANE, LEFT, TITLE, escape, hex, lighter, luminance};
use crate::plan::{Action, StageId, Task};
use crate::trace::axis::short;
use crate::trace::event::Event;
use crate::trace::kind::Kind;

/// The smallest font size at which a number is drawn.
const SMALLEST: f64 = 5.0;

impl Drawing<'_> {
    /// Draws the title, and each rank's hatched background, which stays visible where the rank is idle.
    pub(super) fn rows(&mut self) {
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

    pub(super) fn event(&mut self, event: &Event) {
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
        if task.stage().route() == 1 {
            let foot = (height * 0.16).max(2.0);
            self.put(format_args!(
                r##"<rect x="{x:.2}" y="{:.2}" width="{width:.2}" height="{foot:.2}" fill="#222"/>"##,
                y + height - foot
            ));
        }
        let Some(number) = task.microbatch().map(|m| m.to_string()) else { return };
        // All numbers have the size at which the longest one fits, so that boxes of equal width look alike.
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
        // Boxes of the second route have a mark, so shades only need to distinguish the chunks of one route.
        let peers: Vec<&StageId> = stages.iter().filter(|s| s.route() == task.stage().route()).collect();
        let chunk = peers.iter().position(|&&stage| stage == task.stage()).unwrap_or(0);
        let light = if peers.len() < 2 { 0.0 } else { 0.6 * chunk as f64 / (peers.len() - 1).max(1) as f64 };
        lighter(Kind::of(task).colour(), light)
    }

    pub(super) fn bars(&mut self) {
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
