//! Random numbers in forwards (dropout, noise) that depend on a seed, the stage and the microbatch alone.
//!
//! Burn has one generator for each kind of device in a process, which every thread draws from. With a seed, a captured
//! forward draws from a generator of its own instead, made of the batch's seed, the stage and the microbatch: so it draws the
//! same whatever ran before, whatever other threads draw meanwhile, in a job that was taken up again and in a forward that is
//! recomputed. A forward that runs eagerly must use the device's generator: the engine seeds it, and proves afterwards that
//! nobody else drew (`engine::seeded`). Where several ranks hold a stage together, layers that know of the generator draw from it, captured or
//! not (`of_layers`).

use rand::SeedableRng;
use rand::rngs::StdRng;

/// The seed that the forwards of one stage draw random numbers from.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ForwardSeed {
    seed: Option<u64>,
}

impl ForwardSeed {
    /// A seed, which should differ from batch to batch and from stage to stage; `None` leaves draws to the device.
    pub(crate) fn new(seed: Option<u64>) -> Self {
        Self { seed }
    }

    /// Is there a seed?
    pub(crate) fn is_set(&self) -> bool {
        self.seed.is_some()
    }

    /// The seed of a microbatch.
    pub(crate) fn of(&self, microbatch: usize) -> Option<u64> {
        self.seed.map(|seed| mixed(seed, microbatch as u64))
    }

    /// The generator of a microbatch.
    pub(crate) fn generator(&self, microbatch: usize) -> Option<StdRng> {
        self.of(microbatch).map(StdRng::seed_from_u64)
    }
}

/// A number that depends on both, evenly spread: a round of SplitMix64 (Steele, Lea and Flood, 2014).
pub(crate) fn mixed(seed: u64, number: u64) -> u64 {
    let mut z = seed.wrapping_add(number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
