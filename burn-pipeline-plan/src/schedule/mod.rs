//! Schedules: pure functions from a size to a [`Plan`](crate::plan::Plan), one file per schedule.
//!
//! [`Schedule`] is the trait; its documentation shows how to write a schedule in your own crate. [`by_name`] finds a
//! schedule of this crate, and [`all`] lists them. Schedules with options are public types, and so are [`GPipe`],
//! [`OneFOneB`] and [`ForwardOnly`]. A function that takes a schedule also takes its name ([`IntoSchedule`]).
//!
//! | name | stages per rank | description |
//! |---|---|---|
//! | `ForwardOnly` | any | evaluation, without a backward |
//! | `GPipe` | 1 | all forwards, then all backwards |
//! | `1F1B` | 1 | after a warm-up, one forward and one backward in turn |
//! | `Interleaved1F1B` | any | 1F1B with the bubble divided by the number of chunks: [`Interleaved1F1B`] |
//! | `LoopedBFS` | any | breadth-first: every microbatch through a chunk before the next chunk starts |
//! | `ZBH1` | 1 | 1F1B with a split backward, at 1F1B's memory and about a third of its bubble |
//! | `ZBH2` | 1 | no bubble if F = B = W, at twice 1F1B's memory |
//! | `ZBAuto` | 1 | orders split backwards by costs, under a memory limit: [`ZbAuto`] |
//! | `InterleavedZeroBubble` | any | interleaved, with each `W` delayed to fill bubbles (PyTorch's ZB1P) |
//! | `ZBVZeroBubble` | 2 | on a V: no bubble if F = B = W, at 1F1B's memory |
//! | `VHalf`, `VMin` | 2 | on a V: about half and a third of 1F1B's activations |
//! | `1F1B-V` | 2 | on a V with whole backwards, at about two thirds of 1F1B's memory |
//! | `DualPipe` | 1 | two opposite routes, forwards of one fused with backwards of the other |
//! | `DualPipeV` | 2 | DualPipe folded on a V: one copy of the parameters on half the ranks |
//! | `Chimera` | 1 | two opposite routes that fill each other's bubbles |
//! | `GIS`, `GISH` | any | interleaved in groups; memory depends on the group size: [`Gis`] |
//!
//! The header of each schedule's file draws a small plan, states the rule in numbered steps, then bubble and memory,
//! then the source. In drawings and formulas, p is the number of ranks, v of chunks per rank, m of microbatches; `0F1`
//! is the forward of stage 0 for microbatch 1. F, I, W and B are the operations and also their seconds per rank and
//! microbatch. The *peak* is the most microbatches whose activations a rank holds at once.
//!
//! Files in reading order: `schedule_trait`; `gpipe` and `one_f_one_b` (the simplest schedules); `fixed` (what the
//! schedules without options share); `interleave`, `building_block`, `eight_steps` and `dropping` (used by several
//! schedules); the other schedules; `registry` and `nearest` (names).

mod building_block;
mod chimera;
mod dropping;
mod dual_pipe;
mod dual_pipe_v;
mod eight_steps;
mod fixed;
mod forward_only;
mod gis;
mod gis_h;
mod gpipe;
mod interleave;
mod interleaved;
mod interleaved_zero_bubble;
mod looped_bfs;
mod nearest;
mod one_f_one_b;
mod one_f_one_b_v;
mod registry;
mod schedule_trait;
mod v_half;
mod v_min;
mod zb_auto;
mod zb_h1;
mod zb_h2;
mod zbv;

pub use forward_only::ForwardOnly;
pub use gis::Gis;
pub use gpipe::GPipe;
pub use interleaved::Interleaved1F1B;
pub use one_f_one_b::OneFOneB;
pub use registry::{IntoSchedule, all, by_name};
pub use schedule_trait::{Chunks, Schedule, ScheduleError, ScheduleInfo, Size};
pub use zb_auto::ZbAuto;
