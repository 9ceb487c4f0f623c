//! Random numbers in forwards (dropout, noise) that depend on a seed, the stage and the microbatch alone.
//!
//! Burn has one generator for each kind of device in a process. Ranks on threads draw from it in an undefined order, and
//! its state cannot be read or saved. With a seed:
//!
//! 1. Each forward seeds the generator anew before it runs, from the batch's seed, the stage and the microbatch; so it
//!    draws the same whatever ran before, in a job that was taken up again and in a forward that is recomputed.
//! 2. Forwards take turns meanwhile, over all ranks of the process: the price of one generator.

use super::init::generator;
use burn::module::Module;
use std::sync::MutexGuard;

/// The seed that the forwards of one stage draw random numbers from.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ForwardSeed {
    seed: Option<u64>,
}

impl ForwardSeed {
    /// A seed, which should differ from batch to batch and from stage to stage; `None` leaves the generator alone.
    pub(crate) fn new(seed: Option<u64>) -> Self {
        Self { seed }
    }

    /// Is there a seed?
    pub(crate) fn is_set(&self) -> bool {
        self.seed.is_some()
    }

    /// Seeds the generator for a microbatch, and keeps other stages from seeding it until the guard is dropped.
    pub(crate) fn begin<M: Module>(&self, microbatch: usize, module: &M) -> Option<MutexGuard<'static, ()>> {
        let turn = self.seed.map(|_| generator());
        self.reseed(microbatch, module);
        turn
    }

    /// Seeds the generator for the same microbatch again, while the guard is held.
    pub(crate) fn reseed<M: Module>(&self, microbatch: usize, module: &M) {
        if let Some(seed) = self.seed {
            let device = module.devices().into_iter().next().unwrap_or_default();
            device.seed(mixed(seed, microbatch as u64));
        }
    }
}

/// A number that depends on both, evenly spread: a round of SplitMix64 (Steele, Lea and Flood, 2014).
pub(crate) fn mixed(seed: u64, number: u64) -> u64 {
    let mut z = seed.wrapping_add(number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
