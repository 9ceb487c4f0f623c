//! What a user implements: a part of a model as a Burn module.

use crate::payload::Boundary;
#[cfg(doc)]
use crate::stage::batch::Loss;
use burn::module::{Module, ParamId};
use std::any::{Any, TypeId};
use std::cell::Cell;

thread_local! {
    /// The type whose default [`Stage::after_step`] ran last on this thread.
    static WITHOUT_RULE: Cell<Option<TypeId>> = const { Cell::new(None) };
}

/// Runs `after_step`. Also returns true if the module has an `after_step` of its own: the default one leaves a mark.
pub(super) fn after_step<M: Stage>(module: M, observed: &[Vec<f64>]) -> (M, bool) {
    WITHOUT_RULE.set(None);
    let module = module.after_step(observed);
    // A stage's own `after_step` may call the default of a part.
    (module, WITHOUT_RULE.get() != Some(TypeId::of::<M>()))
}

/// An `after_step` that changes nothing, for a module type of which only some modules have a rule.
pub(crate) fn without_rule<M: Stage>(module: M) -> M {
    WITHOUT_RULE.set(Some(TypeId::of::<M>()));
    module
}

/// A contiguous part of a model, as a Burn module.
///
/// A stage's numbers do not depend on schedule, cut, accumulation, replicas or sharding: loss, gradients, stepped
/// weights and buffers equal those of one device, bit for bit if additions have the same order (see
/// [`Accumulation`](crate::stage::Accumulation) and [`Reduction`](crate::stage::Reduction)). This requires that its
/// `forward` is a function of its input, its extra, its parameters and buffers, what it reads from the host and, if
/// the pipeline has a seed, the random numbers that it draws.
///
/// Running statistics (Burn's `RunningState`, in `BatchNorm`) may change in `forward` if one copy of the stage runs
/// all microbatches in order; otherwise (bidirectional schedules, data-parallel replicas) the step is refused.
///
/// What it reads from the host may change from step to step: a field that [`Stage::after_step`] anneals, an atomic, a
/// counter that it advances. It runs once for each microbatch, captured or not, unless forwards share a recording
/// ([`Tuning::record_every`](crate::execute::Tuning::record_every)). It runs again if plain autodiff
/// recomputes activations, and if a stage that cannot be captured draws under a seed (see
/// [`Builder::seed`](crate::train::Builder::seed)). State that copies of the module must share belongs behind an
/// `Arc`. Every rank reads its own host, so values that ranks must agree on are extras of the batch; as tensors they
/// also spare a captured stage new programs for each value.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a stage of a model",
    note = "implement `burn_pipeline::Stage` for the module: its input, extra and output types, and `forward`"
)]
pub trait Stage: Module + Sync + 'static {
    /// The value from the stage before, whose [`Stage::Output`] must have this type, or from the batch on the first
    /// stage.
    type Input: Boundary;
    /// What the stage reads besides its input: tensors, cut per microbatch (masks, document ids), plain numbers and
    /// strings; `()` for nothing.
    type Extra: Boundary;
    /// What goes to the next stage, or to the loss on the last one.
    type Output: Boundary;

    /// Names of the batch's extras that make up [`Stage::Extra`], in its order: one name for each element of a tuple,
    /// or one for an extra that is a single value (a tensor, or a struct with [`boundary!`](crate::boundary)). Every
    /// batch must hold them; an extra that only some batches have is an `Option`, `None` in the others.
    fn extras(&self) -> Vec<&'static str> {
        Vec::new()
    }

    /// The part's forward pass.
    fn forward(&self, input: Self::Input, extra: Self::Extra) -> Self::Output;

    /// Updates parameters that follow a rule instead of a gradient, such as a bias that balances the load of experts.
    /// Called after the weights were stepped; by default it changes nothing.
    ///
    /// `observed` holds one entry for each microbatch since the step before, in the batch's order: the numbers that
    /// the loss function gave to [`Loss::observing`]. They are the same on every rank and replica, whatever the
    /// schedule.
    ///
    /// Parameters stay trained or frozen as they were, whatever they are computed from; freeze those that only follow a
    /// rule (`set_require_grad(false)`). Change them with `Param::map`, which keeps their ids: one with another id has
    /// no optimizer state, and the stage is captured anew in each step. They are saved, loaded and fed to captured
    /// programs like any other. The parameters of a sharded stage are gathered for this, so they are whole here; each
    /// member of a tensor-parallel group ([`Builder::tensor_parallel`](crate::Builder::tensor_parallel)) has the pieces
    /// of its own layers. A stage before the first one that trains has no backward: if a parameter is unfrozen there,
    /// the next batch is refused.
    ///
    /// # Panics
    /// A panic is caught. It ends the step with
    /// [`PipelineError::HalfStepped`](crate::train::PipelineError::HalfStepped), which names rank and stage: the
    /// optimizer has stepped the weights, and this stage's module is as it was before its rule.
    fn after_step(self, _observed: &[Vec<f64>]) -> Self {
        without_rule(self)
    }

    /// Returns a reason not to try to capture this part, such as a forward that reads values; by default there is
    /// none.
    ///
    /// [`SplitBackward`](crate::stage::SplitBackward) lists what cannot be captured. A capture is tried by running
    /// the forward; with a reason given here it is not tried. The stage then runs eagerly, or fails with this reason
    /// under `SplitBackward::Captured`. An eager forward is then not recorded for the types that it casts to, either
    /// (see the guide, `devices`).
    fn skip_capture(&self) -> Option<&'static str> {
        None
    }

    /// The parameters that [`Stage::after_step`] may read or change; `None` if that is not known.
    #[doc(hidden)]
    fn ruled(&self) -> Option<Vec<ParamId>> {
        None
    }

    /// Gives the module of a layer, in an `Option`, and its position to `change`, if the stage is a part of a list of
    /// layers that holds this one; see [`Pipeline::replace_layer`](crate::Pipeline::replace_layer).
    #[doc(hidden)]
    fn with_layer(self, _layer: usize, _change: &mut dyn FnMut(&mut dyn Any, usize)) -> Self {
        self
    }
}
