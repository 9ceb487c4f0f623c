//! Pipeline-parallel schedules as data, for any runtime.
//!
//! A schedule builds a [`Plan`](plan::Plan): for each rank, an ordered list of forwards, backwards and transfers.
//! This crate builds plans for published schedules, proves that a plan cannot deadlock, and rewrites, simulates,
//! searches and draws plans. It needs no tensor library; the crate `burn-pipeline` runs its plans on Burn models.
//!
//! # A complete program
//!
//! ```
//! use burn_pipeline_plan::cost::{Profile, UniformCosts};
//! use burn_pipeline_plan::plan::CheckOptions;
//! use burn_pipeline_plan::schedule::{OneFOneB, Schedule, Size};
//! use burn_pipeline_plan::simulate::{SimulateOptions, simulate};
//!
//! // Build: one forward, one backward, on 2 ranks with 3 microbatches.
//! let plan = OneFOneB.build(Size::new(2, 3))?;
//! // Lower: write down every send and receive.
//! let plan = plan.with_transfers()?;
//! // Check: prove that every rank reaches the end of its row.
//! let checked = plan.check(&CheckOptions::default())?;
//! // Simulate: F, I and W take one second each.
//! let profile = Profile::uniform(checked.plan().placement(), UniformCosts::new(1.0, 1.0, 1.0))?;
//! let step = simulate(checked.plan(), &profile, &SimulateOptions::default())?;
//! assert_eq!(step.makespan, 12.0);
//! // Draw.
//! let drawing = step.track("1F1B").ascii(56);
//! assert!(drawing.starts_with("rank 0 |0F0-0F1-"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Modules, in reading order
//!
//! - [`plan`]: [`Plan`](plan::Plan) and its parts, its text, CSV and JSON forms, and [`check`](plan::Plan::check),
//!   which proves that a plan can run.
//! - [`schedule`]: the schedules, and the trait [`Schedule`](schedule::Schedule) for your own.
//! - [`pass`]: rewrites that add transfers, waits, parameter gathering or vocabulary parallelism, or overlap
//!   communication with computation.
//! - [`cost`]: seconds and bytes of stages and links; cuts of a model into stages.
//! - [`simulate`]: times, idle periods and memory of a plan under given costs; lower bounds.
//! - [`trace`]: events, predicted or measured, as JSON for Perfetto, SVG or text.
//! - [`page`]: a report as one HTML page with timelines, idle time, memory and the plans considered.
//! - [`planner`]: a search over schedules, cuts, microbatch sizes and passes for the fastest plan under a memory cap.
//!
//! The binary `burn-pipeline` offers the same on the command line.

pub mod cost;
mod named;
pub mod page;
pub mod pass;
pub mod plan;
pub mod planner;
pub mod schedule;
pub mod simulate;
pub mod trace;

/// Runs the program of README.md as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
