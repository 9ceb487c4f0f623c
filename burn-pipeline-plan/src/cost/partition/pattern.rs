//! A model and its cut as a line of text: `EAAM|AAML*2` (after NVIDIA's Nemotron pattern strings).
//!
//! ```text
//! pattern = item { item }
//! item    = boundary | part
//! part    = ( kind | '(' pattern ')' ) [ '*' count ]
//! kind    = one ASCII letter: a layer
//! boundary = '|': a new stage begins here
//! count   = digits, at least 1: repeats the letter or group right before it
//! ```
//!
//! So `EAAM|AAML*2` means `E A A M | A A M L L`, and `E|(AM|)*2L` means `E | A M | A M | L`. Blanks are ignored.
//!
//! Guarantees: a [`Pattern`] has at least one layer and no empty stage. Its text parses back to it. An error names the
//! column of the mistake, counted in characters from 1.

use super::cut::Partition;
use crate::cost::layers::Layers;
use crate::cost::partition_error::PartitionError;
use std::fmt;
use std::str::FromStr;

/// The kinds of all layers in order, and the layers at which stages begin.
///
/// ```
/// use burn_pipeline_plan::cost::Pattern;
/// let pattern: Pattern = "EAAM|AAML*2".parse()?;
/// assert_eq!((pattern.kinds().len(), pattern.boundaries()), (9, &[4][..]));
/// # Ok::<(), burn_pipeline_plan::cost::PartitionError>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Pattern {
    kinds: Vec<char>,
    boundaries: Vec<usize>,
}

/// A layer, or a boundary with its column.
#[derive(Clone, Copy)]
enum Item {
    Layer(char),
    Boundary(usize),
}

/// An open parenthesis: its column in the text, and the index of the group's first item.
struct OpenGroup {
    column: usize,
    first: usize,
}

#[derive(Default)]
struct Parser {
    items: Vec<Item>,
    groups: Vec<OpenGroup>,
    /// The index of the first item that a `*` would repeat, if one is allowed here.
    repeatable: Option<usize>,
}

impl Parser {
    /// Reads one character other than `*`.
    fn character(&mut self, column: usize, character: char) -> Result<(), String> {
        self.repeatable = match character {
            '|' => {
                self.push(Item::Boundary(column))?;
                None
            }
            '(' => {
                self.groups.push(OpenGroup { column, first: self.items.len() });
                None
            }
            ')' => {
                let group = self.groups.pop().ok_or("this `)` closes nothing")?;
                if group.first == self.items.len() {
                    return Err("the group is empty; put a letter between the parentheses".into());
                }
                Some(group.first)
            }
            letter if letter.is_ascii_alphabetic() => {
                self.push(Item::Layer(letter))?;
                Some(self.items.len() - 1)
            }
            other => {
                return Err(format!(
                    "`{other}` has no meaning here; write letters, `|`, `*` with a count, and parentheses"
                ));
            }
        };
        Ok(())
    }

    fn push(&mut self, item: Item) -> Result<(), String> {
        self.refuse_long(1)?;
        self.items.push(item);
        Ok(())
    }

    /// Refuses a pattern before it grows without bound. A valid pattern has fewer boundaries than layers, so twice
    /// the layer limit suffices for both.
    fn refuse_long(&self, more: usize) -> Result<(), String> {
        if self.items.len().saturating_add(more) > 2 * Layers::MAX { Err(too_long()) } else { Ok(()) }
    }

    /// Repeats the last letter or group.
    fn repeat(&mut self, digits: &str) -> Result<(), String> {
        let first =
            self.repeatable.take().ok_or("`*` repeats the letter or the group right before it; there is none")?;
        if digits.bytes().all(|digit| digit == b'0') {
            return Err("`*` needs a count of at least 1".into());
        }
        // All are digits, so parsing fails only for a number that is too large; it is refused below.
        let count: usize = digits.parse().unwrap_or(usize::MAX);
        let length = self.items.len() - first;
        self.refuse_long(length.saturating_mul(count - 1))?;
        let unit = self.items[first..].to_vec();
        (1..count).for_each(|_| self.items.extend_from_slice(&unit));
        Ok(())
    }

    /// Returns the pattern once the text has ended at column `end`.
    fn finish(self, end: usize) -> Result<Pattern, PartitionError> {
        let at = |column, problem: String| Err(PartitionError::Pattern { column, problem });
        if let Some(group) = self.groups.last() {
            return at(group.column, "this `(` is never closed".into());
        }
        let (mut kinds, mut boundaries) = (Vec::new(), Vec::new());
        for item in &self.items {
            match *item {
                Item::Layer(kind) => kinds.push(kind),
                Item::Boundary(column) if kinds.len() == boundaries.last().copied().unwrap_or(0) => {
                    return at(
                        column,
                        "the stage that ends here has no layer; remove the boundary or put a layer before it".into(),
                    );
                }
                Item::Boundary(_) => boundaries.push(kinds.len()),
            }
        }
        match self.items.last() {
            None => at(end, "the pattern holds no layer; write at least one letter".into()),
            Some(&Item::Boundary(column)) => {
                at(column, "the pattern ends in a boundary; put a layer after it or remove it".into())
            }
            _ if kinds.len() > Layers::MAX => at(end, too_long()),
            _ => Ok(Pattern { kinds, boundaries }),
        }
    }
}

fn too_long() -> String {
    format!("the pattern grows beyond {} layers here", Layers::MAX)
}

impl FromStr for Pattern {
    type Err = PartitionError;

    fn from_str(text: &str) -> Result<Self, PartitionError> {
        let characters: Vec<(usize, char)> =
            text.chars().enumerate().map(|(i, c)| (i + 1, c)).filter(|(_, c)| !c.is_whitespace()).collect();
        let mut parser = Parser::default();
        let mut rest = characters.as_slice();
        while let [(column, character), after @ ..] = rest {
            let error = |problem| PartitionError::Pattern { column: *column, problem };
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
    /// Returns [`PartitionError::Size`] if the cut is for another number of layers.
    pub fn new(layers: &Layers, partition: &Partition) -> Result<Self, PartitionError> {
        partition.refuse_other(layers)?;
        let kinds = layers.all().iter().map(|layer| layer.kind).collect();
        Ok(Self { kinds, boundaries: partition.boundaries().to_vec() })
    }

    /// The kinds of all layers, in order.
    pub fn kinds(&self) -> &[char] {
        &self.kinds
    }

    /// The layers at which stages begin, without the first stage.
    pub fn boundaries(&self) -> &[usize] {
        &self.boundaries
    }

    /// The cut at the boundaries; one stage if there are none.
    pub fn partition(&self) -> Partition {
        Partition::trusted(self.kinds.len(), self.boundaries.clone())
    }

    /// The cut at the boundaries, for a model whose layers have the pattern's kinds.
    ///
    /// # Errors
    /// Returns [`PartitionError::Mismatch`] at the first layer that differs.
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
                    // Up to three letters are as short as `A*3`.
                    length @ 1..=3 => run[..length].iter().try_for_each(|kind| kind.fmt(f))?,
                    length => write!(f, "{}*{length}", run[0])?,
                }
            }
        }
        Ok(())
    }
}
