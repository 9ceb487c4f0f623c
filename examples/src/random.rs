//! A small seeded generator with equal output on every machine and in every version: SplitMix64.
//!
//! Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014.

/// A stream of pseudo-random numbers that depends on its seed alone.
#[derive(Debug, Clone)]
pub struct SplitMix64 {
    state: u64,
}

impl SplitMix64 {
    /// The stream of this seed.
    pub fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// Stream number `index` of this seed; different indices give unrelated streams.
    pub fn stream(seed: u64, index: u64) -> Self {
        let first = Self::new(seed).next_u64();
        Self::new(first ^ Self::new(index).next_u64())
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number from 0 up to, but not including, `end`, which must not be 0.
    pub fn below(&mut self, end: usize) -> usize {
        // The high half of a 64-bit product: the bias is below `end / 2^64`.
        ((u128::from(self.next_u64()) * end as u128) >> 64) as usize
    }

    /// A number from 0 up to, but not including, 1.
    pub fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_numbers_are_those_of_the_published_generator() {
        // Output of the reference C code (Vigna, prng.di.unimi.it/splitmix64.c) for seed 1234567.
        let mut random = SplitMix64::new(1_234_567);
        let expected = [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423];
        assert_eq!([random.next_u64(), random.next_u64(), random.next_u64()], expected);
    }

    #[test]
    fn numbers_below_an_end_are_spread_evenly() {
        let mut random = SplitMix64::new(7);
        let mut counts = [0; 5];
        (0..50_000).for_each(|_| counts[random.below(5)] += 1);
        // Ten thousand each; the standard deviation is 89.
        assert!(counts.iter().all(|&count: &i32| (count - 10_000).abs() < 500), "{counts:?}");
    }

    #[test]
    fn streams_of_one_seed_differ() {
        let mut firsts: Vec<u64> = (0..1000).map(|index| SplitMix64::stream(3, index).next_u64()).collect();
        firsts.sort_unstable();
        firsts.dedup();
        assert_eq!(firsts.len(), 1000);
    }
}
