//! Builder options for steps: numerics, and how stages run.

use super::builder::Builder;
use crate::execute::Tuning;
use crate::payload::Validate;
use crate::stage::{Accumulation, Matmuls, Precision, SplitBackward};
use crate::train::non_finite::OnNonFinite;
use crate::train::shared::SharedParameter;
use burn_pipeline_plan::plan::SkipEdge;

impl Builder {
    /// Clips gradients to this norm, above 0, taken over all ranks; for half precision it is computed in f32. Infinity
    /// never clips, and only reports the norm. A gradient is multiplied by `limit / (norm + 1e-6)`, as in PyTorch.
    pub fn clip_norm(mut self, norm: f64) -> Self {
        self.settings.clip_norm = Some(norm);
        self
    }

    /// Sets what training does if a loss or a gradient is NaN or infinite; an error by default. It covers the loss of
    /// every microbatch, and every gradient as the optimizer would get it.
    pub fn on_non_finite(mut self, action: OnNonFinite) -> Self {
        self.settings.on_non_finite = action;
        self
    }

    /// Computes with parameters rounded to half precision; masters, gradient sums and the optimizer's state are f32.
    /// Without it, each parameter has the type that the module gives it throughout.
    ///
    /// Weights that are read, saved or exported are the masters.
    pub fn precision(mut self, precision: Precision) -> Self {
        self.precision = Some(precision);
        self
    }

    /// Sets the order in which gradients of microbatches are added; as they are computed by default. With `Ordered`,
    /// all schedules are bitwise equal.
    pub fn accumulation(mut self, accumulation: Accumulation) -> Self {
        self.accumulation = accumulation;
        self
    }

    /// Sets how stages run split backwards, [`SplitBackward::Auto`] by default.
    /// [`Pipeline::engines`](crate::Pipeline::engines) reports how each stage runs, and why.
    pub fn split(mut self, split: SplitBackward) -> Self {
        self.split = split;
        self
    }

    /// Compiles captured stages on processors (`Device::flex`); off by default. Stages are then captured even if the
    /// plan does not split, unless [`SplitBackward::Eager`] is set.
    ///
    /// Element-wise operations, softmax, norms and their backwards run fused, tile by tile in cache, and a softmax or
    /// layer norm saves one or two tensors fewer for the backward. Each operation's rounding differs from the plain
    /// loop's by a few units in the last place, alike under every schedule, and under every cut that splits no softmax
    /// or norm and leaves the same layers captured (see the guide, [`numbers`](crate::_guide::numbers)). Evaluation,
    /// and a stage that cannot be captured, run as in the plain loop. [`Pipeline::engines`](crate::Pipeline::engines)
    /// reports what was compiled, and why the rest was not.
    pub fn compile(mut self, compile: bool) -> Self {
        self.compile = compile;
        self
    }

    /// Compiles captured stages like [`Builder::compile`], and sets how their matmuls and convolutions multiply,
    /// [`Matmuls::F32`] by default. Anything else is in `bf16`, rounded or split, and is faster where [`Matmuls`] says
    /// so.
    ///
    /// Sums and everything else are `f32`: weights, gradients, the optimizer, softmax and norms. With
    /// [`Matmuls::Bf16`] an activation that is only a matmul operand of the backward is saved in `bf16`, which halves
    /// its memory without further rounding.
    ///
    /// Matrix tiles (AMX) sum in another order than other processors, so bits differ from one kind to the other, and
    /// all ranks of a job must be of one kind. On all processors with AVX-512 and without AMX, `Bf16` gives the same
    /// bits, unless partial sums are subnormal (below 2⁻¹²⁶).
    ///
    /// Evaluation, and a stage that cannot be captured, multiply `f32`. Building fails on processors and devices that
    /// have no such matmuls. The guide's chapter [`numbers`](crate::_guide::numbers) lists what is refused beside it.
    pub fn matmuls(mut self, matmuls: Matmuls) -> Self {
        self.matmuls = matmuls;
        self
    }

    /// Returns the last stage's outputs in the report of every training step
    /// ([`StepReport::output`](crate::StepReport::output)), for metrics; off by default, because they are kept until
    /// the end of the step. When ranks are processes, each chooses for itself: outputs are sent only to processes that
    /// request them.
    pub fn outputs(mut self, outputs: bool) -> Self {
        self.settings.outputs = outputs;
        self
    }

    /// Computes the gradient of the loss with respect to the batch's float input and to each float extra that a stage
    /// reads, for soft prompts, saliency or adversarial examples; off by default. The report of every step and of every
    /// [`Pipeline::accumulate`](crate::Pipeline::accumulate) returns them
    /// ([`StepReport::input_gradient`](crate::StepReport::input_gradient),
    /// [`StepReport::extra_gradient`](crate::StepReport::extra_gradient)), even if nothing trains.
    ///
    /// Frozen stages then have backwards too, and the gradients are kept until the report is dropped. A batch without a
    /// float tensor in its input and its extras is refused. When ranks are processes, all must choose the same, and the
    /// processes with a copy of the first stage get the gradients of the whole batch; the others get none.
    ///
    /// The guide's chapter [`numbers`](crate::_guide::numbers) lists what is refused beside it.
    pub fn input_gradients(mut self, compute: bool) -> Self {
        self.input_gradients = compute;
        self
    }

    /// When ranks are processes: compares their batches before each call, by a checksum of all values, so that data
    /// loaders that give different items are an error. Off by default, because every process reads its whole batch from
    /// its device.
    pub fn compare_batches(mut self, compare: bool) -> Self {
        self.compare_batches = compare;
        self
    }

    /// Declares a skip edge: a value goes directly from stage `from` to stage `to`, past those between. Stage `from`
    /// has a [`Skip`](crate::payload::Skip) in its output, and stage `to` one in its input.
    pub fn skip(mut self, from: usize, to: usize) -> Self {
        self.skips.push(SkipEdge { from, to });
        self
    }

    /// Compares the specs of tensors at stage boundaries with the stages' metadata while training; off by default. See
    /// [`StageMetadata`](crate::payload::StageMetadata) for the source of metadata.
    pub fn validate(mut self, validate: Validate) -> Self {
        self.settings.validate = validate;
        self
    }

    /// Declares a tied parameter, which several stages hold: its copies start equal and get the sum of all their
    /// gradients. [`Pipeline::shared`](crate::Pipeline::shared) reports where it was found. All tensor-parallel groups
    /// that hold a copy must have the same size, and cut it alike.
    pub fn share(mut self, parameter: SharedParameter) -> Self {
        self.shared.push(parameter);
        self
    }

    /// Seeds the random numbers (dropout, noise) of every training forward, only by this seed, the batch's number, the
    /// stage and the microbatch. So a resumed job draws the same numbers, with any schedule and independent of other
    /// threads.
    ///
    /// Stages are then captured even if the plan does not split (unless [`SplitBackward::Eager`] is set), and draw on
    /// the host: on a GPU their random numbers are copied there. Stages that cannot be captured draw from Burn's single
    /// generator: their forwards run one at a time in a process, once more to learn what they draw, and again if
    /// another thread drew meanwhile. On a GPU such a stage is refused if it draws. A step ends with
    /// [`StageError::Draws`](crate::stage::StageError::Draws) if others draw every time, or if captured forwards draw
    /// on a device that they name themselves. To detect that, steps seed the devices' generators: draw data from your
    /// own generator.
    ///
    /// In tensor-parallel stages ([`Builder::tensor_parallel`]), and in eager expert-parallel ones, only
    /// [`GroupDropout`](crate::nn::GroupDropout) may draw; a step with other draws ends with
    /// [`StageError::DrawsInGroup`](crate::stage::StageError::DrawsInGroup). Such stages must be capturable, so experts
    /// without a capacity cannot be seeded.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// Sets how stages run; see [`Tuning`].
    pub fn tuning(mut self, tuning: Tuning) -> Self {
        self.tuning = tuning;
        self
    }
}
