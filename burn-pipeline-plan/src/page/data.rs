//! A page's data as JSON.
//!
//! Times are rounded to ten digits of the longest step. A screen shows four, and the file is a third of the size.

use super::{Page, Timeline};
use crate::cost::Profile;
use crate::plan::Task;
use crate::simulate::IdleCause;
use crate::trace::{Event, Kind, chunks};
use serde::Serialize;

const DIGITS: i32 = 10;

#[derive(Serialize)]
struct Data<'a> {
    title: &'a str,
    end: f64,
    kinds: Vec<KindData>,
    /// In the order of the script's colours.
    causes: Vec<String>,
    timelines: Vec<TimelineData<'a>>,
    unit: &'a str,
    /// True if the costs give the bytes of activations.
    activations: bool,
    cap: Option<f64>,
    choices: &'a Option<super::Choices>,
}

#[derive(Serialize)]
struct KindData {
    words: &'static str,
    colour: String,
    /// True if it moves data instead of computing.
    moves: bool,
}

#[derive(Serialize)]
struct TimelineData<'a> {
    name: &'a str,
    end: f64,
    ranks: Vec<RankData>,
}

#[derive(Serialize)]
struct RankData {
    /// Start, end, index in `kinds`, chunk, text, bytes of a transfer (0 if not known), exposed seconds of a transfer.
    events: Vec<(f64, f64, usize, usize, String, f64, f64)>,
    /// Start, end, index in `causes`.
    idle: Vec<(f64, f64, usize)>,
    busy: f64,
    exposed: f64,
    /// Bytes held during the whole step.
    constant: f64,
    /// Time and total bytes, including `constant`.
    memory: Vec<(f64, f64)>,
}

/// The data of the page, for the script.
pub(super) fn json(page: &Page) -> String {
    let end = page.timelines.iter().map(|timeline| timeline.track.end()).fold(0.0, f64::max);
    let round = Round::new(end);
    let kind = |kind: &Kind| {
        let [red, green, blue] = kind.colour();
        KindData { words: kind.words(), colour: format!("#{red:02x}{green:02x}{blue:02x}"), moves: kind.moves() }
    };
    let holds = |profile: &Profile| profile.stages().iter().any(|cost| cost.activation_bytes > 0.0);
    let data = Data {
        title: &page.title,
        end: round.time(end),
        kinds: Kind::ALL.iter().map(kind).collect(),
        causes: IdleCause::ALL.map(|cause| cause.to_string()).to_vec(),
        timelines: page.timelines.iter().map(|timeline| of_timeline(timeline, page.profile.as_ref(), round)).collect(),
        unit: page.unit.as_deref().unwrap_or("bytes"),
        activations: page.profile.as_ref().is_none_or(holds),
        cap: page.cap,
        choices: &page.choices,
    };
    // Numbers and text always serialize.
    serde_json::to_string(&data).unwrap_or_default()
}

/// Rounds times to a fixed number of digits of the longest one.
#[derive(Clone, Copy)]
struct Round(f64);

impl Round {
    /// Steps too short or too long for this rounding keep all digits.
    fn new(end: f64) -> Self {
        let factor = 10f64.powi((f64::from(DIGITS) - 1.0 - end.log10().floor()) as i32);
        Self(if factor.is_normal() { factor } else { f64::NAN })
    }

    fn time(self, seconds: f64) -> f64 {
        let rounded = (seconds * self.0).round() / self.0;
        if rounded.is_finite() { rounded } else { seconds }
    }
}

fn of_timeline<'a>(timeline: &'a Timeline, profile: Option<&Profile>, round: Round) -> TimelineData<'a> {
    let track = &timeline.track;
    let chunks = chunks(track);
    let mut exposures = track.exposed_times().into_iter().peekable();
    let mut ranks: Vec<RankData> = (0..track.rows()).map(|rank| of_rank(timeline, rank, round)).collect();
    for event in &track.events {
        let exposed = exposures.next_if(|exposure| exposure.event == *event).map_or(0.0, |exposure| exposure.exposed);
        let Some(task) = event.action.tasks().next() else { continue };
        let rank = &mut ranks[event.rank];
        if task.op().is_work() {
            rank.busy += event.end - event.start;
        }
        rank.exposed += exposed;
        let kind = Kind::ALL.iter().position(|kind| *kind == Kind::of(task)).unwrap_or(0);
        let chunk = chunks[event.rank].iter().position(|stage| *stage == task.stage()).unwrap_or(0);
        let bytes = profile.map_or(0.0, |profile| bytes(event, profile));
        let (start, end, exposed) = (round.time(event.start), round.time(event.end), round.time(exposed));
        rank.events.push((start, end, kind, chunk, event.action.to_string(), bytes, exposed));
    }
    for rank in &mut ranks {
        rank.events.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)));
    }
    TimelineData { name: &track.name, end: round.time(track.end()), ranks }
}

fn of_rank(timeline: &Timeline, rank: usize, round: Round) -> RankData {
    let cause = |cause| IdleCause::ALL.iter().position(|other| *other == cause).unwrap_or(0);
    let idle = timeline.idle.get(rank).into_iter().flatten();
    let (constant, points) = timeline.memory.get(rank).cloned().unwrap_or_default();
    RankData {
        events: Vec::new(),
        idle: idle.map(|idle| (round.time(idle.start), round.time(idle.end), cause(idle.cause))).collect(),
        busy: 0.0,
        exposed: 0.0,
        constant,
        memory: points.iter().map(|point| (round.time(point.time), constant + point.total())).collect(),
    }
}

/// The bytes that a transfer moves; 0 for other events.
fn bytes(event: &Event, profile: &Profile) -> f64 {
    let of = |task: Task| {
        // A transfer moves the output of the earlier stage, or the gradient for it.
        let from = task.output_of().filter(|_| task.op().is_transfer())?;
        let cost = profile.stages().get(from.index())?;
        Some(if task.skip_peer().is_some() { cost.skip_bytes } else { cost.message_bytes })
    };
    event.action.tasks().filter_map(of).sum()
}
