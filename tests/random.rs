//! Random numbers whose seed a test can print.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "tests fail by panicking and print their seed")]

use std::time::{SystemTime, UNIX_EPOCH};

/// A linear congruential generator (Knuth's MMIX).
#[derive(Debug)]
pub struct Random(u64);

impl Random {
    /// A generator with a new seed each time. The seed is printed; `SEED` sets it.
    ///
    /// # Panics
    /// If the clock is before 1970.
    pub fn of_now() -> Self {
        let now = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64;
        let seed = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(now);
        println!("seed {seed}");
        Self(seed)
    }

    /// Another generator, for another thread.
    pub fn split(&mut self) -> Self {
        Self(self.below(1 << 31) << 31 | self.below(1 << 31))
    }

    /// A number below the limit.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}
