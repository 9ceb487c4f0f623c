//! Compares the copies of tied parameters bit for bit, by a hash of their values.
//!
//! 1. Once, after the first step whose learning rate is not 0. All got the same gradient and the same groups, but the
//!    optimizers of two stages may differ in ways that no declaration shows (made from a counter, for example).
//! 2. After a module was replaced, before the next batch or checkpoint: a new module may have another value of one
//!    copy, or freeze it.

use super::sharing::{HeldParameter, Member, Sharing};
use crate::execute::{ExecuteError, Executor};
use crate::stage::SharedError;
use std::collections::{BTreeMap, BTreeSet};

/// The hash of a copy's values, and whether it trains.
type Hash = (u64, bool);

impl Sharing {
    /// After the first step that moves weights: refuses copies that differ. All ranks must call it.
    pub(crate) fn refuse_diverged_once(&mut self, executor: &mut Executor) -> Result<(), ExecuteError> {
        if std::mem::replace(&mut self.compared, true) {
            return Ok(());
        }
        self.refuse_unlike(executor, false)
    }

    /// After a module was replaced: refuses copies that differ. All ranks must call it.
    pub(crate) fn refuse_replaced(&mut self, executor: &mut Executor) -> Result<(), ExecuteError> {
        if !self.replaced {
            return Ok(());
        }
        self.refuse_unlike(executor, true)?;
        self.replaced = false;
        Ok(())
    }

    /// Refuses a copy that differs from its parameter's first copy, in value or in whether it trains. All ranks must
    /// call it. `replaced` is true if a replaced module may be the cause.
    fn refuse_unlike(&self, executor: &mut Executor, replaced: bool) -> Result<(), ExecuteError> {
        if self.groups.is_empty() {
            return Ok(());
        }
        // Every copy, and the place of its parameter's first copy.
        let mut copies: Vec<(&Member, &HeldParameter, usize)> = Vec::new();
        for member in self.groups.iter().flat_map(|group| &group.members) {
            let first = copies.len();
            copies.extend(member.copies.iter().map(|copy| (member, copy, first)));
        }
        let rank = executor.rank();
        let mut own: Vec<(usize, Hash)> = Vec::new();
        for (place, (_, copy, _)) in copies.iter().enumerate() {
            own.extend(hash_of(executor, copy)?.map(|hash| (place, hash)));
        }
        let table = executor.gather(&own)?;
        // Each data-parallel replica is compared by itself, because shards differ between replicas; likewise each place
        // in the tensor-parallel groups.
        let grid = executor.grid();
        let held_by = |rank: usize| (grid.replica_of(rank), rank - grid.group_of(rank).start);
        let rows = table.iter().enumerate();
        let rows = rows.flat_map(|(rank, row)| row.iter().map(move |&(place, hash)| ((held_by(rank), place), hash)));
        let hashes: BTreeMap<((usize, usize), usize), Hash> = rows.collect();
        let holders: BTreeSet<(usize, usize)> = hashes.keys().map(|(holder, _)| *holder).collect();
        for (place, &(member, copy, first)) in copies.iter().enumerate() {
            let diverged = |holder: &(usize, usize)| hashes.get(&(*holder, place)) != hashes.get(&(*holder, first));
            if holders.iter().any(diverged) {
                let of = |copy: &HeldParameter| (copy.stage.index(), copy.path.clone());
                let (name, (stage, path)) = (member.name.clone(), of(copy));
                let (first_stage, first_path) = of(&member.copies[0]);
                let source = match replaced {
                    true => SharedError::Replaced { name, stage, path, first_stage, first_path },
                    false => SharedError::Diverged { name, stage, path, first_stage, first_path },
                };
                return Err(ExecuteError::Shared { rank, source: Box::new(source) });
            }
        }
        Ok(())
    }
}

/// The hash of a copy; `None` if another rank holds it.
fn hash_of(executor: &mut Executor, copy: &HeldParameter) -> Result<Option<Hash>, ExecuteError> {
    let rank = executor.rank();
    let Some(held) = executor.stages().get(&copy.stage) else { return Ok(None) };
    let trains = held.named_parameters().iter().any(|parameter| parameter.id == copy.id && parameter.trainable);
    let Some(value) = copy.value(executor) else { return Ok(None) };
    let hash = value.digest().map_err(|message| ExecuteError::Device { rank, message })?;
    Ok(Some((hash, trains)))
}
