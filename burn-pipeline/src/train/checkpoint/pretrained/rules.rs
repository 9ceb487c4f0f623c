//! How stored tensors become those of the model: other names, fused and split projections, rotary halves and pairs.
//!
//! Guarantees: every rule has an inverse, so what was loaded with rules is exported with the same ones. A rule that
//! matches nothing is an error, because it was written for other names; so are two tensors that get one name.
//!
//! 1. Rules work on a table: a name, and where its values come from ([`Source`]). At first every stored tensor is
//!    itself.
//! 2. Each rule changes the table that the ones before it made. Values are not needed for that.
//! 3. In reverse, from the last to the first, each rule is replaced by its inverse.

use super::factors::{adapts_rows_of, is_adapter, renamed};
use super::pattern::{Found, Pattern};
use super::renames::Renames;
use super::source::Source;
use crate::train::checkpoint::error::CheckpointError;
use std::collections::{BTreeMap, BTreeSet};

/// Tensors by name, and where their values come from.
pub(in crate::train::checkpoint) type Table = BTreeMap<String, Source>;

#[derive(Clone, Debug)]
pub(super) enum Rule {
    Rename(Renames),
    Split(Fused),
    Join(Fused),
    Turn {
        rows: Pattern,
        heads: usize,
        to_pairs: bool,
    },
    /// PEFT's names and layout of adapters, and Burn's.
    Adapters {
        to_burn: bool,
    },
}

/// A fused tensor and its parts, with their sizes along a dimension.
#[derive(Clone, Debug)]
pub(super) struct Fused {
    whole: Pattern,
    dim: usize,
    parts: Vec<(Pattern, usize)>,
}

/// Rules in the order in which they are applied.
#[derive(Clone, Default, Debug)]
pub(in crate::train::checkpoint) struct Rules(Vec<Rule>);

impl Rules {
    pub(super) fn rename(&mut self, from: &str, to: &str) {
        if !matches!(self.0.last(), Some(Rule::Rename(_))) {
            self.0.push(Rule::Rename(Renames::default()));
        }
        if let Some(Rule::Rename(renames)) = self.0.last_mut() {
            renames.lines.push((Pattern::new(from), Pattern::new(to)));
        }
    }

    pub(super) fn push(&mut self, rule: Rule) {
        self.0.push(rule);
    }

    /// Last, Burn's adapters become PEFT's.
    pub(in crate::train::checkpoint) fn end_as_peft(&mut self) {
        self.0.retain(|rule| !matches!(rule, Rule::Adapters { .. }));
        self.0.push(Rule::Adapters { to_burn: false });
    }

    pub(in crate::train::checkpoint) fn reversed(&self) -> Self {
        let reverse = |rule: &Rule| match rule.clone() {
            Rule::Rename(renames) => Rule::Rename(renames.reversed()),
            Rule::Split(fused) => Rule::Join(fused),
            Rule::Join(fused) => Rule::Split(fused),
            Rule::Turn { rows, heads, to_pairs } => Rule::Turn { rows, heads, to_pairs: !to_pairs },
            Rule::Adapters { to_burn } => Rule::Adapters { to_burn: !to_burn },
        };
        Self(self.0.iter().rev().map(reverse).collect())
    }

    /// The table that the rules make of tensors with these names, and for each rule (of renames, each line) whether it
    /// matched one.
    pub(in crate::train::checkpoint) fn apply(
        &self,
        names: impl Iterator<Item = String>,
    ) -> Result<(Table, Vec<bool>), CheckpointError> {
        let of_adapters = self.0.iter().any(|rule| matches!(rule, Rule::Adapters { .. }));
        let moves = |rule: &&Rule| matches!(rule, Rule::Split(_) | Rule::Join(_));
        if let Some(rule) = self.0.iter().find(moves).filter(|_| of_adapters) {
            let message =
                "it changes weights, and adapters cannot follow; leave it out, and adapt other layers".to_owned();
            return Err(CheckpointError::Rule { rule: rule.said().join(", "), message });
        }
        let mut table: Table = names.map(|name| (name.clone(), Source::Whole(name))).collect();
        let mut matched = Vec::new();
        for rule in &self.0 {
            let failed = |message| CheckpointError::Rule { rule: rule.said().join(", "), message };
            rule.check().map_err(failed)?;
            let mut changed = Changed::default();
            for (name, source) in std::mem::take(&mut table) {
                rule.apply(name, source, &mut changed).map_err(failed)?;
            }
            matched.extend((0..rule.said().len()).map(|line| changed.matched.contains(&line)));
            table = changed.finish(rule).map_err(failed)?;
        }
        Ok((table, matched))
    }

    /// Refuses a rule that matched no tensor anywhere.
    pub(in crate::train::checkpoint) fn all_matched(&self, matched: &[bool]) -> Result<(), CheckpointError> {
        let mut rules = self.0.iter().flat_map(Rule::said).zip(matched);
        let message = "it matches no tensor; patterns start at the start of a name".to_owned();
        let idle = rules.find(|(_, matched)| !**matched);
        idle.map_or(Ok(()), |(rule, _)| Err(CheckpointError::Rule { rule, message }))
    }
}

impl Fused {
    pub(super) fn new(whole: &str, dim: usize, parts: &[(&str, usize)]) -> Self {
        let whole = Pattern::new(whole);
        let parts = parts.iter().map(|(name, size)| (whole.beside(name), *size)).collect();
        Self { whole, dim, parts }
    }

    fn split(&self, found: &Found, source: &Source, changed: &mut Changed) -> Result<(), String> {
        changed.matched.insert(0);
        // Sizes come from the caller; a sum beyond `usize` fits no tensor either.
        let (size, mut start) = (self.parts.iter().fold(0, |sum: usize, (_, size)| sum.saturating_add(*size)), 0_usize);
        self.parts.iter().try_for_each(|(part, own)| {
            let (of, range) = (Box::new(source.clone()), start..start.saturating_add(*own));
            start = range.end;
            changed.insert(part.filled(found), Source::Part { of, dim: self.dim, range, size })
        })
    }

    /// The place of a part among the parts, and what its pattern found.
    fn part(&self, name: &str) -> Option<(usize, Found)> {
        self.parts.iter().enumerate().find_map(|(place, (part, _))| Some((place, part.find(name)?)))
    }
}

impl Rule {
    /// Refuses a rule that has no inverse, or whose patterns are none.
    fn check(&self) -> Result<(), String> {
        let equal = |one: &Pattern, other: &Pattern| match one.holes()? == other.holes()? {
            true => Ok(()),
            false => Err(format!("`{one}` and `{other}` must have the same holes, so that it can be undone")),
        };
        match self {
            Rule::Rename(renames) => renames.lines.iter().try_for_each(|(from, to)| equal(from, to)),
            Rule::Split(Fused { whole, parts, .. }) | Rule::Join(Fused { whole, parts, .. }) => {
                if parts.is_empty() {
                    return Err("it names no part".to_owned());
                }
                parts.iter().try_for_each(|(part, _)| equal(whole, part))
            }
            Rule::Turn { rows, .. } => rows.holes().map(|_| ()),
            Rule::Adapters { .. } => Ok(()),
        }
    }

    /// How messages name it, line by line.
    fn said(&self) -> Vec<String> {
        let list = |parts: &[(Pattern, usize)]| {
            parts.iter().map(|(part, size)| format!("`{part}` ({size})")).collect::<Vec<_>>().join(", ")
        };
        match self {
            Rule::Rename(renames) => {
                renames.lines.iter().map(|(from, to)| format!("`{from}` becomes `{to}`")).collect()
            }
            Rule::Split(Fused { whole, parts, .. }) => vec![format!("`{whole}` is split into {}", list(parts))],
            Rule::Join(Fused { whole, parts, .. }) => vec![format!("`{whole}` is joined from {}", list(parts))],
            Rule::Turn { rows, to_pairs: true, .. } => vec![format!("the halves of `{rows}` become pairs")],
            Rule::Turn { rows, to_pairs: false, .. } => vec![format!("the pairs of `{rows}` become halves")],
            Rule::Adapters { to_burn: true } => vec!["PEFT's adapters become Burn's".to_owned()],
            Rule::Adapters { to_burn: false } => vec!["Burn's adapters become PEFT's".to_owned()],
        }
    }

    fn apply(&self, name: String, source: Source, changed: &mut Changed) -> Result<(), String> {
        match self {
            Rule::Rename(renames) => {
                if let Some((line, new)) = renames.renamed(&name)? {
                    changed.matched.insert(line);
                    return changed.insert(new, source);
                }
            }
            Rule::Split(fused) => {
                if let Some(found) = fused.whole.find(&name) {
                    return fused.split(&found, &source, changed);
                }
            }
            Rule::Join(fused) => {
                if let Some((place, found)) = fused.part(&name) {
                    changed.matched.insert(0);
                    changed.waiting.entry(fused.whole.filled(&found)).or_default().insert(place, (found, source));
                    return Ok(());
                }
            }
            Rule::Turn { rows, heads, to_pairs } => {
                if rows.find(&name).is_some() {
                    changed.matched.insert(0);
                    let turned = turned(&name, source, *heads, *to_pairs);
                    return changed.insert(name, turned);
                }
            }
            Rule::Adapters { to_burn } => {
                if let Some(new) = renamed(&name, *to_burn)? {
                    changed.matched.insert(0);
                    return changed.insert(new, source.transposed());
                }
            }
        }
        changed.insert(name, source)
    }
}

/// A tensor of this name with rotary halves and pairs exchanged.
fn turned(name: &str, source: Source, heads: usize, to_pairs: bool) -> Source {
    let turned = |of| Source::Turned { of: Box::new(of), heads, to_pairs };
    match (adapts_rows_of(name), is_adapter(name)) {
        // The columns of an adapter's second factor are the rows of what it adapts, as PyTorch stores it.
        (Some(_), _) => turned(source.transposed()).transposed(),
        (None, true) => source,
        (None, false) => turned(source),
    }
}

/// The table that a rule makes.
#[derive(Default)]
struct Changed {
    table: Table,
    /// The lines of the rule that matched; most rules have one.
    matched: BTreeSet<usize>,
    /// The parts of each fused tensor that were found, by their places.
    waiting: BTreeMap<String, BTreeMap<usize, (Found, Source)>>,
}

impl Changed {
    fn insert(&mut self, name: String, source: Source) -> Result<(), String> {
        match self.table.insert(name.clone(), source) {
            None => Ok(()),
            Some(_) => Err(format!("two tensors get the name `{name}`")),
        }
    }

    /// Joins the parts of fused tensors.
    fn finish(mut self, rule: &Rule) -> Result<Table, String> {
        let Rule::Join(Fused { parts, dim, .. }) = rule else { return Ok(self.table) };
        for (name, mut found) in std::mem::take(&mut self.waiting) {
            let lacks = (0..parts.len()).find(|place| !found.contains_key(place));
            if let (Some(place), Some((holes, _))) = (lacks, found.values().next()) {
                return Err(format!("`{}` is missing for `{name}`", parts[place].0.filled(holes)));
            }
            let take = |(place, (_, size)): (usize, &(Pattern, usize))| Some((found.remove(&place)?.1, *size));
            let of = parts.iter().enumerate().filter_map(take).collect();
            self.insert(name, Source::Joined { of, dim: *dim })?;
        }
        Ok(self.table)
    }
}
