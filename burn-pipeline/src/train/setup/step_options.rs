//! What the user chooses of a step: its numbers, and how stages run.

use super::builder::Builder;
use crate::execute::FusedActions;
use crate::plan::SkipEdge;
use crate::stage::{Accumulation, SplitBackward, Validate};
use crate::train::non_finite::OnNonFinite;
use crate::train::shared::SharedParameter;

impl Builder {
    /// Clips gradients to this norm, above 0, taken over all ranks; of half precision it is computed in f32. Infinity never clips: the
    /// norm is only reported.
    pub fn clip_norm(mut self, norm: f64) -> Self {
        self.clip_norm = Some(norm);
        self
    }

    /// What training does where a loss or a gradient is NaN or infinite: an error by default. It covers the loss of every microbatch, and
    /// every gradient as the optimizer would get it.
    pub fn on_non_finite(mut self, action: OnNonFinite) -> Self {
        self.on_non_finite = action;
        self
    }

    /// The order in which gradients of microbatches are added: as they come by default. With `Ordered`, every schedule
    /// gives the same bits.
    pub fn accumulation(mut self, accumulation: Accumulation) -> Self {
        self.accumulation = accumulation;
        self
    }

    /// How stages run split backwards, [`SplitBackward::Auto`] by default; [`Pipeline::engines`](crate::Pipeline::engines) tells how each stage runs,
    /// and why.
    pub fn split(mut self, split: SplitBackward) -> Self {
        self.split = split;
        self
    }

    /// How many programs each captured stage keeps, 64 by default, 1 at least: one for each shape of its inputs and each
    /// combination of values that its forward reads from the host. The least recently used one goes first; what comes again
    /// after that is made again (see [`SplitBackward`] for the cost). The numbers are the same whatever the limit.
    pub fn captured_programs(mut self, limit: usize) -> Self {
        self.captured_programs = limit;
        self
    }

    /// Compiles captured stages on processors (`Device::flex`); off by default. Stages are then captured even where the plan does
    /// not split, unless [`SplitBackward::Eager`] is asked for.
    ///
    /// Element-wise operations, softmax, norms and their backwards run fused, tile by tile in cache, and of a softmax or a layer norm
    /// one tensor less is held for the backward, or two. A compiled stage gives the same bits under every schedule, number of
    /// ranks and cut (but one inside of a softmax or a norm), but not those of the plain loop: it rounds otherwise, by a few
    /// units in the last place in each operation. A stage that cannot be captured runs as the plain loop does, so where only some
    /// layers can be, the cut decides what is compiled. [`Pipeline::engines`](crate::Pipeline::engines) says what was, and why the rest was not.
    pub fn compile(mut self, compile: bool) -> Self {
        self.compile = compile;
        self
    }

    /// Compiles captured stages, as [`Builder::compile`], and rounds the operands of their matrix products and convolutions to `bf16`, where the
    /// processor multiplies those faster than `f32` (AVX512-BF16); off by default.
    ///
    /// This is mixed precision: products are summed in `f32`, and all else is `f32`: weights, gradients, the optimizer, softmax and norms.
    /// What a forward holds for its backward as an operand of products alone is held in `bf16`, which takes half of the memory and changes
    /// nothing more. The bits are those of a compiled stage: the same under every schedule, number of ranks and cut. Against `f32` each
    /// operand is off by 2⁻⁹ of itself at most. Evaluation runs the plain forward, in `f32`, and so does a stage that cannot be captured
    /// ([`Pipeline::engines`](crate::Pipeline::engines) names it).
    ///
    /// On another processor or device the pipeline is not built, and neither is one with [`Builder::merge_weights`], whose products are
    /// not compiled.
    pub fn bf16_products(mut self, rounded: bool) -> Self {
        self.bf16_products = rounded;
        self
    }

    /// Holds the outputs of stages until their backward, as a plain autodiff loop does, instead of releasing them once they
    /// were sent. For measuring what the release saves.
    pub fn keep_outputs(mut self, keep: bool) -> Self {
        self.keep_outputs = keep;
        self
    }

    /// Gives the last stage's outputs with the report of every training step ([`StepReport::output`](crate::StepReport::output)), for
    /// metrics; off by default, as it keeps them until the step is over. Where ranks are processes, each says it for itself: outputs
    /// travel to the processes that asked for them, and to no other.
    pub fn outputs(mut self, outputs: bool) -> Self {
        self.outputs = outputs;
        self
    }

    /// Where ranks are processes: compares their batches before each call, by a checksum of all values, so that data loaders that give
    /// other items are an error and not other numbers. Off by default, as every process reads its whole batch off its device.
    pub fn compare_batches(mut self, compare: bool) -> Self {
        self.compare_batches = compare;
        self
    }

    /// Declares a skip edge: a value goes from stage `from` straight to stage `to`, past those between. Stage `from` has a
    /// [`Skip`](crate::stage::Skip) in its output, and stage `to` one in its input.
    pub fn skip(mut self, from: usize, to: usize) -> Self {
        self.skips.push(SkipEdge { from, to });
        self
    }

    /// Compares the specs of tensors at stage boundaries with the stages' metadata while training; off by default. See
    /// [`StageMetadata`](crate::stage::StageMetadata) for where metadata come from.
    pub fn validate(mut self, validate: Validate) -> Self {
        self.validate = validate;
        self
    }

    /// Declares a parameter that several stages hold: its copies start equal and get the sum of all their gradients.
    /// [`Pipeline::shared`](crate::Pipeline::shared) tells where it was found. Where several ranks hold stages together, all groups that hold a copy have one size, and cut
    /// it alike.
    pub fn share(mut self, parameter: SharedParameter) -> Self {
        self.shared.push(parameter);
        self
    }

    /// Seeds the random numbers (dropout, noise) of every training forward by this seed, the batch's number, the stage and
    /// the microbatch alone. So a resumed job draws the same numbers, whatever the schedule and whatever other threads draw.
    ///
    /// For that stages are captured even where the plan does not split (unless [`SplitBackward::Eager`] is asked for), and
    /// draw on the host: on a GPU their random numbers are copied there. Stages that cannot be captured draw from Burn's one
    /// generator: their forwards run one at a time in a process, once more to learn what they draw, and again where another thread drew
    /// meanwhile. On a GPU such a stage is refused if it draws. A step ends with [`StageError::Draws`](crate::stage::StageError::Draws)
    /// where others draw each time, and where captured forwards draw on a device that they name themselves. To find that out, steps
    /// seed the devices' generators: draw data from a generator of your own.
    ///
    /// In stages that several ranks hold together ([`Builder::tensor_parallel`]), and in eager ones whose experts are spread over replicas,
    /// [`GroupDropout`](crate::nn::GroupDropout) alone may draw; a step with other draws ends with
    /// [`StageError::DrawsInGroup`](crate::stage::StageError::DrawsInGroup). Such stages must be ones that can be captured: so experts
    /// without a capacity cannot be seeded.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// Runs adjacent `W`s of one stage at once: each product of a captured stage's linear layers then covers the rows of
    /// several microbatches, wherever that moves fewer bytes (many short microbatches, wide layers). Sums are added in
    /// another order, so gradients differ by rounding; it cannot be combined with [`Accumulation::Ordered`].
    pub fn merge_weights(mut self, merge: bool) -> Self {
        self.merge_weights = merge;
        self
    }

    /// How fused actions (`OVERLAP_F_B`, as DualPipe has them) are run, [`FusedActions::Auto`] by default.
    pub fn fused(mut self, fused: FusedActions) -> Self {
        self.fused = fused;
        self
    }
}
