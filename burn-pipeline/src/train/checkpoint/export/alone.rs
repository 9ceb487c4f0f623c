//! What is compared before an export: whether adapters alone are all that was trained, and what is said of them is
//! true; and the copies of tied parameters.

use crate::execute::ExecuteError;
use crate::train::checkpoint::error::CheckpointError;
use crate::train::checkpoint::pretrained::{Adapters, is_adapter};
use crate::train::checkpoint::scales::scales;
use crate::train::control::{Command, gather_results};
use crate::train::step::{Rank, caught};
use std::time::Instant;

/// Compares the model with what will be said of its adapters.
pub(super) struct Alone(pub(super) Adapters);

impl Command for Alone {
    type Reply = Result<(), CheckpointError>;
    const NAME: &'static str = "comparing adapters with the model";

    fn run(&self, rank: &mut Rank, _: Instant) -> Result<Self::Reply, ExecuteError> {
        let number = rank.number();
        let compare = || rank.with_whole_weights(|rank| Ok(self.compare(rank)));
        caught(number, || Self::NAME.to_owned(), compare)
    }

    fn exchange(&self, rank: &mut Rank, own: Self::Reply) -> Result<Vec<Self::Reply>, ExecuteError> {
        gather_results(rank, own, CheckpointError::elsewhere)
    }
}

impl Alone {
    fn compare(&self, rank: &mut Rank) -> Result<(), CheckpointError> {
        for held in rank.executor().stages().values_mut() {
            let parameters = held.named_parameters().into_iter();
            let left_out = parameters.filter(|parameter| parameter.trainable && !is_adapter(&parameter.name));
            let names: Vec<String> = left_out.map(|parameter| format!("`{}`", parameter.name)).collect();
            if !names.is_empty() {
                return Err(CheckpointError::LeftOut { names });
            }
            let scales = scales(held.as_mut())?;
            held.named_weights().iter().try_for_each(|weight| self.0.compare(weight, &scales))?;
        }
        Ok(())
    }
}

/// Refuses tied parameters whose copies differ since a module was replaced: only the first copy is written.
pub(super) struct Alike;

impl Command for Alike {
    type Reply = ();
    const NAME: &'static str = "comparing the copies of tied parameters";

    fn run(&self, rank: &mut Rank, _: Instant) -> Result<(), ExecuteError> {
        rank.refuse_replaced()
    }
}
