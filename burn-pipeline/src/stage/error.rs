//! Errors inside one stage.

use super::batch::Reduction;
use crate::ops::DeferredError;
use crate::payload::{BoundaryError, StagePort};
use crate::program::ProgramError;
use burn::tensor::DType;

/// An error inside one stage; the executor adds rank, stage, microbatch and operation. Tensors and outputs count
/// from 0.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say what the fields are")]
pub enum StageError {
    /// The received value is not the stage's input.
    #[error(
        "the received value does not fit the stage's input: {0}; the output of the stage before, or the batch, must \
         have the type of `Stage::Input`"
    )]
    Input(#[source] BoundaryError),
    /// The extras do not have the type that the stage reads.
    #[error(
        "the batch's extras {} do not fit `Stage::Extra`: {source}; name them in its order, and give the batch values \
         of its types",
        listed(.names)
    )]
    Extra { names: Vec<&'static str>, source: BoundaryError },
    /// The stage reads extras and names none.
    #[error(
        "`Stage::Extra` reads something, but `Stage::extras` names none of the batch's extras ({source}); implement \
         `extras` to name them"
    )]
    NoExtras { source: BoundaryError },
    /// The target does not have the type that the loss function takes.
    #[error("the batch's target does not fit the loss function: {0}")]
    Target(#[source] BoundaryError),
    /// The last stage has no loss in a training step.
    #[error("the last stage has no loss to start the backward from; build it with `StageBox::with_loss`")]
    NoLoss,
    /// There is a loss, but no target for it.
    #[error("the loss needs a target; give the batch one with `Batch::target`")]
    NoTarget,
    /// The loss is not one number.
    #[error("the loss has shape {shape:?}; it must be one number, of shape [1]")]
    LossShape { shape: Vec<usize> },
    /// The weight of the loss is not one number.
    #[error("the weight of the loss has shape {shape:?}; it must be one number, of shape [1]")]
    WeightShape { shape: Vec<usize> },
    /// The reduction needs weights, and the loss came without one.
    #[error(
        "the reduction is `Weighted`, but the loss came without a weight; return `Loss::weighted`, or choose another \
         reduction (`Builder::reduction`)"
    )]
    NoWeight,
    /// The loss came with a weight that the reduction does not use.
    #[error(
        "the loss came with a weight, which the reduction `{reduction:?}` does not use; choose `Reduction::Weighted` \
         (`Builder::reduction`), or return the loss alone"
    )]
    UnusedWeight { reduction: Reduction },
    /// The number of gradients is not the number of the stage's outputs.
    #[error(
        "{got} gradients were given for {expected} outputs of the stage; give one for each output tensor, or `None`"
    )]
    GradientCount { got: usize, expected: usize },
    /// The stage's output does not hold one value for each edge that starts at it.
    #[error(
        "the stage's output holds {got} value(s) that go past the next stage, but {expected} edge(s) start here; \
         return one `Skip` for each `Builder::skip`"
    )]
    SkipCount { got: usize, expected: usize },
    /// A payload at the stage's boundary differs from its metadata: in a tensor, or, if `tensor` is `None`, in its
    /// structure.
    #[error(
        "{} of the stage's {port}: expected {expected}, got {got}; correct the stage that computes it, or declare \
         the size free (`PayloadSpec::free`)",
        tensor.map_or("the structure".to_owned(), |tensor| format!("tensor {tensor}"))
    )]
    Metadata { port: StagePort, tensor: Option<usize>, expected: String, got: String },
    /// A declared gradient does not fit its tensor.
    #[error(
        "{} of the declared {port}: {got}, where it can be {expected}; a gradient has the shape and type of its \
         tensor, and only float tensors have one: correct the declaration (`StageBox::declare_metadata`)",
        tensor.map_or("the structure".to_owned(), |tensor| format!("tensor {tensor}"))
    )]
    DeclaredGradient { port: StagePort, tensor: Option<usize>, expected: String, got: String },
    /// A piece for a group of another size was not cut over the number of ranks in its sender's group.
    #[error(
        "{piece} was cut for another group size than this stage's {ranks}; make pieces with the stage's own group \
         (`Cut::new`)"
    )]
    CutOtherwise { piece: String, ranks: usize },
    /// A piece cannot be cut evenly for a group of another size.
    #[error(
        "{piece} cannot be cut evenly over the {ranks} rank(s) that hold the stage at the other end; cut along an \
         axis that can be, pass the whole tensor (`TensorGroup::gather_from`), or change the sizes of groups \
         (`Builder::tensor_parallel`)"
    )]
    CutUnevenly { piece: String, ranks: usize },
    /// The members of the tensor-parallel group at the other end sent pieces of different structure.
    #[error(
        "ranks {first} and {other} are members of the tensor-parallel group at the other end, but sent values that \
         do not fit together: {ours}, and {theirs}; what a stage passes on must have one structure on all members of \
         its group"
    )]
    Unjoined { first: usize, other: usize, ours: String, theirs: String },
    /// The members of the tensor-parallel group at the other end gave different values of a tensor that is whole on
    /// all of them.
    #[error(
        "ranks {first} and {other} are members of the tensor-parallel group at the other end, but gave different \
         values of {tensor}, which is whole on both of them; pass the input of cut layers through \
         `TensorGroup::copy_to` and partial results through `TensorGroup::reduce_from`, and draw random numbers by \
         `nn::GroupDropout` alone"
    )]
    MembersUnlike { first: usize, other: usize, tensor: String },
    /// An id of the batch is outside the vocabulary of a vocabulary-parallel layer.
    #[error(
        "id {id} is outside of the vocabulary of {words} words, which are numbered from 0; correct the batch, or \
         give the layer of `Builder::vocabulary` more words"
    )]
    NoWord { id: i64, words: usize },
    /// A gradient's shape or element type differs from its output's.
    #[error("the gradient of output {output} is {got}, but the output is {expected}")]
    GradientSpec { output: usize, got: String, expected: String },
    /// A backward of a microbatch whose forward is not held.
    #[error("no forward of this microbatch is held; its forward did not run, or its backward ran already")]
    NotHeld,
    /// A captured stage's program stopped.
    #[error(transparent)]
    Program(#[from] ProgramError),
    /// A deferred operation gave a gradient that does not fit.
    #[error(transparent)]
    Deferred(#[from] Box<DeferredError>),
    /// The optimizer's state cannot be taken out or put back.
    #[error("the optimizer's state: {0}")]
    OptimizerState(String),
    /// A parameter was given a value of another shape or element type.
    #[error(
        "the new value of `{path}` is {got}, but the parameter is {expected}; give the stepped value of this parameter"
    )]
    Replaced { path: String, got: String, expected: String },
    /// Under a seed, an eager forward may have drawn random numbers that other threads disturbed.
    #[error(
        "the stage's random numbers cannot be proved to be those of `Builder::seed`, as {reason}; let the stage be \
         captured (`SplitBackward` says which can be, and captured ones own their generator), let other threads draw \
         from generators of their own, or build the pipeline without a seed"
    )]
    Draws { reason: String },
    /// A forward differs from the recording that the forwards before it ran unrecorded.
    #[error(
        "the stage's forward, or its loss, is not the one that was recorded, though `Tuning::record_every` lets \
         {forwards} forwards of the same shapes share a recording: {difference}; the {} forwards of these shapes \
         before this one, and as many of others, may have run old recordings, so build the pipeline anew with \
         `record_every: 1` and load a checkpoint from before them, or give what changes to the batch as a tensor \
         (`Batch::extra`)",
        forwards.saturating_sub(1)
    )]
    Changed { difference: String, forwards: usize },
    /// Other ranks wait for this one inside its forward, which may not draw what one device draws.
    #[error("other ranks wait for this one inside of the stage's forward, and {why}")]
    DrawsInGroup { why: &'static str },
    /// A stage's forward computes in an element type that its device does not compute in.
    #[error(
        "the stage computes in {dtype:?} (first in {place}), in which {why}; cast to f32 there, or choose another \
         device"
    )]
    ElementType { place: Box<str>, dtype: DType, why: Box<str> },
    /// A parameter is quantised.
    #[error(
        "`{path}` is quantised ({dtype:?}), which stages do not take yet; build the stage with the plain weight \
         (`Module::apply_lora` in place of `apply_qlora`), or dequantise it (`Tensor::dequantize`)"
    )]
    Quantised { path: Box<str>, dtype: DType },
    /// An operation of the forward or of the loss has operands of different element types.
    #[error(
        "an operation has operands of different element types ({reason}); cast one of them (`Tensor::cast`); with \
         `Builder::precision`, see the guide, `half_precision`"
    )]
    MixedTypes { reason: String },
    /// A parameter is trained at one path and frozen at another.
    #[error(
        "`{frozen}` is frozen, but has the identifier of `{trained}`, which is trained: a clone keeps identifiers, so \
         the two count as one parameter; make the clone with `burn_pipeline::stage::untied`, or train or freeze a \
         tied parameter at both paths"
    )]
    HalfFrozen { trained: Box<str>, frozen: Box<str> },
    /// A parameter is computed from trained ones, but counts as frozen.
    #[error(
        "`{path}` is computed from trained parameters, but counts as frozen, so it is unclear whether to train it; \
         compute it with `Param::map`, which keeps the setting, or detach its value (`Tensor::detach`) and call \
         `Param::set_require_grad`"
    )]
    Unclear { path: Box<str> },
    /// The stage cannot be run this way.
    #[error("{0}")]
    Unsupported(String),
    /// The device reported an error.
    #[error("the device reported: {0}")]
    Device(String),
}

burn_pipeline_plan::debug_as_text!(StageError);

impl StageError {
    /// The extras that a stage names do not fit its type.
    pub(crate) fn extra(source: BoundaryError, names: &[&'static str]) -> Self {
        match names {
            [] => StageError::NoExtras { source },
            names => StageError::Extra { names: names.to_vec(), source },
        }
    }
}

fn listed(names: &[&str]) -> String {
    names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}
