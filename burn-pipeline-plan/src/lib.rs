//! Pipeline schedules as data.
//!
//! A schedule is a [`Plan`](plan::Plan): each rank's ordered list of forward, backward and transfer actions. This crate
//! builds plans, proves that they cannot deadlock, rewrites, simulates, searches and draws them. It does not depend on a
//! tensor library; the crate `burn-pipeline` runs its plans on Burn models.

pub mod cost;
pub mod pass;
pub mod plan;
pub mod planner;
pub mod schedule;
pub mod simulate;
pub mod trace;
