//! Reads traces that [`chrome`](super::chrome()) wrote.
//!
//! Guarantees: tracks keep their names, ranks and actions, and their times up to the digits that JSON kept. Traces of
//! other programs are refused; the error locates the first event that is not an action.

use super::event::{Event, Track};
use crate::plan::Action;
use serde::Deserialize;
use std::collections::BTreeMap;

/// Why a trace cannot be read.
#[derive(thiserror::Error)]
pub enum TraceError {
    /// The text is not a trace in JSON.
    #[error("this is not a trace in JSON: {0}")]
    Json(#[from] serde_json::Error),
    /// An event is not an action of a rank.
    #[error("event {place}, `{name}`, is not an action of a rank; read a trace that this library wrote")]
    Event {
        /// The index of the event in the trace.
        place: usize,
        /// The name of the event.
        name: String,
    },
}

crate::debug_as_text!(TraceError);

#[derive(Deserialize)]
struct File {
    #[serde(rename = "traceEvents")]
    events: Vec<Record>,
}

#[derive(Deserialize)]
struct Record {
    name: String,
    ph: String,
    #[serde(default)]
    pid: u64,
    #[serde(default)]
    ts: f64,
    #[serde(default)]
    dur: f64,
    #[serde(default)]
    args: Arguments,
}

#[derive(Deserialize, Default)]
struct Arguments {
    name: Option<String>,
    rank: Option<usize>,
    ranks: Option<usize>,
}

/// The most ranks that a trace may name; memory is taken for each.
const MOST_RANKS: usize = 1 << 16;

/// Reads the tracks of a trace that [`chrome`](super::chrome()) wrote.
///
/// # Errors
/// Returns [`TraceError`] if the text is not JSON, or has events that are not actions of a rank.
pub fn read_chrome(text: &str) -> Result<Vec<Track>, TraceError> {
    let file: File = serde_json::from_str(text)?;
    let mut tracks: BTreeMap<u64, Track> = BTreeMap::new();
    for (place, record) in file.events.into_iter().enumerate() {
        let track = tracks.entry(record.pid).or_default();
        match (record.ph.as_str(), record.name.as_str()) {
            ("M", "process_name") => {
                track.name = record.args.name.unwrap_or_default();
                track.ranks = record.args.ranks.unwrap_or(0).min(MOST_RANKS);
            }
            ("X", name) => {
                let action = name.parse::<Action>().ok().filter(|action| action.tasks().next().is_some());
                let rank = record.args.rank.filter(|rank| *rank < MOST_RANKS);
                let (Some(action), Some(rank), true) = (action, rank, record.ts.is_finite() && record.dur >= 0.0)
                else {
                    return Err(TraceError::Event { place, name: record.name });
                };
                let start = record.ts / 1e6;
                track.events.push(Event { rank, action, start, end: start + record.dur / 1e6 });
            }
            _ => {}
        }
    }
    Ok(tracks.into_values().collect())
}
