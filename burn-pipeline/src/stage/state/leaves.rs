//! Parameters as leaves of autodiff's graph.
//!
//! Guarantees: every trained parameter of a stage's module is a leaf, whatever the user computed it from, so every
//! step trains it. Frozen parameters stay frozen.
//!
//! `param.map(|t| t * 0.5)` (as GPT-2 scales initial values) or `t.cast(BF16)` on a device with autodiff gives a node
//! of a graph: its gradient goes on to the earlier value, which no longer exists. Plain Burn panics at the second
//! backward; a captured stage would run one step and then train nothing. The user meant the value, so it becomes a
//! leaf:
//!
//! 1. If the stage already had the parameter ([`Stage::after_step`](crate::stage::Stage::after_step), a replaced
//!    module), it stays trained or frozen.
//! 2. Otherwise it is trained if Burn's `Param` remembers that it is, as after `Param::map` and
//!    `Param::from_mapped_value`.
//! 3. A node that counts as frozen (`Param::initialized` forgets) is refused by name, as nothing says whether it is
//!    to be trained.
//!
//! Refused in the same pass: quantised parameters, which have no gradient, no zeros and no plain view; and a parameter
//! that is trained at one path and frozen at another. A clone keeps identifiers, so the frozen clone would be taken for
//! the trained parameter, and follow it ([`untied`](super::untied) makes a clone that does not).

use super::each::{AnyParam, each_float, with_each};
use crate::payload::AnyTensor;
use crate::stage::error::StageError;
use burn::backend::{AutodiffBackend, Dispatch};
use burn::module::{Module, ParamId};
use burn::tensor::{DType, GradientCheckpointingStrategy, Shape};
use std::collections::HashMap;

/// How autodiff treats a float parameter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Standing {
    /// Gets gradients, or would if it were a leaf.
    Trained,
    /// Gets no gradients.
    Frozen,
    /// Computed from something that gets gradients, but counted as frozen.
    Unclear,
}

impl Standing {
    /// Reads it from a parameter.
    pub(crate) fn of(param: &dyn AnyParam) -> Self {
        match (param.is_trained(), param.base().is_tracked()) {
            (true, _) => Standing::Trained,
            (false, false) => Standing::Frozen,
            (false, true) if param.is_trained_as_leaf() => Standing::Trained,
            (false, true) => Standing::Unclear,
        }
    }

    /// Another value for the parameter, with the same standing.
    pub(crate) fn lifted(self, value: AnyTensor, strategy: GradientCheckpointingStrategy) -> AnyTensor {
        let shape = value.shape();
        match self {
            Standing::Trained => value.leaf(strategy, true),
            Standing::Frozen => value.leaf(strategy, false),
            // A node with the same elements: it is refused by name when the stage is built.
            Standing::Unclear => value.leaf(strategy, true).reshape(shape),
        }
    }
}

/// The module with leaves instead of nodes. `known` says whether parameters that the stage already had were trained.
/// Initialises lazy parameters.
///
/// # Errors
/// Returns [`StageError`] for the first parameter that is quantised, or of which nothing says whether it is to be
/// trained.
pub(in crate::stage) fn as_leaves<M: Module>(module: M, known: &HashMap<ParamId, bool>) -> Result<M, StageError> {
    let (mut leaves, mut refused) = (HashMap::new(), None);
    let mut first: HashMap<ParamId, (String, bool)> = HashMap::new();
    each_float(&module, |place, param| {
        let value = param.base();
        if matches!(value.dtype(), DType::QFloat(_)) {
            let path = place.path().into();
            refused.get_or_insert(StageError::Quantised { path, dtype: value.dtype() });
            return;
        }
        let is_node = value.is_tracked() && !param.is_trained();
        let known_as = known.get(&param.id()).copied().filter(|_| is_node);
        let (path, trains) = (place.path(), known_as.unwrap_or(Standing::of(param) != Standing::Frozen));
        let (other, same) = first.entry(param.id()).or_insert_with(|| (path.clone(), trains));
        if *same != trains {
            let [trained, frozen] =
                if trains { [&path, other] } else { [other, &path] }.map(|path| path.as_str().into());
            refused.get_or_insert(StageError::HalfFrozen { trained, frozen });
        }
        let Some(strategy) = value.device().gradient_checkpointing_strategy().filter(|_| is_node) else { return };
        let standing = match (known.get(&param.id()), Standing::of(param)) {
            (Some(true), _) => Standing::Trained,
            (Some(false), _) => Standing::Frozen,
            (None, standing) => standing,
        };
        if standing == Standing::Unclear {
            refused.get_or_insert(StageError::Unclear { path: place.path().into() });
        }
        // A parameter with several paths becomes one leaf, with its first value.
        leaves.entry(param.id()).or_insert_with(|| standing.lifted(value.inner(), strategy));
    });
    match refused {
        Some(refused) => Err(refused),
        None if leaves.is_empty() => Ok(module),
        None => Ok(with_each(module, |param| leaves.get(&param.id()).cloned())),
    }
}

/// Makes Burn free what forwards of the module keep that will have no backward, after a failure.
///
/// Burn frees abandoned nodes of a graph in the next backward of that graph, and a module's parameters are leaves of
/// the graphs of all its forwards. So a small backward runs over one element of each parameter, and its gradient is
/// dropped.
pub(in crate::stage) fn free_abandoned<M: Module>(module: &M) {
    each_float(module, |_, param| {
        let value = param.base();
        let elements = value.shape().num_elements();
        if param.is_trained() && elements > 0 {
            let one = value.reshape(Shape::new([elements])).narrow(0, 0, 1);
            drop(Dispatch::backward(one.into_dispatch()));
        }
    });
}

/// Whether each float parameter of a module is trained.
pub(in crate::stage) fn trained<M: Module>(module: &M) -> HashMap<ParamId, bool> {
    let mut trained = HashMap::new();
    each_float(module, |_, param| _ = trained.insert(param.id(), param.is_trained()));
    trained
}
