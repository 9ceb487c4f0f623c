//! 1F1B-V: 1F1B on a V with whole backwards, at about two thirds of 1F1B's memory.
//!
//! ```text
//! p=2 v=2 m=3
//! rank 0: 0F0 0F1 0F2 3F0 3B0 3F1 3B1 0B0     3F2 3B2 0B1     0B2
//! rank 1:     1F0 2F0 1F1 2F1 2B0 1B0 1F2 2F2 2B1 1B1 2B2 1B2
//! ```
//!
//! The [building block](super::building_block) goes down the ranks with F0, up with F1, down with B1 and up with
//! B0, each pass as early as the previous one allows: an F takes one slot, a B two. A pause after every third B
//! lets a rank's operations fill a period of six slots without a collision (see [`block`]).
//!
//! Peak about 2p/3 microbatches (3, 6, 11 for p = 4, 8, 16).
//! Source: Qi et al., Pipeline Parallelism with Controllable Memory (2024), and its scheduler by Sea AI Lab.

use super::building_block;
use super::fixed::Fixed;
use super::schedule_trait::{Chunks, ScheduleInfo};
use crate::plan::PlacementKind;

pub(super) const SCHEDULE: Fixed = Fixed {
    info: ScheduleInfo::new("1F1B-V", PlacementKind::V, Chunks::Exactly(2), "Qi et al. 2024, arXiv:2405.15362"),
    build: |info, size| {
        let block = block(size.ranks);
        building_block::build_whole(info, size, |rank| block[rank])
    },
};

/// The slots of [F0, F1, B1, B0] on every rank.
///
/// The distance between a rank's two F is odd, and so is that between its two B, so neither collide with each other
/// in a period of six slots; only an F and a B could. A pause of 3 slots after every third B keeps each rank's B on
/// slots that its F do not use. The count of three starts at a B that depends on p, and if p is a multiple of 3
/// there is one more pause before the first B.
fn block(ranks: usize) -> Vec<[usize; 4]> {
    let mut block: Vec<[usize; 4]> = (0..ranks).map(|rank| [rank, 2 * ranks - 1 - rank, 0, 0]).collect();
    let mut slot = 2 * ranks + if ranks.is_multiple_of(3) { 3 } else { 0 };
    let mut since_pause = (3 - (ranks + 2) % 3) % 3;
    for step in 0..2 * ranks {
        let (rank, pass) = if step < ranks { (step, 2) } else { (2 * ranks - 1 - step, 3) };
        block[rank][pass] = slot;
        since_pause += 1;
        slot += if since_pause == 3 { 5 } else { 2 };
        since_pause %= 3;
    }
    block
}
