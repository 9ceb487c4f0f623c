//! A table of new names, by patterns, and its inverse.
//!
//! Guarantees: a name that the table gives back is one that it would rename to what it was given.
//!
//! 1. The first line of the table whose pattern matches a name renames it; other names stay.
//! 2. Back, the first line counts whose old name the table would rename to this one.

use super::pattern::Pattern;

#[derive(Clone, Default, Debug)]
pub(super) struct Renames {
    /// The old and the new pattern of each line.
    pub(super) lines: Vec<(Pattern, Pattern)>,
    /// True if new names become old ones.
    back: bool,
}

impl Renames {
    pub(super) fn reversed(&self) -> Self {
        Self { lines: self.lines.clone(), back: !self.back }
    }

    /// The line that renames this name, and the result; `None` if it stays. A name that the table neither leaves nor
    /// makes has no way back.
    pub(super) fn renamed(&self, name: &str) -> Result<Option<(usize, String)>, String> {
        let there = |name: &str| self.new_name(name).map(|(_, new)| new);
        if !self.back {
            return Ok(self.new_name(name));
        }
        let lines = self.lines.iter().enumerate();
        let mut old = lines.filter_map(|(line, (from, to))| Some((line, from.filled(&to.find(name)?))));
        match (old.find(|(_, old)| there(old).is_some_and(|new| new == name)), there(name)) {
            (Some(found), _) => Ok(Some(found)),
            (None, None) => Ok(None),
            (None, Some(new)) => Err(format!("`{name}` has no other name to go back to, and would become `{new}`")),
        }
    }

    fn new_name(&self, name: &str) -> Option<(usize, String)> {
        let mut lines = self.lines.iter().enumerate();
        lines.find_map(|(line, (from, to))| Some((line, to.filled(&from.find(name)?))))
    }
}
