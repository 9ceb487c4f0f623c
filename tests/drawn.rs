//! Random faults: how a rank fails, which one of how many, and where. Equal seeds give equal faults on every
//! machine.
//!
//! Each transport's test draws `FAULTS` faults, or a few by default, starting at `SEED`. To run a thousand and two:
//!
//! ```sh
//! FAULTS=334 SEED=1 cargo test --workspace --features pipeline-tests/mpi \
//!     --test runtime --test tcp --test mpi at_random -- --nocapture
//! ```

use crate::faulty_link::Fault;
use crate::random::Random;
use std::fmt;

/// A fault, and where it occurs.
#[derive(Clone, Copy, Debug)]
pub struct Drawn {
    /// What happens.
    pub fault: Fault,
    /// The number of ranks in the job.
    pub ranks: usize,
    /// The rank that fails.
    pub failing: usize,
    /// The use of the rank's link at which it fails, from 1.
    pub at: usize,
}

impl fmt::Display for Drawn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { fault, ranks, failing, at } = self;
        write!(f, "{fault:?} on rank {failing} of {ranks}, at its use {at} of the link")
    }
}

/// The value of `FAULTS`, or `few`.
pub fn count(few: usize) -> usize {
    std::env::var("FAULTS").ok().and_then(|count| count.parse().ok()).unwrap_or(few)
}

/// Faults of these kinds.
pub fn faults(kinds: &[Fault], few: usize) -> Vec<Drawn> {
    let mut random = Random::of_now();
    let mut below = |limit: usize| random.below(limit as u64) as usize;
    let mut drawn = || {
        let (fault, ranks) = (kinds[below(kinds.len())], 2 + below(3));
        // Of two ranks with different plans, neither is in the minority: the later one is named.
        let ranks = if fault == Fault::OtherPlan { ranks.max(3) } else { ranks };
        Drawn { fault, ranks, failing: below(ranks), at: 1 + below(60) }
    };
    (0..count(few)).map(|_| drawn()).collect()
}
