//! Finds the groups to reduce, from declarations and the parameters that ranks hold.
//!
//! Guarantees: a pure function of its arguments, so every rank gets the same groups, in the same order.
//!
//! 1. Each declaration's copies are found by path, in model order, and inside a stage in the order of the declaration:
//!    the fields of a module may have another order than the model. A parameter in several places of one module is one
//!    copy. What does not fit is refused ([`SharedError`]).
//! 2. The copies on one route of the model make a [`Member`]. Members with the same set of ranks make a [`Group`]. The
//!    groups are in the order of declarations, route 0's first.
//! 3. Ranks are pipeline ranks here. Each may be a tensor-parallel group; all groups with a copy have the same size.

use super::declare::{SharedParameter, matches};
use super::report::{SharedCopy, SharedReport};
use super::sharing::{Group, HeldParameter, Member, Sharing};
use crate::stage::SharedError;
use burn::module::ParamId;
use burn_pipeline_plan::plan::{Placement, StageId};
use std::collections::{BTreeMap, BTreeSet};

impl Sharing {
    /// The groups that a table of parameters and declarations implies. `sizes` returns the tensor-parallel group size
    /// of a pipeline rank.
    pub(super) fn find(
        mut rows: Vec<HeldParameter>,
        placement: &Placement,
        declared: &[SharedParameter],
        sizes: impl Fn(usize) -> usize,
    ) -> Result<Self, Box<SharedError>> {
        rows.sort_by_key(|row| row.stage);
        let claims = claims(&rows, declared, placement.stages())?;
        refuse_undeclared(&rows, &claims)?;
        let mut sharing = Self { declared: declared.to_vec(), ..Self::default() };
        for replica in 0..placement.routes() {
            for (number, declaration) in declared.iter().enumerate() {
                let of = |(row, claim): (&HeldParameter, &Option<usize>)| {
                    (*claim == Some(number) && row.stage.route() == replica).then(|| row.clone())
                };
                let held: Vec<HeldParameter> = rows.iter().zip(&claims).filter_map(of).collect();
                let names = held.iter().map(|row| row.name.clone());
                sharing.names.entry(declaration.name().to_owned()).or_default().extend(names);
                let copies = distinct(in_declared_order(held, declaration).into_iter());
                refuse_sizes(declaration.name(), &copies, |row| sizes(placement.rank_of(row.stage)))?;
                sharing.add(declaration.name(), copies, placement)?;
            }
        }
        for report in &mut sharing.reports {
            let with = |group: &&Group| group.members.iter().any(|member| member.name == report.name);
            if let Some(group) = sharing.groups.iter().find(with) {
                report.reduced_with = group.members.iter().map(|member| member.name.clone()).collect();
            }
        }
        Ok(sharing)
    }

    /// Adds one declaration's copies on one route, in model order.
    fn add(&mut self, name: &str, copies: Vec<HeldParameter>, placement: &Placement) -> Result<(), Box<SharedError>> {
        let Some(first) = copies.first() else { return Ok(()) };
        if let Some(other) = copies.iter().find(|row| row.spec() != first.spec()) {
            return Err(Box::new(SharedError::Unlike {
                name: name.to_owned(),
                stage: other.stage.index(),
                path: other.path.clone(),
                got: other.spec(),
                first_stage: first.stage.index(),
                first_path: first.path.clone(),
                expected: first.spec(),
            }));
        }
        let ranks: BTreeSet<usize> = copies.iter().map(|row| placement.rank_of(row.stage)).collect();
        let ranks: Vec<usize> = ranks.into_iter().collect();
        if first.stage.route() == 0 {
            let copy = |row: &HeldParameter| SharedCopy {
                stage: row.stage.index(),
                rank: placement.rank_of(row.stage),
                path: row.path.clone(),
            };
            self.reports.push(SharedReport {
                name: name.to_owned(),
                shape: first.shape.clone(),
                bytes: first.bytes,
                copies: copies.iter().map(copy).collect(),
                ranks: ranks.clone(),
                reduced_with: Vec::new(),
                trainable: first.trainable,
            });
        }
        self.repeats.extend(copies.iter().skip(1).map(|row| (row.stage, row.id)));
        if copies.len() > 1 {
            let member = Member { name: name.to_owned(), copies };
            let route = |member: &Member| member.copies[0].stage.route();
            let same = |group: &&mut Group| {
                group.ranks == ranks && group.members.iter().any(|other| route(other) == route(&member))
            };
            match self.groups.iter_mut().find(same) {
                Some(group) => group.members.push(member),
                None => self.groups.push(Group { ranks, number: 0, members: vec![member] }),
            }
        }
        Ok(())
    }
}

/// Refuses copies in groups of different sizes, because each rank's piece is added to one piece of each copy.
fn refuse_sizes(
    name: &str,
    copies: &[HeldParameter],
    size: impl Fn(&HeldParameter) -> usize,
) -> Result<(), Box<SharedError>> {
    let Some(first) = copies.first() else { return Ok(()) };
    let Some(other) = copies.iter().find(|row| size(row) != size(first)) else { return Ok(()) };
    Err(Box::new(SharedError::GroupSizes {
        name: name.to_owned(),
        stage: other.stage.index(),
        ranks: size(other),
        first_stage: first.stage.index(),
        first_ranks: size(first),
    }))
}

/// For each row, the declaration that claims it.
fn claims(
    rows: &[HeldParameter],
    declared: &[SharedParameter],
    stages: usize,
) -> Result<Vec<Option<usize>>, Box<SharedError>> {
    for declaration in declared {
        let missing = |path: &&String| !rows.iter().any(|row| matches(path, &row.path));
        let lost: Vec<&String> = declaration.paths().iter().filter(missing).collect();
        // A model of one stage may hold the parameter once and use it in both places.
        let tied_inside = stages == 1 && lost.len() < declaration.paths().len();
        let nowhere = || (declaration.paths().is_empty()).then(String::new);
        if let Some(path) = lost.first().filter(|_| !tied_inside).map(|path| (*path).clone()).or_else(nowhere) {
            let name = declaration.name().to_owned();
            return Err(Box::new(SharedError::NotFound { name, path, there: some_paths(rows) }));
        }
    }
    // A parameter in several places of a module is claimed in all of them.
    let mut claimed: BTreeMap<(StageId, ParamId), usize> = BTreeMap::new();
    for row in rows {
        for (number, declaration) in declared.iter().enumerate().filter(|(_, d)| d.holds(&row.path)) {
            let first = *claimed.entry((row.stage, row.id)).or_insert(number);
            if first != number {
                return Err(Box::new(SharedError::DeclaredTwice {
                    stage: row.stage.index(),
                    path: row.path.clone(),
                    first: declared[first].name().to_owned(),
                    second: declaration.name().to_owned(),
                }));
            }
        }
    }
    Ok(rows.iter().map(|row| claimed.get(&(row.stage, row.id)).copied()).collect())
}

/// Some paths, for a message.
fn some_paths(rows: &[HeldParameter]) -> String {
    let paths: BTreeSet<&str> = rows.iter().map(|row| row.path.as_str()).collect();
    let more = if paths.len() > 8 { ", .." } else { "" };
    let shown: Vec<String> = paths.iter().take(8).map(|path| format!("`{path}`")).collect();
    format!("{}{more}", shown.join(", "))
}

/// Refuses an undeclared parameter that two stages hold. The copies of one stage are summed anyway.
fn refuse_undeclared(rows: &[HeldParameter], claims: &[Option<usize>]) -> Result<(), Box<SharedError>> {
    let mut seen: BTreeMap<ParamId, (&HeldParameter, Option<usize>)> = BTreeMap::new();
    for (row, &claim) in rows.iter().zip(claims) {
        let (first, first_claim) = *seen.entry(row.id).or_insert((row, claim));
        let declared = claim.is_some() && claim == first_claim;
        // A parameter that is frozen on both stages stays equal.
        let frozen = !row.trainable && !first.trainable;
        if first.stage.index() != row.stage.index() && !declared && !frozen {
            return Err(Box::new(SharedError::Undeclared {
                first_stage: first.stage.index(),
                first_path: first.path.clone(),
                stage: row.stage.index(),
                path: row.path.clone(),
            }));
        }
    }
    Ok(())
}

/// Parameters of one stage in the order of the declared paths, so that the first copy is the same one on every cut.
fn in_declared_order(mut held: Vec<HeldParameter>, declared: &SharedParameter) -> Vec<HeldParameter> {
    let mut places: BTreeMap<(StageId, ParamId), usize> = BTreeMap::new();
    for row in &held {
        let place = declared.paths().iter().position(|path| matches(path, &row.path)).unwrap_or(usize::MAX);
        places.entry((row.stage, row.id)).and_modify(|first| *first = place.min(*first)).or_insert(place);
    }
    held.sort_by_key(|row| (row.stage, places.get(&(row.stage, row.id)).copied()));
    held
}

/// The first place of every parameter of every stage.
fn distinct(rows: impl Iterator<Item = HeldParameter>) -> Vec<HeldParameter> {
    let mut seen = BTreeSet::new();
    rows.filter(|row| seen.insert((row.stage, row.id))).collect()
}
