//! What ranks in processes compare: jobs and optimizers at the start, and calls before each command.
//!
//! Guarantees: all ranks get the same result, and an error names the first rank that differs from the majority.

use super::command::Call;
use super::exchange::gather_all;
use crate::execute::ExecuteError;
use crate::link::{Activity, Link};
use crate::stage::MadeUpSteps;
use crate::train::error::PipelineError;
use crate::train::step::Rank;
use std::time::Duration;

/// The settings that all ranks of a job must share: names and values.
pub(crate) type Job = Vec<(String, String)>;

pub(crate) fn agree_on_job(link: &mut dyn Link, job: &Job, timeout: Duration) -> Result<(), ExecuteError> {
    link.set_activity(Activity::Gathering);
    let table = gather_all(link, job, timeout)?;
    for (name, _) in job {
        let value = |row: &Job| {
            let found = row.iter().find(|(known, _)| known == name);
            found.map_or_else(|| "nothing".to_owned(), |(_, value)| value.clone())
        };
        let values: Vec<String> = table.iter().map(value).collect();
        if let Some((odd, most)) = odd_one(&values, String::eq) {
            let (theirs, others) = (values[odd].clone(), most.clone());
            return Err(ExecuteError::Handshake { rank: link.rank(), odd, what: name.clone(), theirs, others });
        }
    }
    Ok(())
}

/// Compares every rank's optimizer by its steps of a made-up parameter with each of these names.
pub(crate) fn agree_on_optimizer(
    link: &mut dyn Link,
    names: &[String],
    own: &MadeUpSteps,
    timeout: Duration,
) -> Result<(), ExecuteError> {
    let table = gather_all(link, own, timeout)?;
    let Some((odd, most)) = odd_one(&table, |one, other| one.differ(other).is_none()) else { return Ok(()) };
    let place = table[odd].differ(most).unwrap_or_default();
    let of = names.get(place).map(|name| format!(" of `{name}`")).unwrap_or_default();
    let what = format!("the optimizer{of} (its type, weight decay, betas, clipping and so on)");
    let (theirs, others) = (table[odd].described(place), most.described(place));
    Err(ExecuteError::Handshake { rank: link.rank(), odd, what, theirs, others })
}

/// Checks that ranks that hold the same stage hold the same parameters. `table` has each rank's stages with
/// descriptions.
pub(crate) fn agree_on_parameters(me: usize, table: &[Vec<(usize, String)>]) -> Result<(), ExecuteError> {
    let stages = || table.iter().enumerate().flat_map(|(rank, row)| row.iter().map(move |stage| (rank, stage)));
    for (rank, (stage, parameters)) in stages() {
        let Some((_, (_, first))) = stages().find(|(_, (other, _))| other == stage) else { continue };
        if first != parameters {
            let what = format!("the parameters of stage {stage}");
            let (theirs, others) = (parameters.clone(), first.clone());
            return Err(ExecuteError::Handshake { rank: me, odd: rank, what, theirs, others });
        }
    }
    Ok(())
}

/// Compares this rank's call with every rank's. Returns why no rank may run it, the same on all, or `None`.
pub(super) fn agree_on_call(rank: &mut Rank, call: Call) -> Result<Option<PipelineError>, ExecuteError> {
    let own: Result<String, String> = match call {
        Call::Local => return Ok(None),
        Call::Shared(call) => Ok(call),
        Call::Refused(message) => Err(message),
    };
    let timeout = rank.executor.timeout();
    rank.executor.link().set_activity(Activity::Calling);
    let mut calls = Vec::new();
    for (rank, call) in gather_all(rank.executor.link(), &own, timeout)?.into_iter().enumerate() {
        match call {
            Ok(call) => calls.push(call),
            Err(message) => return Ok(Some(PipelineError::Elsewhere { rank, message })),
        }
    }
    Ok(odd_one(&calls, String::eq).map(|(rank, most)| {
        let (theirs, others) = (calls[rank].clone(), most.clone());
        PipelineError::Diverged { rank, theirs, others }
    }))
}

/// The first value that differs from the majority (among equally frequent values, the earliest), and the majority's
/// value.
fn odd_one<T>(values: &[T], alike: impl Fn(&T, &T) -> bool) -> Option<(usize, &T)> {
    let count = |value: &T| values.iter().filter(|other| alike(other, value)).count();
    let most = values.iter().rev().max_by_key(|value| count(value))?;
    values.iter().position(|value| !alike(value, most)).map(|odd| (odd, most))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_odd_one_is_the_one_that_most_do_not_agree_with() {
        let odd = |values: &[&str]| {
            let values: Vec<String> = values.iter().map(|value| (*value).to_owned()).collect();
            odd_one(&values, String::eq).map(|(rank, most)| (rank, most.clone()))
        };
        assert_eq!(odd(&["a", "a", "a"]), None);
        assert_eq!(odd(&["a", "a", "b"]), Some((2, "a".to_owned())));
        assert_eq!(odd(&["b", "a", "a"]), Some((0, "a".to_owned())));
        assert_eq!(odd(&["a", "b"]), Some((1, "a".to_owned())));
        assert_eq!(odd(&[]), None);
    }
}
