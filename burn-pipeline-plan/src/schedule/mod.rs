//! Schedules: pure functions from a size to a [`Plan`](crate::plan::Plan), one file a family.
//!
//! [`Schedule`] is the trait, and its documentation shows how to write a family in a crate of your own. [`all`] lists the
//! families of this crate, and [`by_name`] finds one.
//!
//! Every family's file starts with a picture of a small plan, then the rule in numbered steps, then bubble and memory, then
//! the source. In pictures and formulas, p is the number of ranks, v of chunks a rank, m of microbatches; `0F1` is the
//! forward of stage 0 for microbatch 1; F, I, W and B stand for operations and for their seconds a rank and microbatch.
//! The *peak* is the most microbatches whose activations a rank holds at once.
//!
//! Files in reading order: `family` (the trait), `gpipe` and `one_f_one_b` (the simplest families), `interleave`,
//! `building_block`, `eight_steps` and `dropping` (what several families share), the other families, `registry` (names).

mod building_block;
mod chimera;
mod directions;
mod dropping;
mod dual_pipe;
mod dual_pipe_v;
mod eight_steps;
mod family;
mod forward_only;
mod gis;
mod gis_h;
mod gpipe;
mod interleave;
mod interleaved;
mod interleaved_zero_bubble;
mod into;
mod looped_bfs;
mod one_f_one_b;
mod one_f_one_b_v;
mod registry;
mod v_half;
mod v_min;
mod virtual_stages;
mod zb_auto;
mod zb_h1;
mod zb_h2;
mod zbv;

pub use chimera::Chimera;
pub use dual_pipe::DualPipe;
pub use dual_pipe_v::DualPipeV;
pub use family::{Chunks, Family, MAX_FORWARDS, Schedule, ScheduleError, Size};
pub use forward_only::ForwardOnly;
pub use gis::Gis;
pub use gis_h::GisH;
pub use gpipe::GPipe;
pub use interleaved::Interleaved1F1B;
pub use interleaved_zero_bubble::InterleavedZeroBubble;
pub use into::IntoSchedule;
pub use looped_bfs::LoopedBfs;
pub use one_f_one_b::OneFOneB;
pub use one_f_one_b_v::OneFOneBV;
pub use registry::{all, by_name};
pub use v_half::VHalf;
pub use v_min::VMin;
pub use virtual_stages::{WarmUp, schedule_table, virtual_stage_ids, warm_up};
pub use zb_auto::{MemoryLimit, ZbAuto, ZbAutoStage};
pub use zb_h1::ZbH1;
pub use zb_h2::ZbH2;
pub use zbv::ZbvZeroBubble;
