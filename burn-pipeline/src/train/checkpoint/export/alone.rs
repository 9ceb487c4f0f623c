//! What is compared before an export: whether adapters alone are all that was trained, and what is said of them is
//! true; and the copies of tied parameters.

use crate::execute::ExecuteError;
use crate::stage::ErasedStage;
use crate::tensor_parallel::Holders;
use crate::train::checkpoint::error::CheckpointError;
use crate::train::checkpoint::pretrained::{Adapters, is_adapter};
use crate::train::checkpoint::scales::scales;
use crate::train::checkpoint::tensors::digest;
use crate::train::checkpoint::types::trained;
use crate::train::control::{Command, gather_results};
use crate::train::step::Rank;
use std::collections::BTreeMap;
use std::time::Instant;

/// Compares the model with what will be said of its adapters.
pub(super) struct Alone {
    pub(super) adapters: Adapters,
    /// The digests of the values that were loaded, by name.
    pub(super) loaded: BTreeMap<String, String>,
}

impl Command for Alone {
    type Reply = Result<(), CheckpointError>;
    const NAME: &'static str = "comparing adapters with the model";

    fn run(&self, rank: &mut Rank, _: Instant) -> Result<Self::Reply, ExecuteError> {
        rank.with_whole_weights(Self::NAME, |rank| Ok(self.compare(rank)))
    }

    fn exchange(&self, rank: &mut Rank, own: Self::Reply) -> Result<Vec<Self::Reply>, ExecuteError> {
        gather_results(rank, own, CheckpointError::elsewhere)
    }
}

impl Alone {
    fn compare(&self, rank: &mut Rank) -> Result<(), CheckpointError> {
        let groups = rank.executor.groups().clone();
        for (&stage, held) in rank.executor.stages().iter_mut() {
            let names = self.left_out(held.as_ref(), groups.of(stage))?;
            if !names.is_empty() {
                return Err(CheckpointError::LeftOut { names });
            }
            let scales = scales(held.as_mut())?;
            held.named_weights().iter().try_for_each(|weight| self.adapters.compare(weight, &scales))?;
        }
        Ok(())
    }

    /// What adapters alone would leave out of a stage: parameters that train; those that are no longer what was loaded
    /// (except pieces, which this rank cannot compare alone); and running statistics of which nothing was loaded.
    fn left_out(&self, held: &dyn ErasedStage, holders: Holders<'_>) -> Result<Vec<String>, CheckpointError> {
        let (trained, moving) = (trained(held), held.forward_state());
        let mut names = Vec::new();
        for weight in held.named_weights().iter().filter(|weight| !is_adapter(&weight.names[0])) {
            let name = &weight.names[0];
            let device = |message| CheckpointError::Device { name: name.clone(), message };
            let differs = match self.loaded.get(name).filter(|_| !holders.is_cut(weight.id)) {
                _ if trained.contains(&weight.id) => true,
                Some(loaded) => digest(weight.value.to_data().map_err(device)?) != *loaded,
                None => moving.iter().any(|moving| moving.id == weight.id),
            };
            names.extend(differs.then(|| format!("`{name}`")));
        }
        Ok(names)
    }
}

/// Refuses tied parameters whose copies differ since a module was replaced: only the first copy is written.
pub(super) struct Alike;

impl Command for Alike {
    type Reply = ();
    const NAME: &'static str = "comparing the copies of tied parameters";

    fn run(&self, rank: &mut Rank, _: Instant) -> Result<(), ExecuteError> {
        rank.sharing.refuse_replaced(&mut rank.executor)
    }
}
