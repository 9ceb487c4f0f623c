//! The table, by schedule and in short.

use crate::cell::{Found, Mode};
use burn_pipeline::plan::PlacementKind;
use burn_pipeline::schedule::by_name;

/// The result of a cell in one word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    Equal,
    Refused,
    Differs,
}

impl Verdict {
    pub(crate) fn of(found: &Found) -> Self {
        match found {
            Found::Distance(0.0) => Self::Equal,
            Found::Distance(_) => Self::Differs,
            Found::Refused(_) => Self::Refused,
        }
    }

    fn word(self) -> &'static str {
        match self {
            Self::Equal => "equal",
            Self::Refused => "refused",
            Self::Differs => "differs",
        }
    }
}

/// A module's cells.
#[derive(Debug)]
pub(crate) struct Row {
    name: String,
    cells: Vec<(&'static str, Mode, Verdict)>,
}

impl Row {
    pub(crate) fn new(name: &str) -> Self {
        Self { name: name.to_owned(), cells: Vec::new() }
    }

    pub(crate) fn add(&mut self, schedule: &'static str, mode: Mode, verdict: Verdict) {
        self.cells.push((schedule, mode, verdict));
    }

    /// One line per schedule.
    pub(crate) fn by_schedule(&self) -> String {
        let mut lines = vec![self.name.clone()];
        for cells in self.cells.chunks(Mode::ALL.len()) {
            let words: Vec<String> =
                cells.iter().map(|(_, mode, v)| format!("{} {}", mode.title(), v.word())).collect();
            lines.push(format!("  {:<22}{}", cells[0].0, words.join(", ")));
        }
        lines.join("\n")
    }

    /// One mode over all schedules. Schedules with two copies of each stage may be refused alone, which is marked.
    fn summary(&self, mode: Mode) -> String {
        let of = |copies: bool| {
            let two = |schedule| by_name(schedule).is_ok_and(|s| s.info().placement == PlacementKind::Bidirectional);
            let mut words: Vec<&str> = self
                .cells
                .iter()
                .filter(|cell| cell.1 == mode && two(cell.0) == copies)
                .map(|cell| cell.2.word())
                .collect();
            words.sort_unstable();
            words.dedup();
            words.join(" or ")
        };
        let (one, two) = (of(false), of(true));
        match two.as_str() {
            _ if one == two => one,
            "refused" => format!("{one}¹"),
            _ => format!("{one}; two copies: {two}"),
        }
    }
}

/// The short table, as in the guide.
pub(crate) fn markdown(rows: &[Row]) -> String {
    let titles = Mode::ALL.iter().map(|mode| mode.title().to_owned());
    let row = |row: &Row| {
        let cells = Mode::ALL.iter().map(|&mode| row.summary(mode));
        std::iter::once(row.name.clone()).chain(cells).collect()
    };
    lines(std::iter::once("module".to_owned()).chain(titles).collect(), rows.iter().map(row).collect())
}

/// A table in Markdown.
pub(crate) fn lines(titles: Vec<String>, rows: Vec<Vec<String>>) -> String {
    let line = |cells: Vec<String>| format!("| {} |", cells.join(" | "));
    let under = format!("|{}", "---|".repeat(titles.len()));
    [line(titles), under].into_iter().chain(rows.into_iter().map(line)).collect::<Vec<_>>().join("\n")
}
