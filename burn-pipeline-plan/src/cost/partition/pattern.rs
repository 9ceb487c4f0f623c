//! A model and its cut as a line of text: `EAAM|AAML*2`.
//!
//! ```text
//! pattern = item { item }
//! item    = boundary | part
//! part    = ( kind | '(' pattern ')' ) [ '*' count ]
//! kind    = one ASCII letter: a layer
//! boundary = '|': the next stage begins here
//! count   = digits, at least 1: repeats the letter, or the group in parentheses, right before it
//! ```
//!
//! So `EAAM|AAML*2` is `E A A M | A A M L L`, and `E|(AM|)*2L` is `E | A M | A M | L`. Blanks mean nothing.
//!
//! Guarantees: a [`Pattern`] has at least one layer and no empty stage; its text parses back to it; an error points
//! at a column, counted in characters from 1. Follows the boundaries of NVIDIA's Nemotron pattern strings.

use super::{Partition, PartitionError};
use crate::cost::{LayerKind, Layers};
use std::fmt;
use std::str::FromStr;

/// Kinds of all layers in order, and the layers at which stages begin.
///
/// ```
/// use burn_pipeline_plan::cost::Pattern;
/// let pattern: Pattern = "EAAM|AAML*2".parse()?;
/// assert_eq!((pattern.kinds().len(), pattern.boundaries()), (9, &[4][..]));
/// # Ok::<(), burn_pipeline_plan::cost::PatternError>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Pattern {
    kinds: Vec<LayerKind>,
    boundaries: Vec<usize>,
}

/// Why a text is not a pattern, and where.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("column {column}: {problem}")]
pub struct PatternError {
    /// The character at fault, counted from 1; one beyond the end where something is missing.
    pub column: usize,
    /// What is wrong there.
    pub problem: PatternProblem,
}

/// What is wrong with a pattern.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PatternProblem {
    /// Nothing to cut.
    #[error("the pattern holds no layer; write at least one letter")]
    Empty,
    /// A character that means nothing.
    #[error("`{0}` means nothing here; write letters, `|`, `*` with a count, and parentheses")]
    Unexpected(char),
    /// A stage without layers.
    #[error("the stage that ends here has no layer; remove the boundary or put a layer before it")]
    EmptyStage,
    /// A stage without layers at the end.
    #[error("a boundary stands last; put a layer after it or remove it")]
    LastBoundary,
    /// A repeat of nothing.
    #[error("`*` repeats the letter or the group right before it; there is none")]
    NothingToRepeat,
    /// A repeat without a number.
    #[error("`*` needs a count of at least 1")]
    Count,
    /// A parenthesis that is not closed.
    #[error("this `(` is never closed")]
    Unclosed,
    /// A parenthesis that was not opened.
    #[error("this `)` closes nothing")]
    Unopened,
    /// Nothing between parentheses.
    #[error("the group is empty; put a letter between the parentheses")]
    EmptyGroup,
    /// More layers than can be numbered.
    #[error("the pattern grows beyond {} layers here", Layers::MAX)]
    TooLong,
}

/// A layer, or a boundary with the column it came from.
#[derive(Clone, Copy)]
enum Item {
    Layer(LayerKind),
    Boundary(usize),
}

/// A group that is being read: where it begins, in the text and among the items.
struct Open {
    column: usize,
    first: usize,
}

#[derive(Default)]
struct Parser {
    items: Vec<Item>,
    groups: Vec<Open>,
    /// Where the letter or group that a `*` would repeat begins.
    repeatable: Option<usize>,
}

impl Parser {
    fn character(&mut self, column: usize, character: char) -> Result<(), PatternProblem> {
        self.repeatable = match character {
            '|' => {
                self.push(Item::Boundary(column))?;
                None
            }
            '(' => {
                self.groups.push(Open { column, first: self.items.len() });
                None
            }
            ')' => {
                let group = self.groups.pop().ok_or(PatternProblem::Unopened)?;
                if group.first == self.items.len() {
                    return Err(PatternProblem::EmptyGroup);
                }
                Some(group.first)
            }
            letter => {
                let kind = LayerKind::new(letter).map_err(|_| PatternProblem::Unexpected(letter))?;
                self.push(Item::Layer(kind))?;
                Some(self.items.len() - 1)
            }
        };
        Ok(())
    }

    fn push(&mut self, item: Item) -> Result<(), PatternProblem> {
        self.refuse_long(1)?;
        self.items.push(item);
        Ok(())
    }

    /// Boundaries count too: there are fewer of them than layers in any pattern that is one.
    fn refuse_long(&self, more: usize) -> Result<(), PatternProblem> {
        if self.items.len().saturating_add(more) > 2 * Layers::MAX { Err(PatternProblem::TooLong) } else { Ok(()) }
    }

    fn repeat(&mut self, digits: &str) -> Result<(), PatternProblem> {
        let first = self.repeatable.take().ok_or(PatternProblem::NothingToRepeat)?;
        if digits.bytes().all(|digit| digit == b'0') {
            return Err(PatternProblem::Count);
        }
        // All digits: what does not fit is too long in any case.
        let count: usize = digits.parse().unwrap_or(usize::MAX);
        let length = self.items.len() - first;
        self.refuse_long(length.saturating_mul(count - 1))?;
        let unit = self.items[first..].to_vec();
        (1..count).for_each(|_| self.items.extend_from_slice(&unit));
        Ok(())
    }

    fn finish(self, end: usize) -> Result<Pattern, PatternError> {
        let at = |column, problem| Err(PatternError { column, problem });
        if let Some(group) = self.groups.last() {
            return at(group.column, PatternProblem::Unclosed);
        }
        let (mut kinds, mut boundaries) = (Vec::new(), Vec::new());
        for item in &self.items {
            match *item {
                Item::Layer(kind) => kinds.push(kind),
                Item::Boundary(column) if kinds.len() == boundaries.last().copied().unwrap_or(0) => {
                    return at(column, PatternProblem::EmptyStage);
                }
                Item::Boundary(_) => boundaries.push(kinds.len()),
            }
        }
        match self.items.last() {
            None => at(end, PatternProblem::Empty),
            Some(&Item::Boundary(column)) => at(column, PatternProblem::LastBoundary),
            _ if kinds.len() > Layers::MAX => at(end, PatternProblem::TooLong),
            _ => Ok(Pattern { kinds, boundaries }),
        }
    }
}

impl FromStr for Pattern {
    type Err = PatternError;

    fn from_str(text: &str) -> Result<Self, PatternError> {
        let characters: Vec<(usize, char)> =
            text.chars().enumerate().map(|(i, c)| (i + 1, c)).filter(|(_, c)| !c.is_whitespace()).collect();
        let mut parser = Parser::default();
        let mut rest = characters.as_slice();
        while let [(column, character), after @ ..] = rest {
            let error = |problem| PatternError { column: *column, problem };
            rest = after;
            if *character == '*' {
                let length = rest.iter().take_while(|(_, c)| c.is_ascii_digit()).count();
                let (digits, after) = rest.split_at(length);
                parser.repeat(&digits.iter().map(|(_, c)| c).collect::<String>()).map_err(error)?;
                rest = after;
            } else {
                parser.character(*column, *character).map_err(error)?;
            }
        }
        parser.finish(text.chars().count() + 1)
    }
}

impl Pattern {
    /// The pattern of a model's layers under a cut.
    ///
    /// # Errors
    /// [`PartitionError::Size`] if the cut is of another number of layers.
    pub fn new(layers: &Layers, partition: &Partition) -> Result<Self, PartitionError> {
        partition.refuse_other(layers)?;
        let kinds = layers.all().iter().map(|layer| layer.kind).collect();
        Ok(Self { kinds, boundaries: partition.boundaries().to_vec() })
    }

    /// Kinds of all layers, in order.
    pub fn kinds(&self) -> &[LayerKind] {
        &self.kinds
    }

    /// The layers at which stages begin, without the first stage.
    pub fn boundaries(&self) -> &[usize] {
        &self.boundaries
    }

    /// The cut that the boundaries make; one stage where there are none.
    pub fn partition(&self) -> Partition {
        Partition::trusted(self.kinds.len(), self.boundaries.clone())
    }

    /// The cut, for a model whose layers are of these kinds.
    ///
    /// # Errors
    /// [`PartitionError::Mismatch`] at the first layer that differs.
    pub fn partition_of(&self, layers: &Layers) -> Result<Partition, PartitionError> {
        for layer in 0..layers.len().max(self.kinds.len()) {
            let expected = self.kinds.get(layer).copied();
            let found = layers.all().get(layer).map(|layer| layer.kind);
            if expected != found {
                return Err(PartitionError::Mismatch { layer, expected, found });
            }
        }
        Ok(self.partition())
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for range in self.partition().ranges() {
            if range.start > 0 {
                f.write_str("|")?;
            }
            for run in self.kinds[range].chunk_by(|a, b| a == b) {
                match run.len() {
                    // Up to three letters are no longer than `A*3`.
                    length @ 1..=3 => run[..length].iter().try_for_each(|kind| kind.fmt(f))?,
                    length => write!(f, "{}*{length}", run[0])?,
                }
            }
        }
        Ok(())
    }
}
