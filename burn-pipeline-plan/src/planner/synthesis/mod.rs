//! Synthesis: schedules made for a profile, by list scheduling under costs and a memory cap, branch and bound, and
//! local search.
//!
//! ```text
//! p=2 v=1 m=3, F = I = W = 1
//! rank 0: 0F0 0F1     0I0 0F2 0I1 0W0 0I2 0W1 0W2
//! rank 1:     1F0 1I0 1F1 1I1 1F2 1I2 1W0 1W1 1W2
//! ```
//!
//! Guarantees: the plan is complete and in a legal order. Simulated with the same profile, it keeps every rank under
//! the cap. The same input gives the same plan. If messages take no memory, a plan is found whenever one microbatch
//! at a time fits under the cap.
//!
//! Reading order: `build` (the whole), `instance` (the problem), `progress`, `timing`, `list`, `local`, `branch`.
//!
//! Sources: list scheduling as in Hanayo (Liu et al. 2023) and in the heuristic of Zero Bubble (Qi et al. 2023, section
//! 3.1); local search and branch and bound as for job shops (cited in `local` and `branch`).

mod branch;
mod build;
mod instance;
mod list;
mod local;
mod progress;
mod timing;

pub use build::{Synthesis, SynthesisedPlan};
