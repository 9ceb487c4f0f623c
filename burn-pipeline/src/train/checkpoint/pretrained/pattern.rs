//! The start of a name, with holes: `model.layers.{i}.self_attn`.
//!
//! Guarantees: a name that one pattern matches and another with the same holes fills comes back, with the two
//! exchanged, as it was.
//!
//! 1. A pattern matches a name part by part; parts are separated by dots. What follows in the name is kept.
//! 2. A hole, `{i}`, stands for text without dots, at least one character. A part has at most one: `{p}_proj`.

use std::collections::{BTreeMap, BTreeSet};

/// The start of a name, with holes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Pattern(String);

/// What a pattern left open in a name.
pub(super) struct Found {
    holes: BTreeMap<String, String>,
    rest: Vec<String>,
}

impl Pattern {
    pub(super) fn new(text: &str) -> Self {
        Self(text.to_owned())
    }

    /// The pattern of a name beside the last part of this one.
    pub(super) fn beside(&self, name: &str) -> Self {
        let parent = self.0.rsplit_once('.').map(|(parent, _)| format!("{parent}."));
        Self(format!("{}{name}", parent.unwrap_or_default()))
    }

    /// The names of its holes, or why it is no pattern.
    pub(super) fn holes(&self) -> Result<BTreeSet<&str>, String> {
        let mut holes = BTreeSet::new();
        for part in self.0.split('.') {
            let hole = hole(part);
            let around = hole.map_or(part.to_owned(), |(before, _, after)| format!("{before}{after}"));
            if part.is_empty() || around.contains(['{', '}']) {
                return Err(format!("`{}` has a part that is empty, or has more than one hole (`{{i}}`)", self.0));
            }
            if hole.is_some_and(|(_, name, _)| !holes.insert(name)) {
                return Err(format!("`{}` has two holes of one name", self.0));
            }
        }
        Ok(holes)
    }

    /// What it leaves open in a name; `None` if it does not match.
    pub(super) fn find(&self, name: &str) -> Option<Found> {
        let (mut holes, mut parts) = (BTreeMap::new(), name.split('.'));
        for own in self.0.split('.') {
            let part = parts.next()?;
            let Some((before, hole, after)) = hole(own) else {
                if own == part {
                    continue;
                }
                return None;
            };
            let value = part.strip_prefix(before)?.strip_suffix(after).filter(|value| !value.is_empty())?;
            holes.insert(hole.to_owned(), value.to_owned());
        }
        Some(Found { holes, rest: parts.map(str::to_owned).collect() })
    }

    /// The name that has in its holes, and after it, what was found.
    pub(super) fn filled(&self, found: &Found) -> String {
        let fill = |part| match hole(part) {
            Some((before, hole, after)) => {
                format!("{before}{}{after}", found.holes.get(hole).map_or("", String::as_str))
            }
            None => part.to_owned(),
        };
        let parts: Vec<String> = self.0.split('.').map(fill).chain(found.rest.iter().cloned()).collect();
        parts.join(".")
    }
}

impl std::fmt::Display for Pattern {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// The hole of a part, between what is before and after it.
fn hole(part: &str) -> Option<(&str, &str, &str)> {
    let (before, rest) = part.split_once('{')?;
    let (hole, after) = rest.split_once('}')?;
    Some((before, hole, after))
}
