//! Compares the copies of tied parameters bit for bit, by a hash of their values.
//!
//! 1. Once, after the first step. All got the same gradient and the same groups, but the optimizers of two stages may
//!    differ in ways that no declaration shows (made from a counter, for example).
//! 2. After a module was replaced, before the next batch or checkpoint: a new module may have another value of one
//!    copy, or freeze it.

use super::sharing::{Copy, Sharing};
use crate::execute::{ExecuteError, Executor};
use crate::stage::SharedError;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};

impl Sharing {
    /// After the first step: refuses copies that differ. All ranks must call it.
    pub(crate) fn refuse_diverged_once(&mut self, executor: &mut Executor) -> Result<(), ExecuteError> {
        if std::mem::replace(&mut self.compared, true) {
            return Ok(());
        }
        self.refuse_unlike(executor, |name, stage, path, first_stage, first_path| SharedError::Diverged {
            name,
            stage,
            path,
            first_stage,
            first_path,
        })
    }

    /// After a module was replaced: refuses copies that differ. All ranks must call it.
    pub(crate) fn refuse_replaced(&mut self, executor: &mut Executor) -> Result<(), ExecuteError> {
        if !self.replaced {
            return Ok(());
        }
        self.refuse_unlike(executor, |name, stage, path, first_stage, first_path| SharedError::Replaced {
            name,
            stage,
            path,
            first_stage,
            first_path,
        })?;
        self.replaced = false;
        Ok(())
    }

    /// Refuses a copy that differs from its parameter's first copy, in value or in whether it trains. All ranks must
    /// call it. `error` takes the parameter's name, and stage and path of the copy and of the first copy.
    fn refuse_unlike(
        &self,
        executor: &mut Executor,
        error: impl Fn(String, usize, String, usize, String) -> SharedError,
    ) -> Result<(), ExecuteError> {
        if self.groups.is_empty() {
            return Ok(());
        }
        let rank = executor.rank();
        let copies =
            || self.groups.iter().flat_map(|group| &group.members).flat_map(|m| m.copies.iter().map(move |c| (m, c)));
        let mut own: Vec<(usize, u64)> = Vec::new();
        for (place, (_, copy)) in copies().enumerate() {
            let Some(held) = executor.stages().get(&copy.stage) else { continue };
            let Some((_, weight)) = held.weights().into_iter().find(|(id, _)| *id == copy.id) else { continue };
            let data = weight.to_data().map_err(|message| ExecuteError::Device { rank, message })?;
            let trains = held.named_parameters().iter().any(|parameter| parameter.id == copy.id && parameter.trainable);
            let mut hasher = DefaultHasher::new();
            (data.as_bytes(), trains).hash(&mut hasher);
            own.push((place, hasher.finish()));
        }
        let table = executor.gather(&own)?;
        // Each data-parallel replica is compared by itself, because shards differ between replicas; likewise each place
        // in the tensor-parallel groups.
        let grid = executor.grid();
        let held_by = |rank: usize| (grid.replica_of(rank), rank - grid.group_of(rank).start);
        let rows = table.iter().enumerate();
        let rows = rows.flat_map(|(rank, row)| row.iter().map(move |&(place, hash)| ((held_by(rank), place), hash)));
        let hashes: BTreeMap<((usize, usize), usize), u64> = rows.collect();
        let holders: BTreeSet<(usize, usize)> = hashes.keys().map(|(holder, _)| *holder).collect();
        let hash = |holder: (usize, usize), place: usize| hashes.get(&(holder, place)).copied();
        for (place, (member, copy)) in copies().enumerate() {
            let first = &member.copies[0];
            let first_place = copies().position(|(m, c)| std::ptr::eq(m, member) && std::ptr::eq(c, first));
            let diverged = |of: &(usize, usize)| hash(*of, place) != first_place.and_then(|first| hash(*of, first));
            if holders.iter().any(diverged) {
                let (name, of) = (member.name.clone(), |copy: &Copy| (copy.stage.index(), copy.path.clone()));
                let ((stage, path), (first_stage, first_path)) = (of(copy), of(first));
                let source = Box::new(error(name, stage, path, first_stage, first_path));
                return Err(ExecuteError::Shared { rank, source });
            }
        }
        Ok(())
    }
}
