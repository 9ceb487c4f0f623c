//! The training text, and how batches are cut from it.
//!
//! Guarantees: a batch depends only on the seed, its number, its size and the sequence length, so every schedule
//! and every cut of the model gets the same data in the same order. No training window contains held-out text.
//!
//! 1. The last tenth of the tokens (bytes, for the models that read bytes) is held out.
//! 2. A training batch consists of windows of `seq + 1` tokens, whose starts are drawn uniformly from the training
//!    part. The first `seq` tokens are the input, the last `seq` the target.
//! 3. Held-out windows are consecutive, so that every held-out token but the first is predicted once (except a rest
//!    shorter than a window).

use crate::random::SplitMix64;

/// Plays of Shakespeare; see `data/README.md` for origin and licence.
pub const SHAKESPEARE: &[u8] = include_bytes!("../data/shakespeare.txt");

/// A text of bytes, or of other tokens, in two parts.
#[derive(Debug, Clone, Copy)]
pub struct Corpus<'a, T = u8> {
    training: &'a [T],
    held_out: &'a [T],
}

/// Windows of text: row `i` of the targets is row `i` of the inputs, shifted by one token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Windows<T = u8> {
    /// The tokens of a row.
    pub seq: usize,
    /// The input tokens, row after row.
    pub inputs: Vec<T>,
    /// The target tokens, row after row.
    pub targets: Vec<T>,
}

impl<T: Copy> Windows<T> {
    fn cut<'a>(seq: usize, rows: impl Iterator<Item = &'a [T]>) -> Self
    where
        T: 'a,
    {
        let (mut inputs, mut targets) = (Vec::new(), Vec::new());
        for row in rows {
            inputs.extend_from_slice(&row[..seq]);
            targets.extend_from_slice(&row[1..]);
        }
        Self { seq, inputs, targets }
    }

    /// The number of windows.
    pub fn rows(&self) -> usize {
        self.inputs.len() / self.seq
    }

    /// Every input token, with the token to predict after it.
    pub fn pairs(&self) -> impl Iterator<Item = (T, T)> + '_ {
        self.inputs.iter().copied().zip(self.targets.iter().copied())
    }
}

/// The text is too short for windows of the requested length.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "a sequence of {seq} tokens does not fit into {tokens} held-out tokens; use --seq of at most {}",
    tokens.saturating_sub(1)
)]
pub struct TooShort {
    /// The requested sequence length.
    pub seq: usize,
    /// The tokens of the shorter part.
    pub tokens: usize,
}

burn_pipeline::debug_as_text!(TooShort);

impl Corpus<'static> {
    /// The text in this repository.
    pub fn shakespeare() -> Self {
        Self::new(SHAKESPEARE)
    }
}

impl<'a, T: Copy> Corpus<'a, T> {
    /// Holds out the last tenth of a text.
    pub fn new(text: &'a [T]) -> Self {
        let (training, held_out) = text.split_at(text.len() - text.len() / 10);
        Self { training, held_out }
    }

    /// The tokens to train on.
    pub fn training(&self) -> &'a [T] {
        self.training
    }

    /// The tokens that no training window contains.
    pub fn held_out(&self) -> &'a [T] {
        self.held_out
    }

    /// Checks that a window of `seq + 1` tokens fits into both parts.
    ///
    /// # Errors
    /// Returns [`TooShort`], which says what fits, if it does not.
    pub fn fits(&self, seq: usize) -> Result<(), TooShort> {
        let tokens = self.held_out.len().min(self.training.len());
        if seq < tokens { Ok(()) } else { Err(TooShort { seq, tokens }) }
    }

    /// Training batch number `step`: `rows` windows of `seq` tokens. See [`Corpus::fits`] for the possible values of
    /// `seq`.
    pub fn batch(&self, seed: u64, step: usize, rows: usize, seq: usize) -> Windows<T> {
        let mut random = SplitMix64::stream(seed, step as u64);
        let starts = self.training.len() - seq;
        Windows::cut(seq, (0..rows).map(|_| random.below(starts)).map(|start| &self.training[start..=start + seq]))
    }

    /// All held-out windows, at most `rows` at a time.
    pub fn held_out_batches(&self, rows: usize, seq: usize) -> impl Iterator<Item = Windows<T>> + use<'a, T> {
        let held_out = self.held_out;
        let starts: Vec<usize> = (0..held_out.len().saturating_sub(seq)).step_by(seq).collect();
        let batches: Vec<Vec<usize>> = starts.chunks(rows.max(1)).map(<[usize]>::to_vec).collect();
        batches
            .into_iter()
            .map(move |starts| Windows::cut(seq, starts.into_iter().map(|start| &held_out[start..=start + seq])))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_repository_carries_a_megabyte_of_ascii_text() {
        assert!(SHAKESPEARE.len() > 1_000_000);
        assert!(SHAKESPEARE.is_ascii());
        assert!(SHAKESPEARE.starts_with(b"First Citizen:\nBefore we proceed any further, hear me speak."));
    }

    #[test]
    fn the_last_tenth_is_held_out_and_nothing_is_lost() {
        let corpus = Corpus::shakespeare();
        assert_eq!(corpus.held_out().len(), SHAKESPEARE.len() / 10);
        assert_eq!([corpus.training(), corpus.held_out()].concat(), SHAKESPEARE);
    }

    #[test]
    fn targets_are_inputs_one_byte_further_on_and_come_from_the_training_part() {
        // Every byte of this text is its own position, so a window shows where it was cut.
        let text: Vec<u8> = (0..=249).collect();
        let corpus = Corpus::new(&text);
        for step in 0..200 {
            let batch = corpus.batch(1, step, 4, 7);
            assert_eq!(batch.rows(), 4);
            assert!(batch.pairs().all(|(input, target)| target == input + 1 && target < 225));
            assert!(batch.inputs.chunks(7).all(|row| row.windows(2).all(|pair| pair[1] == pair[0] + 1)));
        }
    }

    #[test]
    fn every_training_byte_can_be_a_target() {
        let text: Vec<u8> = (0..=99).collect();
        let corpus = Corpus::new(&text);
        let mut seen: Vec<u8> = (0..500).flat_map(|step| corpus.batch(0, step, 4, 7).targets).collect();
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen, (1..90).collect::<Vec<u8>>());
    }

    #[test]
    fn a_batch_is_told_by_seed_and_step_alone() {
        let corpus = Corpus::shakespeare();
        let batch = |seed, step| corpus.batch(seed, step, 8, 32);
        assert_eq!(batch(5, 17), batch(5, 17));
        assert_ne!(batch(5, 17), batch(5, 18));
        assert_ne!(batch(5, 17), batch(6, 17));
        // More rows of the same step begin with the same rows.
        assert_eq!(corpus.batch(5, 17, 12, 32).inputs[..8 * 32], batch(5, 17).inputs);
    }

    #[test]
    fn held_out_windows_predict_every_byte_but_the_first_once() {
        let text: Vec<u8> = (0..=249).collect();
        for (seq, rows) in [(1, 1), (4, 2), (6, 100), (24, 3)] {
            let batches: Vec<Windows> = Corpus::new(&text).held_out_batches(rows, seq).collect();
            let targets: Vec<u8> = batches.iter().flat_map(|batch| batch.targets.clone()).collect();
            assert_eq!(targets, (226..=249).collect::<Vec<u8>>(), "windows of {seq} bytes");
            assert!(batches.iter().all(|batch| batch.rows() <= rows && batch.pairs().all(|(a, b)| b == a + 1)));
        }
        // A rest shorter than a window is left out.
        let targets = Corpus::new(&text).held_out_batches(9, 7).map(|batch| batch.targets.len()).sum::<usize>();
        assert_eq!(targets, 21);
    }

    #[test]
    fn a_sequence_longer_than_the_held_out_text_is_refused() {
        let corpus = Corpus::new(&[0; 100]);
        assert_eq!(corpus.fits(9), Ok(()));
        let error = corpus.fits(10).unwrap_err();
        assert_eq!(error, TooShort { seq: 10, tokens: 10 });
        assert!(error.to_string().contains("--seq of at most 9"), "{error}");
    }
}
