//! A timeline for a terminal.
//!
//! ```text
//! rank 0 |0F00F10F2........0B0---0B1---
//! rank 1 |...1F01B0---1F11B1---........
//!        0                          11
//! ```
//!
//! Each action starts with its text, shortened to fit, and continues with `-`. A dot is idle time. Transfers that
//! block a rank are `>` (sends), `<` (receives) and `=` (collectives); waits are `~`.

use super::axis::short;
use super::event::{Event, Track};
use super::kind::is_compute;
use crate::plan::{Action, Op};

impl Track {
    /// A timeline for a terminal, in lines of about `width` columns (at least 20).
    pub fn ascii(&self, width: usize) -> String {
        let ranks = self.rows();
        let label = format!("rank {} |", ranks.saturating_sub(1)).len();
        let room = width.max(20).saturating_sub(label).max(10);
        let end = self.end();
        // A step that takes no time is drawn as idle.
        let scale = if end > 0.0 { room as f64 / end } else { 0.0 };
        let mut rows = vec![vec!['.'; room]; ranks];
        let mut events: Vec<&Event> = self.events.iter().collect();
        // Computations are drawn last, so that transfers beside them do not hide them.
        events.sort_by(|a, b| is_compute(a).cmp(&is_compute(b)).then(a.start.total_cmp(&b.start)));
        for event in events {
            let column = |time: f64| ((time * scale).round() as usize).min(room);
            let cells = column(event.start)..column(event.end).max(column(event.start));
            let width = cells.len();
            rows[event.rank][cells].copy_from_slice(&text(event.action, width));
        }
        let mut drawing = String::new();
        for (rank, row) in rows.iter().enumerate() {
            let name = format!("rank {rank}");
            drawing.push_str(&format!("{name:<w$} |{}\n", row.iter().collect::<String>(), w = label - 2));
        }
        drawing.push_str(&format!("{:w$}0{:>r$}\n", "", short(end), w = label, r = room - 1));
        drawing
    }
}

/// The text of an action, in `width` columns.
fn text(action: Action, width: usize) -> Vec<char> {
    let fitting = |text: String| (text.chars().count() <= width).then_some(text);
    let task = action.tasks().last();
    let microbatch = |m: Option<usize>| m.map_or(String::new(), |m| m.to_string());
    let fill = match task.map(|task| task.op()) {
        Some(Op::SendForward | Op::SendBackward) => '>',
        Some(Op::ReceiveForward | Op::ReceiveBackward) => '<',
        Some(op) if op.is_work() => '-',
        Some(op) if op.is_wait() => '~',
        _ => '=',
    };
    let named = task.filter(|_| fill == '-').and_then(|task| {
        let short = format!("{}{}", task.op(), microbatch(task.microbatch()));
        let fused = matches!(action, Action::Overlap(..))
            .then(|| action.tasks().map(|t| t.to_string()).collect::<Vec<_>>().join("&"));
        let texts = [fused, Some(task.to_string()), Some(short), Some(task.op().to_string())];
        texts.into_iter().flatten().find_map(fitting)
    });
    let mut cells: Vec<char> = named.unwrap_or_default().chars().collect();
    cells.resize(width, fill);
    cells
}
