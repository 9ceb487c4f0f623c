//! Runs one stage by hand, without a pipeline.

use super::engine::{BackwardCall, EngineReport, ForwardCall, ForwardOutput, SplitBackward};
use super::erased::ErasedStage;
use super::error::StageError;
use super::stage_box::StageBox;
use super::state::Accumulation;
use crate::payload::{AnyTensor, Payload, PayloadPart};
use burn::optim::ModuleOptimizer;

/// One stage run by hand, for a test or a benchmark of a stage: payloads and gradients go in and out.
///
/// Weight gradients are summed over microbatches, which are numbered from 0. Gradients are lists with one entry for
/// each tensor, `None` if it has no gradient.
///
/// ```
/// use burn::module::{Module, Param};
/// use burn::tensor::{Device, Tensor};
/// use burn_pipeline::payload::{AnyTensor, Boundary, Payload};
/// use burn_pipeline::stage::{SingleStage, SplitBackward, Stage, StageBox};
///
/// #[derive(Module, Debug)]
/// struct Scale {
///     by: Param<Tensor<1>>,
/// }
///
/// impl Stage for Scale {
///     type Input = Tensor<1>;
///     type Extra = ();
///     type Output = Tensor<1>;
///
///     fn forward(&self, x: Tensor<1>, _: ()) -> Tensor<1> {
///         x * self.by.val()
///     }
/// }
///
/// let (device, three) = (Device::flex(), |value: f32| Tensor::<1>::full([3], value, &Device::flex()));
/// let by = Param::from_tensor(Tensor::full([3], 2.0, &device.autodiff()));
/// let mut stage = SingleStage::new(StageBox::new(Scale { by }), SplitBackward::Captured, true);
/// stage.forward(0, three(5.0).into_payload(), Payload::default())?;
/// let of_input = stage.backward_input(0, vec![Some(AnyTensor::new(three(1.0)))])?;
/// stage.backward_weight(&[0])?;
/// let read = |gradient: &Option<AnyTensor>| gradient.as_ref().unwrap().to_data().unwrap().iter::<f32>().sum::<f32>();
/// assert_eq!((read(&of_input[0]), read(&stage.gradients()[0])), (3.0 * 2.0, 3.0 * 5.0));
/// # Ok::<(), burn_pipeline::stage::StageError>(())
/// ```
pub struct SingleStage {
    stage: Box<dyn ErasedStage>,
    wants_input_gradient: bool,
}

impl std::fmt::Debug for SingleStage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("SingleStage").field(&self.stage.module_type()).finish()
    }
}

impl SingleStage {
    /// A stage whose backwards run as `split` says; `splits` says whether `I` and `W` will be run, or only `B`.
    pub fn new(stage: StageBox, split: SplitBackward, splits: bool) -> Self {
        let mut stage = stage.into_inner();
        stage.choose(split, splits, false);
        stage.gradients().begin(Some(0));
        Self { stage, wants_input_gradient: true }
    }

    /// Sets the order in which gradients are added, and the optimizer of [`SingleStage::optimize`].
    pub fn trained(mut self, accumulation: Accumulation, optimizer: Option<ModuleOptimizer>) -> Self {
        self.stage.prepare(accumulation, optimizer);
        self.stage.gradients().begin(Some(0));
        self
    }

    /// Computes no gradients of the input, as a model's first stage does.
    pub fn without_input_gradient(mut self) -> Self {
        self.wants_input_gradient = false;
        self
    }

    /// `F`: returns the outputs, without autodiff, and holds what the backward needs.
    ///
    /// # Errors
    /// Returns [`StageError`] if input or extras do not fit the stage.
    pub fn forward(&mut self, microbatch: usize, input: Payload, extra: Payload) -> Result<Payload, StageError> {
        self.run_forward(microbatch, input, extra, None)
    }

    /// `F` of a model's last stage: returns the loss.
    ///
    /// # Errors
    /// Like [`SingleStage::forward`]; also if the stage has no loss, or the target does not fit it.
    pub fn loss(
        &mut self,
        microbatch: usize,
        input: Payload,
        extra: Payload,
        target: Payload,
    ) -> Result<Payload, StageError> {
        self.run_forward(microbatch, input, extra, Some(target))
    }

    fn run_forward(
        &mut self,
        microbatch: usize,
        input: Payload,
        extra: Payload,
        target: Option<Payload>,
    ) -> Result<Payload, StageError> {
        let (ends_route, wants_input_gradient) = (target.is_some(), self.wants_input_gradient);
        let extra_gradients = Vec::new();
        let call = ForwardCall { microbatch, input, extra, target, ends_route, wants_input_gradient, extra_gradients };
        Ok(match self.stage.forward(call)? {
            ForwardOutput::Activations(output) => output,
            ForwardOutput::Loss(part) => Payload::from_parts([PayloadPart::Tensor(part.value)]),
        })
    }

    /// `B`: returns the gradients of the input, given those of the outputs (or of the loss), and adds those of the
    /// weights.
    ///
    /// # Errors
    /// Returns [`StageError`] if no forward of the microbatch is held, or a gradient does not fit its output.
    pub fn backward(
        &mut self,
        microbatch: usize,
        of_outputs: Vec<Option<AnyTensor>>,
    ) -> Result<Vec<Option<AnyTensor>>, StageError> {
        self.stage.backward(BackwardCall { microbatch, seeds: of_outputs, whole: true })
    }

    /// `I`: returns the gradients of the input, and holds what `W` needs.
    ///
    /// # Errors
    /// Like [`SingleStage::backward`].
    pub fn backward_input(
        &mut self,
        microbatch: usize,
        of_outputs: Vec<Option<AnyTensor>>,
    ) -> Result<Vec<Option<AnyTensor>>, StageError> {
        self.stage.backward(BackwardCall { microbatch, seeds: of_outputs, whole: false })
    }

    /// `W` of one microbatch, or of several at once: the same sums up to the order of additions.
    ///
    /// # Errors
    /// Returns [`StageError`] if no `I` of a microbatch is held.
    pub fn backward_weight(&mut self, microbatches: &[usize]) -> Result<(), StageError> {
        match microbatches {
            [microbatch] => self.stage.backward_weight(*microbatch),
            several => self.stage.backward_weights(several),
        }
    }

    /// The sums of the weights' gradients, in the order of [`SingleStage::weights`].
    pub fn gradients(&mut self) -> Vec<Option<AnyTensor>> {
        let parameters = self.stage.parameters();
        parameters.into_iter().map(|id| self.stage.gradients().get(id).cloned()).collect()
    }

    /// The value of each float parameter, without autodiff, in the module's order; one with several paths comes once.
    pub fn weights(&self) -> Vec<AnyTensor> {
        self.stage.weights().into_iter().map(|(_, weight)| weight).collect()
    }

    /// Steps the weights with the gradient sums and drops the sums; without an optimizer it only drops them.
    pub fn optimize(&mut self, learning_rate: f64) {
        self.stage.optimize(learning_rate.into());
        self.stage.gradients().begin(Some(0));
    }

    /// The number of microbatches between their forward and the last part of their backward.
    pub fn held(&self) -> usize {
        self.stage.engine().held()
    }

    /// How the stage runs, and why.
    pub fn report(&self) -> EngineReport {
        self.stage.engine().report()
    }

    /// Drops everything held and the gradients.
    pub fn clear(&mut self) {
        self.stage.clear();
    }
}
