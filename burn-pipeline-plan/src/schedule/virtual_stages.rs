//! Megatron's tables for interleaving: virtual stage ids, the schedule table, and warm-up counts, for users who compare
//! with Megatron. No plan is built from them.
//!
//! Guarantees: for every size that Megatron accepts (`m` a multiple of `p`, groups of `p`) they describe exactly what
//! [`Interleaved1F1B`](super::Interleaved1F1B) builds; tests compare the two.
//!
//! Source: Megatron-Core, `pipeline_parallel/schedules.py` (`get_schedule_table`, `get_pp_rank_microbatches`).

use super::family::{MAX_FORWARDS, ScheduleError, Size};

/// The warm-up of one rank in the interleaved order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WarmUp {
    /// Forwards before the first pair of a forward and a backward.
    pub forwards: usize,
    /// Forwards that are run in such pairs.
    pub remaining: usize,
    /// Does every forward come before the first backward?
    pub all: bool,
}

/// The stages of a rank in a loop placement: `rank`, `rank + ranks`, and so on, one a chunk.
///
/// # Errors
/// [`ScheduleError::Unsupported`] if there is no such rank, or no chunk.
///
/// ```
/// assert_eq!(burn_pipeline_plan::schedule::virtual_stage_ids(1, 4, 2)?, [1, 5]);
/// # Ok::<(), burn_pipeline_plan::schedule::ScheduleError>(())
/// ```
pub fn virtual_stage_ids(rank: usize, ranks: usize, chunks: usize) -> Result<Vec<usize>, ScheduleError> {
    let size = Size { ranks, chunks, microbatches: 1 };
    refuse_outside(size, rank, None)?;
    Ok((0..chunks).map(|chunk| rank + chunk * ranks).collect())
}

/// The microbatch and chunk of each forward of a rank, in order: groups of `group` microbatches go through all chunks, and
/// the last group may be shorter. Backwards follow the same table with chunks reversed. `None` means groups of
/// `size.ranks`.
///
/// # Errors
/// [`ScheduleError::Unsupported`] if anything is 0 or the table would not fit in memory.
///
/// ```
/// use burn_pipeline_plan::schedule::{Size, schedule_table};
/// let table = schedule_table(Size::new(2, 3).with_chunks(2), None)?;
/// assert_eq!(table, [(0, 0), (1, 0), (0, 1), (1, 1), (2, 0), (2, 1)]);
/// # Ok::<(), burn_pipeline_plan::schedule::ScheduleError>(())
/// ```
pub fn schedule_table(size: Size, group: Option<usize>) -> Result<Vec<(usize, usize)>, ScheduleError> {
    refuse_outside(size, 0, group)?;
    let group = group.unwrap_or(size.ranks);
    let mut table = Vec::with_capacity(size.microbatches * size.chunks);
    for first in (0..size.microbatches).step_by(group) {
        let end = first.saturating_add(group).min(size.microbatches);
        table.extend((0..size.chunks).flat_map(|chunk| (first..end).map(move |microbatch| (microbatch, chunk))));
    }
    Ok(table)
}

/// How many forwards a rank runs before its first pair: `2(p-1-r) + (v-1) g`, at most all of them.
///
/// Without a group it is `size.ranks`.
///
/// # Errors
/// [`ScheduleError::Unsupported`] if there is no such rank, or anything is 0.
///
/// ```
/// use burn_pipeline_plan::schedule::{Size, warm_up};
/// let warm_up = warm_up(1, Size::new(4, 8).with_chunks(2), None)?;
/// assert_eq!((warm_up.forwards, warm_up.remaining, warm_up.all), (8, 8, false));
/// # Ok::<(), burn_pipeline_plan::schedule::ScheduleError>(())
/// ```
pub fn warm_up(rank: usize, size: Size, group: Option<usize>) -> Result<WarmUp, ScheduleError> {
    refuse_outside(size, rank, group)?;
    let total = size.microbatches * size.chunks;
    let group = group.unwrap_or(size.ranks);
    let ahead = (2 * (size.ranks - 1 - rank)).saturating_add((size.chunks - 1).saturating_mul(group));
    let forwards = ahead.min(total);
    Ok(WarmUp { forwards, remaining: total - forwards, all: forwards == total })
}

fn refuse_outside(size: Size, rank: usize, group: Option<usize>) -> Result<(), ScheduleError> {
    let accepts =
        |accepts: String| Err(ScheduleError::Unsupported { family: "Megatron's interleaving", size, accepts });
    let forwards = size.ranks.saturating_mul(size.chunks).saturating_mul(size.microbatches);
    if forwards == 0 {
        return accepts("it needs at least one rank, one chunk a rank and one microbatch".into());
    }
    if forwards > MAX_FORWARDS {
        return accepts(format!("it holds at most {} forwards over all stages", MAX_FORWARDS));
    }
    if rank >= size.ranks {
        return accepts(format!("ranks count from 0, so rank {rank} is not one of them"));
    }
    if group == Some(0) {
        return accepts("a group holds at least one microbatch".into());
    }
    Ok(())
}
