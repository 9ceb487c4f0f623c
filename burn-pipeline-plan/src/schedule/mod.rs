//! Schedules: pure functions from a size to a [`Plan`], one file a family.
//!
//! A user adds a family by implementing [`Schedule`] in their own crate; nothing here needs to know of it.

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
