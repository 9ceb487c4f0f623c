//! A report as one HTML page: timelines, predicted and measured, one over the other; idle time by cause; memory; choices.
//!
//! Guarantees: the page needs no network and no other file; whatever stands in a name (of a plan, a timeline, a choice, a unit)
//! is shown as text, and a number that is none (of a cost, a time, a cap) as not known; pages of 100,000 actions stay fast,
//! because only what is in view is drawn.
//!
//! 1. [`Page`] gathers what to show. `data` turns it into JSON, with numbers as short as they can be told apart.
//! 2. `page.html`, `page.css` and the scripts draw it in the browser: zoom (wheel, pinch, keys), hover and a cursor that keys
//!    move; dark where the reader's system is; tables beside every picture.
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

/// What draws the page, in the order in which it is needed.
const SCRIPTS: [&str; 5] = [
    include_str!("view.js"),
    include_str!("timeline.js"),
    include_str!("memory.js"),
    include_str!("tables.js"),
    include_str!("page.js"),
];

/// What a page shows; [`Page::html`] writes it.
#[derive(Clone, Debug, Default)]
pub struct Page {
    title: String,
    timelines: Vec<Timeline>,
    profile: Option<Profile>,
    unit: Option<String>,
    cap: Option<f64>,
    choices: Option<Choices>,
}

/// One step, with what is known of its ranks.
#[derive(Clone, Debug)]
struct Timeline {
    track: Track,
    idle: Vec<Vec<IdlePeriod>>,
    /// What each rank holds during the whole step, and what changes; none in a measured step.
    memory: Vec<(f64, Vec<MemoryPoint>)>,
}

impl Page {
    /// A page with nothing on it but its title.
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

    /// Adds a step that was measured: it is drawn over the same seconds as the others.
    pub fn track(mut self, track: &Track) -> Self {
        self.timelines.push(Timeline { track: track.clone(), idle: idle_periods(track), memory: Vec::new() });
        self
    }

    /// The costs that the plan was simulated with: they tell the bytes of its transfers.
    pub fn costs(mut self, profile: Profile) -> Self {
        self.profile = Some(profile);
        self
    }

    /// What memory is counted in, if not in bytes: `rank-microbatches` under costs that are all equal.
    pub fn memory_in(mut self, unit: impl Into<String>) -> Self {
        self.unit = Some(unit.into());
        self
    }

    /// What a rank may hold, drawn over its memory.
    pub fn cap(mut self, most: f64) -> Self {
        self.cap = Some(most);
        self
    }

    /// Adds what was compared, and what was left out.
    pub fn choices(mut self, choices: Choices) -> Self {
        self.choices = Some(choices);
        self
    }

    /// The page.
    pub fn html(&self) -> String {
        // In a script's text, `</script` would end it and `<!--<script` would keep it from ending. JSON has `<` in its texts
        // alone, where it may be written by its number.
        let data = data::json(self).replace('<', "\\u003c");
        include_str!("page.html")
            .replace("/*STYLE*/", include_str!("page.css"))
            .replace("/*SCRIPT*/", &SCRIPTS.concat())
            .replace("/*DATA*/", &data)
    }
}
