//! From declarations and what every rank holds to the groups that reduce.
//!
//! Guarantees: every rank comes to the same result, since each looks at the same table with the same rules; so
//! groups are formed, and later reduced, in one order everywhere.
//!
//! 1. Every rank gathers every rank's parameters: stage, path, identifier, shape, element type, trained or not.
//! 2. Each declaration's copies are found by path, in model order; one parameter that sits in several places of a
//!    module is one copy. What does not fit is refused ([`SharedError`]).
//! 3. Copies of one replica of the model make a [`Member`]. Members with the same set of ranks make a [`Group`]. The
//!    groups come in the order of declarations, replica 0's first.

use super::declare::{SharedParameter, matches};
use super::report::{SharedCopy, SharedReport};
use super::row::Row;
use super::{sum, watch};
use crate::execute::{ExecuteError, Executor};
use crate::link::gather;
use crate::plan::{Placement, StageId};
use crate::stage::SharedError;
use burn::module::ParamId;
use std::collections::{BTreeMap, BTreeSet};

/// One copy of a shared parameter.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Copy {
    pub(super) stage: StageId,
    pub(super) id: ParamId,
    pub(super) path: String,
}

/// The copies of a shared parameter in one replica of the model, in model order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Member {
    pub(super) name: String,
    pub(super) copies: Vec<Copy>,
}

/// Members that are held by exactly the same ranks, of which there may be one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Group {
    /// Ascending.
    pub(super) ranks: Vec<usize>,
    pub(super) members: Vec<Member>,
}

/// What all ranks agreed on.
#[derive(Clone, PartialEq, Debug, Default)]
pub(crate) struct Sharing {
    pub(super) groups: Vec<Group>,
    /// Copies that are not the first of their parameter: the gradient norm leaves them out.
    repeats: BTreeSet<(StageId, u64)>,
    reports: Vec<SharedReport>,
    /// Were copies compared since the first step?
    watched: bool,
    /// The number of this data-parallel replica's first group among the groups of all.
    pub(super) first: usize,
}

impl Sharing {
    /// Gathers what every rank holds, and forms the groups. All ranks must call it.
    pub(crate) fn agree(
        executor: &mut Executor,
        placement: &Placement,
        declared: &[SharedParameter],
    ) -> Result<Self, ExecuteError> {
        let rank = executor.rank();
        let mut rows = Vec::new();
        for (&stage, held) in executor.stages().iter() {
            rows.extend(held.named_parameters().into_iter().map(|parameter| Row::new(stage, parameter)));
        }
        let deadline = executor.deadline();
        let rows = gather(executor.link(), &rows, deadline);
        let rows: Vec<Vec<Row>> = rows.map_err(|source| ExecuteError::Link { rank, task: None, source })?;
        let grid = executor.grid();
        // Each data-parallel replica shares among its own ranks.
        let own = |rank: usize| grid.rank_of(grid.pipeline_rank_of(rank)) == rank;
        let rows: Vec<Row> =
            rows.into_iter().enumerate().filter(|(rank, _)| own(*rank)).flat_map(|(_, rows)| rows).collect();
        let found = Self::find(rows, placement, declared);
        let mut sharing = found.map_err(|source| ExecuteError::Shared { rank, source })?;
        let in_replica = |ranks: &[usize], replica| ranks.iter().map(|&place| grid.rank_in(place, replica)).collect();
        let of = |replica| sharing.groups.iter().map(move |group| in_replica(&group.ranks, replica));
        let groups: Vec<Vec<usize>> = (0..grid.replicas()).flat_map(of).collect();
        sharing.first = grid.replica() * sharing.groups.len();
        sharing.groups.iter_mut().for_each(|group| group.ranks = in_replica(&group.ranks, grid.replica()));
        let formed = executor.link().form_groups(&groups, deadline);
        formed.map_err(|source| ExecuteError::Link { rank, task: None, source })?;
        if rank == 0 {
            sharing.reports.iter().for_each(|report| tracing::info!(%report, "shared parameter"));
        }
        Ok(sharing)
    }

    /// The groups that a table of parameters and declarations imply.
    pub(super) fn find(
        mut rows: Vec<Row>,
        placement: &Placement,
        declared: &[SharedParameter],
    ) -> Result<Self, Box<SharedError>> {
        rows.sort_by_key(|row| row.stage);
        let claims = claims(&rows, declared, placement.stages())?;
        refuse_undeclared(&rows, &claims)?;
        let mut sharing = Self::default();
        for replica in 0..placement.routes() {
            for (number, declaration) in declared.iter().enumerate() {
                let of = |(row, claim): (&Row, &Option<usize>)| {
                    (*claim == Some(number) && row.stage.replica() == replica).then(|| row.clone())
                };
                let copies = distinct(rows.iter().zip(&claims).filter_map(of));
                sharing.add(declaration.name(), copies, placement, replica == 0)?;
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

    /// Adds one declaration's copies in one replica, in model order.
    fn add(
        &mut self,
        name: &str,
        copies: Vec<Row>,
        placement: &Placement,
        report: bool,
    ) -> Result<(), Box<SharedError>> {
        let Some(first) = copies.first() else { return Ok(()) };
        if let Some(other) = copies.iter().find(|row| row.form() != first.form()) {
            return Err(Box::new(SharedError::Unlike {
                name: name.to_owned(),
                stage: other.stage.index(),
                path: other.path.clone(),
                got: other.form(),
                first_stage: first.stage.index(),
                first_path: first.path.clone(),
                expected: first.form(),
            }));
        }
        let ranks: BTreeSet<usize> = copies.iter().map(|row| placement.rank_of(row.stage)).collect();
        let ranks: Vec<usize> = ranks.into_iter().collect();
        if report {
            let copy = |row: &Row| SharedCopy {
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
            let copy = |row: Row| Copy { stage: row.stage, id: ParamId::from(row.id), path: row.path };
            let member = Member { name: name.to_owned(), copies: copies.into_iter().map(copy).collect() };
            let replica = member.copies[0].stage.replica();
            let same = |group: &&mut Group| {
                group.ranks == ranks && group.members.iter().any(|m| m.copies[0].stage.replica() == replica)
            };
            match self.groups.iter_mut().find(same) {
                Some(group) => group.members.push(member),
                None => self.groups.push(Group { ranks, members: vec![member] }),
            }
        }
        Ok(())
    }

    /// Refuses parameters of which only some copies are sharded over data-parallel replicas. All ranks must call it.
    pub(crate) fn refuse_half_sharded(&self, executor: &mut Executor) -> Result<(), ExecuteError> {
        // With one replica nothing is sharded.
        if self.groups.is_empty() || executor.grid().replicas() < 2 {
            return Ok(());
        }
        let (rank, deadline) = (executor.rank(), executor.deadline());
        let stages: Vec<StageId> = executor.stages().keys().copied().collect();
        let own: Vec<(usize, bool)> = stages.iter().map(|stage| (stage.index(), executor.shards(*stage))).collect();
        let table = gather(executor.link(), &own, deadline);
        let table = table.map_err(|source| ExecuteError::Link { rank, task: None, source })?;
        let sharded: BTreeMap<usize, bool> = table.into_iter().flatten().collect();
        for member in self.groups.iter().flat_map(|group| &group.members) {
            let of = |copy: &Copy| sharded.get(&copy.stage.index());
            let first = &member.copies[0];
            if let Some(other) = member.copies.iter().find(|copy| of(copy) != of(first)) {
                let (stage, first_stage) = (other.stage.index(), first.stage.index());
                let source = SharedError::HalfSharded { name: member.name.clone(), stage, first_stage };
                return Err(ExecuteError::Shared { rank, source: Box::new(source) });
            }
        }
        Ok(())
    }

    /// Gives every copy the value of the first one. All ranks must call it.
    pub(crate) fn copy_first(&self, executor: &mut Executor) -> Result<(), ExecuteError> {
        sum::copy_first(self, executor)
    }

    /// Replaces the gradient of every copy by the sum over all copies. All ranks must call it.
    pub(crate) fn sum_gradients(&self, executor: &mut Executor) -> Result<(), ExecuteError> {
        sum::sum_gradients(self, executor)
    }

    /// After the first step that is taken: refuses copies that the optimizer drove apart. All ranks must call it.
    pub(crate) fn watch(&mut self, executor: &mut Executor) -> Result<(), ExecuteError> {
        if self.watched || self.groups.is_empty() {
            return Ok(());
        }
        self.watched = true;
        watch::refuse_diverged(self, executor)
    }

    /// Is this a copy whose first one counts for it?
    pub(crate) fn repeats(&self, stage: StageId, id: ParamId) -> bool {
        self.repeats.contains(&(stage, id.val()))
    }

    /// The declaration's name of the shared parameter that a stage holds first at this path.
    pub(crate) fn name_of(&self, stage: StageId, path: &str) -> Option<&str> {
        let holds =
            |report: &&SharedReport| report.copies.iter().any(|copy| copy.stage == stage.index() && copy.path == path);
        self.reports.iter().find(holds).map(|report| report.name.as_str())
    }

    /// What is shared, and how.
    pub(crate) fn reports(&self) -> &[SharedReport] {
        &self.reports
    }
}

/// For each row the declaration that claims it.
fn claims(rows: &[Row], declared: &[SharedParameter], stages: usize) -> Result<Vec<Option<usize>>, Box<SharedError>> {
    for declaration in declared {
        let missing = |path: &&String| !rows.iter().any(|row| matches(path, &row.path));
        let lost: Vec<&String> = declaration.paths().iter().filter(missing).collect();
        // A model that is one stage may hold the parameter once and use it in both places.
        let tied_inside = stages == 1 && lost.len() < declaration.paths().len();
        let nowhere = || (declaration.paths().is_empty()).then(String::new);
        if let Some(path) = lost.first().filter(|_| !tied_inside).map(|path| (*path).clone()).or_else(nowhere) {
            let name = declaration.name().to_owned();
            return Err(Box::new(SharedError::NotFound { name, path, there: some_paths(rows) }));
        }
    }
    // A parameter that sits in several places of a module is claimed in all of them.
    let mut claimed: BTreeMap<(StageId, u64), usize> = BTreeMap::new();
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
fn some_paths(rows: &[Row]) -> String {
    let paths: BTreeSet<&str> = rows.iter().map(|row| row.path.as_str()).collect();
    let more = if paths.len() > 8 { ", .." } else { "" };
    let shown: Vec<String> = paths.iter().take(8).map(|path| format!("`{path}`")).collect();
    format!("{}{more}", shown.join(", "))
}

/// Refuses one parameter on two stages that no declaration speaks of. The replicas of one stage are summed anyway.
fn refuse_undeclared(rows: &[Row], claims: &[Option<usize>]) -> Result<(), Box<SharedError>> {
    let mut seen: BTreeMap<u64, (&Row, Option<usize>)> = BTreeMap::new();
    for (row, &claim) in rows.iter().zip(claims) {
        let (first, first_claim) = *seen.entry(row.id).or_insert((row, claim));
        let declared = claim.is_some() && claim == first_claim;
        // What is frozen on both stages stays equal by itself.
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

/// The first place of every parameter of every stage.
fn distinct(rows: impl Iterator<Item = Row>) -> Vec<Row> {
    let mut seen = BTreeSet::new();
    rows.filter(|row| seen.insert((row.stage, row.id))).collect()
}
