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
//! Quantised parameters, which have no gradient, no zeros and no plain view, are refused in the same pass.

use crate::payload::AnyTensor;
use crate::stage::error::StageError;
use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::tensor::{DType, GradientCheckpointingStrategy, Tensor};
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
    pub(crate) fn of<const D: usize>(param: &Param<Tensor<D>>) -> Self {
        let value = param.base();
        match (value.is_require_grad(), value.is_tracked()) {
            (true, _) => Standing::Trained,
            (false, false) => Standing::Frozen,
            // Burn shows what it remembers about a parameter only here: `valid` suspends it and `train` restores it.
            (false, true) => match param.valid().train().base().is_require_grad() {
                true => Standing::Trained,
                false => Standing::Unclear,
            },
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
    let mut find = Find { path: Vec::new(), known, leaves: HashMap::new(), refused: None };
    module.visit(&mut find);
    match (find.refused, find.leaves) {
        (Some(refused), _) => Err(refused),
        (None, leaves) if leaves.is_empty() => Ok(module),
        (None, leaves) => Ok(module.map(&mut Replace(leaves))),
    }
}

/// Whether each float parameter of a module is trained.
pub(in crate::stage) fn trained<M: Module>(module: &M) -> HashMap<ParamId, bool> {
    struct Trained(HashMap<ParamId, bool>);

    impl ModuleVisitor for Trained {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            self.0.insert(param.id, param.base().is_require_grad());
        }
    }

    let mut trained = Trained(HashMap::new());
    module.visit(&mut trained);
    trained.0
}

struct Find<'a> {
    path: Vec<String>,
    known: &'a HashMap<ParamId, bool>,
    leaves: HashMap<ParamId, AnyTensor>,
    refused: Option<StageError>,
}

impl ModuleVisitor for Find<'_> {
    fn enter_module(&mut self, name: &str, _: &str) {
        self.path.push(name.to_owned());
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let value = param.base();
        let is_node = value.is_tracked() && !value.is_require_grad();
        if matches!(value.dtype(), DType::QFloat(_)) {
            let path = self.path.join(".").into();
            self.refused.get_or_insert(StageError::Quantised { path, dtype: value.dtype() });
        }
        let Some(strategy) = value.device().gradient_checkpointing_strategy().filter(|_| is_node) else { return };
        let standing = match (self.known.get(&param.id), Standing::of(param)) {
            (Some(true), _) => Standing::Trained,
            (Some(false), _) => Standing::Frozen,
            (None, standing) => standing,
        };
        if standing == Standing::Unclear {
            let path = self.path.join(".").into();
            self.refused.get_or_insert(StageError::Unclear { path });
        }
        // A parameter with several paths becomes one leaf, with its first value.
        self.leaves.entry(param.id).or_insert_with(|| standing.lifted(AnyTensor::new(value).inner(), strategy));
    }
}

struct Replace(HashMap<ParamId, AnyTensor>);

impl ModuleMapper for Replace {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let Some(leaf) = self.0.get(&param.id).cloned() else { return param };
        let (id, _, mapper) = param.consume();
        Param::from_mapped_value(id, Tensor::from_dispatch(leaf.into_dispatch()), mapper)
    }
}
