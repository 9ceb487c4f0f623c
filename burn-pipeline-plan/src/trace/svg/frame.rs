//! Axis, legend, and the definitions of patterns.

use super::drawing::Drawing;
use super::style::{FONT, LEFT, escape, hex, lighter};
use crate::plan::Task;
use crate::trace::axis::{short, ticks};
use crate::trace::kind::{Kind, is_compute};
use std::collections::BTreeSet;

impl Drawing<'_> {
    pub(super) fn axis(&mut self) {
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

    pub(super) fn legend(&mut self) {
        let computing = self.track.events.iter().filter(|e| is_compute(e) || self.options.transfers);
        let tasks: Vec<Task> = computing.flat_map(|e| e.action.tasks()).collect();
        let kinds: BTreeSet<Kind> = tasks.iter().map(|&task| Kind::of(task)).collect();
        let mut entries: Vec<(String, String)> =
            kinds.into_iter().map(|kind| (hex(kind.colour()), kind.words().to_owned())).collect();
        let most = self.chunks.iter().map(|s| s.iter().filter(|s| s.route() == 0).count()).max().unwrap_or(0);
        entries.push(("url(#idle)".into(), "idle".into()));
        if tasks.iter().any(|t| t.stage().route() == 1) {
            entries.push(("url(#replica)".into(), "second route".into()));
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

    pub(super) fn finish(self) -> String {
        let (width, height) = (self.options.width, self.bottom + 10.0);
        let forward = Kind::Forward.colour();
        let light = hex(lighter(forward, 0.6));
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
