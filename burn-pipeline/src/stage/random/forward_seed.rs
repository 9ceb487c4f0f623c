//! Random numbers in forwards (dropout, noise) that depend only on a seed, the stage and the microbatch.
//!
//! Burn has one generator for each kind of device in a process, and all threads draw from it. With a seed, a captured
//! forward draws from its own generator instead, made from the batch's seed, the stage and the microbatch. So it
//! draws the same numbers whatever ran before, whatever other threads draw meanwhile, in a resumed job, and in a
//! recomputed forward. A forward that runs eagerly must use the device's generator: the engine seeds it, and proves
//! afterwards that nobody else drew (`engine::seeded`). In a tensor-parallel group, layers that know the forward's
//! generator draw from it, captured or not (`of_layers`).

use rand::SeedableRng;
use rand::rngs::StdRng;

/// The seed that the forwards of one stage draw random numbers from. It should differ from batch to batch and from
/// stage to stage; `None` leaves draws to the device.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ForwardSeed(pub(crate) Option<u64>);

impl ForwardSeed {
    /// The seed of a microbatch.
    pub(crate) fn of(&self, microbatch: usize) -> Option<u64> {
        self.0.map(|seed| mixed(seed, microbatch as u64))
    }

    /// The generator of a microbatch.
    pub(crate) fn generator(&self, microbatch: usize) -> Option<StdRng> {
        self.of(microbatch).map(StdRng::seed_from_u64)
    }
}

/// A number that depends on both, evenly distributed: a round of SplitMix64 (Steele, Lea and Flood, 2014).
pub(crate) fn mixed(seed: u64, number: u64) -> u64 {
    let mut z = seed.wrapping_add(number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
