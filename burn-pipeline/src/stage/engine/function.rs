//! A stage as a function of tensors: the module's forward and, on the last stage, the loss.

use super::call::{ForwardCall, ForwardOutput};
use crate::panics::located;
use crate::payload::{Boundary, BoundaryError, Kinds, Payload};
use crate::stage::batch::{Loss, LossPart, Weight};
use crate::stage::error::StageError;
use crate::stage::module::Stage;
use burn::module::Module;
use burn::tensor::GradientCheckpointingStrategy;
use std::cell::Cell;
use std::sync::Arc;

thread_local! {
    /// The microbatch whose forward runs on this thread, or ran last, and true if that forward depends on the number.
    static MICROBATCH: Cell<(usize, bool)> = const { Cell::new((0, false)) };
}

/// The index in the whole batch of the microbatch whose forward runs on this thread.
pub(crate) fn microbatch() -> usize {
    MICROBATCH.get().0
}

/// Notes that the forward on this thread depends on the number of its microbatch.
pub(crate) fn depends_on_microbatch() {
    MICROBATCH.set((microbatch(), true));
}

/// Returns true if the last forward on this thread depends on the number of its microbatch.
pub(super) fn has_read_microbatch() -> bool {
    MICROBATCH.get().1
}

/// Checks that a payload holds what a stage takes.
pub(crate) type PayloadCheck = Arc<dyn Fn(Payload) -> Result<(), BoundaryError> + Send + Sync>;

/// Checks of what a stage reads from the batch: a batch that does not fit is refused before anything runs.
#[derive(Clone)]
pub(crate) struct BatchChecks {
    /// The input (only the first stage's comes from the batch).
    pub(crate) input: PayloadCheck,
    pub(crate) extra: PayloadCheck,
    /// The target, if there is a loss.
    pub(crate) target: Option<PayloadCheck>,
}

impl std::fmt::Debug for BatchChecks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BatchChecks").field("target", &self.target.is_some()).finish_non_exhaustive()
    }
}

impl Default for BatchChecks {
    /// Accepts everything.
    fn default() -> Self {
        Self { input: Arc::new(|_| Ok(())), extra: Arc::new(|_| Ok(())), target: None }
    }
}

/// Checks that a payload holds a value of this type.
pub(crate) fn check<T: Boundary>(payload: Payload) -> Result<(), BoundaryError> {
    T::from_payload(payload).map(drop)
}

pub(crate) type LossFunction<O> = Arc<dyn Fn(O, Payload) -> Result<Loss, BoundaryError> + Send + Sync>;

/// The forward of a stage's module, followed by the user's loss on the last stage.
pub(crate) struct StageFunction<M: Stage> {
    loss: Option<LossFunction<M::Output>>,
    /// Checks of what the stage reads from the batch.
    pub(in crate::stage) checks: BatchChecks,
    /// The kinds of its input and its output.
    pub(in crate::stage) kinds: [Kinds; 2],
    /// True if losses are returned with the outputs that they were computed from.
    pub(in crate::stage) keeps_output: bool,
}

impl<M: Stage> StageFunction<M> {
    /// The module's forward alone.
    pub(crate) fn forward_only() -> Self {
        let checks =
            BatchChecks { input: Arc::new(check::<M::Input>), extra: Arc::new(check::<M::Extra>), target: None };
        let kinds = [Kinds::of::<M::Input>(), Kinds::of::<M::Output>()];
        Self { loss: None, checks, kinds, keeps_output: false }
    }

    /// The module's forward followed by a loss.
    pub(crate) fn with_loss<T: Boundary, L: Into<Loss>>(
        loss: impl Fn(M::Output, T) -> L + Send + Sync + 'static,
    ) -> Self {
        let erased = move |output: M::Output, target: Payload| Ok(loss(output, T::from_payload(target)?).into());
        Self::with_erased_loss(Arc::new(check::<T>), erased)
    }

    /// The module's forward followed by a loss that reads its target.
    pub(crate) fn with_erased_loss(
        target: PayloadCheck,
        loss: impl Fn(M::Output, Payload) -> Result<Loss, BoundaryError> + Send + Sync + 'static,
    ) -> Self {
        let mut function = Self::forward_only();
        function.loss = Some(Arc::new(loss));
        function.checks.target = Some(target);
        function
    }

    /// Replaces what the module's types say by what its parts say: checks of the batch, and kinds of its input and its
    /// output.
    pub(crate) fn described(self, input: PayloadCheck, extra: PayloadCheck, kinds: [Kinds; 2]) -> Self {
        Self { checks: BatchChecks { input, extra, ..self.checks }, kinds, ..self }
    }

    /// The module's outputs for a microbatch.
    pub(crate) fn output(
        &self,
        module: &M,
        microbatch: usize,
        input: Payload,
        extra: Payload,
    ) -> Result<M::Output, StageError> {
        let input = M::Input::from_payload(input).map_err(StageError::Input)?;
        let extra = M::Extra::from_payload(extra).map_err(|source| StageError::extra(source, &module.extras()))?;
        MICROBATCH.set((microbatch, false));
        Ok(module.forward(input, extra))
    }

    /// The loss of outputs against a target. The text of a panic begins with `the loss`.
    pub(crate) fn loss(&self, output: M::Output, target: Option<Payload>) -> Result<LossPart, StageError> {
        let loss = self.loss.as_ref().ok_or(StageError::NoLoss)?;
        let target = target.ok_or(StageError::NoTarget)?;
        let computed = located(|| "the loss".to_owned(), || loss(output, target));
        let Loss(loss) = computed.map_err(StageError::Target)?;
        match (loss.value.shape().as_slice(), &loss.weight) {
            ([1], Some(Weight::Device(weight))) if weight.shape().num_elements() != 1 => {
                Err(StageError::WeightShape { shape: weight.shape().to_vec() })
            }
            ([1], _) => Ok(loss),
            (shape, _) => Err(StageError::LossShape { shape: shape.to_vec() }),
        }
    }

    /// What a training forward computes, under autodiff: the loss on a stage that ends its route, else the outputs.
    pub(crate) fn train(&self, module: &M, call: ForwardCall) -> Result<ForwardOutput, StageError> {
        let output = self.output(module, call.microbatch, call.input, call.extra)?;
        if !call.ends_route {
            return Ok(ForwardOutput::Activations(output.into_payload()));
        }
        let (output, kept) = match self.keeps_output {
            false => (output, None),
            true => {
                let kept = output.into_payload();
                (M::Output::from_payload(kept.clone()).map_err(StageError::Input)?, Some(kept))
            }
        };
        Ok(ForwardOutput::Loss(Box::new(LossPart { output: kept, ..self.loss(output, call.target)? })))
    }
}

/// The user's code in a forward: a stage's function, and its module.
pub(crate) struct StageCode<'a, M: Stage> {
    pub(crate) function: &'a StageFunction<M>,
    pub(crate) module: &'a M,
}

/// The checkpointing strategy of a module's parameters: inputs must carry the same one.
pub(crate) fn strategy_of<M: Module>(module: &M) -> GradientCheckpointingStrategy {
    let on_device = |device: burn::tensor::Device| device.gradient_checkpointing_strategy();
    module.devices().into_iter().find_map(on_device).unwrap_or_default()
}
