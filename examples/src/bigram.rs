//! A byte-pair table: the simplest model of text, for comparison with a trained one.
//!
//! The probability of the next byte is its frequency after the current one in the training text, with a little
//! added to every count (Lidstone smoothing), so that no pair is impossible.

/// The number added to every count; small, since only 65 of the 256 bytes occur in the text.
const ADDED: f64 = 0.05;

/// How often each byte follows each other one.
#[derive(Debug, Clone)]
pub struct Bigram {
    counts: Vec<[u32; 256]>,
}

impl Bigram {
    /// Counts the pairs of a text.
    pub fn fit(text: &[u8]) -> Self {
        let mut counts = vec![[0; 256]; 256];
        for pair in text.windows(2) {
            counts[usize::from(pair[0])][usize::from(pair[1])] += 1;
        }
        Self { counts }
    }

    /// The probability that `next` follows `byte`.
    pub fn probability(&self, byte: u8, next: u8) -> f64 {
        let row = &self.counts[usize::from(byte)];
        let total: u32 = row.iter().sum();
        (f64::from(row[usize::from(next)]) + ADDED) / (f64::from(total) + ADDED * 256.0)
    }

    /// The mean negative log-probability of pairs, in nats per byte; 0 for none.
    pub fn loss(&self, pairs: impl Iterator<Item = (u8, u8)>) -> f64 {
        let (mut sum, mut count) = (0.0, 0usize);
        for (byte, next) in pairs {
            sum -= self.probability(byte, next).ln();
            count += 1;
        }
        if count == 0 { 0.0 } else { sum / count as f64 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::corpus::Corpus;

    #[test]
    fn probabilities_of_what_follows_add_up_to_one() {
        let table = Bigram::fit(b"to be or not to be");
        for byte in [b't', b' ', b'z'] {
            let sum: f64 = (0..=255).map(|next| table.probability(byte, next)).sum();
            assert!((sum - 1.0).abs() < 1e-12, "{sum}");
        }
    }

    #[test]
    fn a_table_that_knows_nothing_loses_the_logarithm_of_256() {
        let loss = Bigram::fit(b"").loss(b"abc".iter().copied().zip(b"bcd".iter().copied()));
        assert!((loss - 256f64.ln()).abs() < 1e-12);
    }

    #[test]
    fn the_loss_is_that_of_a_count_by_hand() {
        // `a` is followed by `b` twice and by `c` once.
        let table = Bigram::fit(b"ababac");
        let probability = |count: f64| (count + ADDED) / (3.0 + 256.0 * ADDED);
        let by_hand = -(probability(2.0).ln() + probability(1.0).ln() + probability(0.0).ln()) / 3.0;
        let loss = table.loss([(b'a', b'b'), (b'a', b'c'), (b'a', b'd')].into_iter());
        assert!((loss - by_hand).abs() < 1e-12);
    }

    #[test]
    fn the_loss_on_its_own_text_is_the_conditional_entropy_of_it() {
        // Without smoothing the two are equal; with a twentieth of a count they differ slightly.
        let text = Corpus::shakespeare().training();
        let table = Bigram::fit(text);
        let total = (text.len() - 1) as f64;
        let mut entropy = 0.0;
        for row in &table.counts {
            let all: u32 = row.iter().sum();
            let of = |&count: &u32| f64::from(count) * (f64::from(count) / f64::from(all)).ln();
            entropy -= row.iter().filter(|&&count| count > 0).map(of).sum::<f64>() / total;
        }
        let loss = table.loss(text.windows(2).map(|pair| (pair[0], pair[1])));
        assert!(loss >= entropy && loss < entropy + 1e-3, "{loss} against {entropy}");
    }
}
