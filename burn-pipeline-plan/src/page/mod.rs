//! A report as one HTML page: predicted and measured timelines, one above the other; idle time by cause; memory;
//! choices.
//!
//! Guarantees: the page needs no network and no other file. Names (of plans, timelines, choices, units) are shown as
//! text, whatever they contain. NaN and infinite numbers (costs, times, caps) are shown as "not known". Pages with
//! 100,000 actions stay fast, because only actions in view are drawn.
//!
//! 1. [`Page`] gathers the contents. `data` turns them into JSON, with times rounded to ten digits.
//! 2. `page.html`, `page.css` and the scripts draw them in the browser, with zoom (wheel, pinch, keys), hover, and a
//!    cursor that keys move. The page is dark if the reader's system is, and has a table beside every picture.
//!
//! ```
//! use burn_pipeline_plan::cost::{Profile, UniformCosts};
//! use burn_pipeline_plan::page::Page;
//! use burn_pipeline_plan::schedule::{OneFOneB, Schedule, Size};
//! use burn_pipeline_plan::simulate::{SimulateOptions, simulate};
//!
//! let plan = OneFOneB.build(Size::new(4, 8))?;
//! let profile = Profile::uniform(plan.placement(), UniformCosts::new(1.0, 1.0, 1.0))?;
//! let step = simulate(&plan, &profile, &SimulateOptions::default())?;
//! let html = Page::new("1F1B on 4 ranks").costs(profile).simulation("predicted", &step).html();
//! assert!(html.starts_with("<!doctype html>"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod choices;
mod data;

pub use choices::{Choice, Choices};

use crate::cost::Profile;
use crate::simulate::{IdlePeriod, MemoryPoint, Simulation, idle_periods};
use crate::trace::Track;

/// The scripts of the page, in order of their dependencies.
const SCRIPTS: [&str; 5] = [
    include_str!("view.js"),
    include_str!("timeline.js"),
    include_str!("memory.js"),
    include_str!("tables.js"),
    include_str!("page.js"),
];

/// The contents of a report; [`Page::html`] writes the page.
#[derive(Clone, Debug, Default)]
pub struct Page {
    title: String,
    timelines: Vec<Timeline>,
    profile: Option<Profile>,
    unit: Option<String>,
    cap: Option<f64>,
    choices: Option<Choices>,
}

/// One step, with idle time and memory of its ranks.
#[derive(Clone, Debug)]
struct Timeline {
    track: Track,
    idle: Vec<Vec<IdlePeriod>>,
    /// For each rank, the bytes held during the whole step, and its other memory over time; empty for a measured step.
    memory: Vec<(f64, Vec<MemoryPoint>)>,
}

impl Page {
    /// A page with a title only.
    pub fn new(title: impl Into<String>) -> Self {
        Self { title: title.into(), ..Self::default() }
    }

    /// Adds a simulated step, with its memory.
    pub fn simulation(mut self, name: impl Into<String>, step: &Simulation) -> Self {
        let memory = step.ranks.iter().map(|rank| (rank.weight_bytes + rank.optimizer_bytes, rank.memory.clone()));
        let idle = step.ranks.iter().map(|rank| rank.idle.clone()).collect();
        self.timelines.push(Timeline { track: step.track(name), idle, memory: memory.collect() });
        self
    }

    /// Adds a measured step, drawn on the same time axis as the others.
    pub fn track(mut self, track: &Track) -> Self {
        self.timelines.push(Timeline { track: track.clone(), idle: idle_periods(track), memory: Vec::new() });
        self
    }

    /// Sets the costs with which the plan was simulated. The page takes the bytes of transfers from them.
    pub fn costs(self, profile: Profile) -> Self {
        Self { profile: Some(profile), ..self }
    }

    /// Sets the unit of memory, if it is not bytes: `rank-microbatches` under uniform costs.
    pub fn memory_in(self, unit: impl Into<String>) -> Self {
        Self { unit: Some(unit.into()), ..self }
    }

    /// Sets the most memory that a rank may hold, drawn over its memory.
    pub fn cap(self, most: f64) -> Self {
        Self { cap: Some(most), ..self }
    }

    /// Sets the choices that were compared, and those that were left out.
    pub fn choices(self, choices: Choices) -> Self {
        Self { choices: Some(choices), ..self }
    }

    /// Writes the page as HTML.
    pub fn html(&self) -> String {
        // In a script's text, `</script` would end the script and `<!--<script` would keep it from ending. JSON has `<`
        // only inside strings, where it can be escaped.
        let data = data::json(self).replace('<', "\\u003c");
        include_str!("page.html")
            .replace("/*STYLE*/", include_str!("page.css"))
            .replace("/*SCRIPT*/", &SCRIPTS.concat())
            .replace("/*DATA*/", &data)
    }
}
