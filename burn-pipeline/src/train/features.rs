//! Which features of a job do not go together: one table, read where a job is built and where a call begins.
//!
//! A feature is a choice of the builder, or a call. `tests/features` trains them two by two: a pair gives the numbers
//! of one device, or is refused with the reason that the guide (`numbers`) gives. Refusals that depend on the plan (its
//! number of routes), on one stage (what it draws, whether it is sharded) or on a batch are errors of their own.

use std::fmt;

/// A choice of the builder, or a call, that not every other one goes with. The guide's chapter
/// [`numbers`](crate::_guide::numbers) lists the pairs that are refused, with the reasons.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Feature {
    /// [`Builder::tensor_parallel`](crate::Builder::tensor_parallel) with more than one member.
    TensorParallel,
    /// Weights cut over data-parallel replicas ([`StageContext::replicas`](crate::StageContext)): expert parallelism.
    CutOverReplicas,
    /// [`Builder::vocabulary`](crate::Builder::vocabulary).
    Vocabulary,
    /// [`Builder::input_gradients`](crate::Builder::input_gradients).
    InputGradients,
    /// [`Builder::share`](crate::Builder::share).
    Share,
    /// [`Builder::validate`](crate::Builder::validate).
    Validate,
    /// [`Reduction::Weighted`](crate::Reduction::Weighted), with a vocabulary-parallel head.
    WeightedReduction,
    /// [`Accumulation::Ordered`](crate::Accumulation::Ordered).
    OrderedAccumulation,
    /// [`Tuning::merge_weights`](crate::execute::Tuning::merge_weights).
    MergedWeights,
    /// [`Builder::matmuls`](crate::Builder::matmuls), unless it is [`Matmuls::F32`](crate::Matmuls::F32).
    Matmuls,
    /// [`Builder::precision`](crate::Builder::precision).
    Precision,
    /// [`Precision::reduce_in_half`](crate::stage::Precision::reduce_in_half).
    HalfReduction,
    /// [`AutoPipeline`](crate::AutoPipeline).
    AutoPipeline,
    /// Measuring layers or stages.
    Measuring,
    /// [`Pipeline::step_to`](crate::Pipeline::step_to).
    StepTo,
    /// [`Pipeline::metadata`](crate::Pipeline::metadata).
    Metadata,
    /// [`Pipeline::replace_module`](crate::Pipeline::replace_module).
    ReplaceModule,
}

use Feature::{
    AutoPipeline, CutOverReplicas, HalfReduction, InputGradients, Matmuls, Measuring, MergedWeights, Metadata,
    OrderedAccumulation, Precision, ReplaceModule, Share, StepTo, TensorParallel, Validate, Vocabulary,
    WeightedReduction,
};

const REFUSED: [(Feature, Feature, &str); 22] = [
    (TensorParallel, Vocabulary, "a member would hold a piece of a shard"),
    (TensorParallel, InputGradients, "a member may have a part of an extra's gradient"),
    (TensorParallel, ReplaceModule, "a new module is not cut"),
    (TensorParallel, AutoPipeline, "schedules are compared with groups of one"),
    (CutOverReplicas, InputGradients, "these gradients are not compared with the plain loop's yet"),
    (CutOverReplicas, ReplaceModule, "a new module is not cut"),
    (CutOverReplicas, StepTo, "the weights to be set would be pieces"),
    (CutOverReplicas, AutoPipeline, "schedules differ in the order of exchanges"),
    (Vocabulary, InputGradients, "the shards' inputs are integers"),
    (Vocabulary, Share, "the shards are no stage's parameters; give a tied matrix to `Builder::vocabulary`"),
    (Vocabulary, WeightedReduction, "the head computes the plain mean or sum of the cross entropy"),
    (Vocabulary, Validate, "the shards have no metadata"),
    (Vocabulary, StepTo, "it sets the weights of stages, and the shards are no stage's"),
    (Vocabulary, Metadata, "the shards have no metadata"),
    (Vocabulary, Measuring, "the shards run on all ranks at once"),
    (Vocabulary, AutoPipeline, "schedules are compared without the shards"),
    (InputGradients, Measuring, "stages are measured without the backwards of frozen ones"),
    (InputGradients, AutoPipeline, "schedules are compared without the backwards of frozen stages"),
    (OrderedAccumulation, MergedWeights, "it adds gradients in a different order"),
    (OrderedAccumulation, HalfReduction, "sums that pass from replica to replica are not rounded"),
    (Matmuls, Precision, "stages compiled in half precision multiply half-precision operands already"),
    (Matmuls, MergedWeights, "merged matmuls are `f32`"),
];

/// Two features that do not go together.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{second} does not work with {first}: {reason}; leave one of them out")]
pub struct NotTogether {
    /// One of the two.
    pub first: Feature,
    /// The other.
    pub second: Feature,
    /// Why not.
    pub reason: &'static str,
}

impl Feature {
    /// The chosen ones of these features.
    pub(crate) fn chosen<const N: usize>(features: [(Feature, bool); N]) -> Vec<Feature> {
        features.into_iter().filter(|(_, chosen)| *chosen).map(|(feature, _)| feature).collect()
    }

    /// Refuses the first of these features that this one does not go with.
    ///
    /// # Errors
    /// Returns the pair and the reason.
    pub(crate) fn goes_with(self, chosen: &[Feature]) -> Result<(), NotTogether> {
        chosen.iter().try_for_each(|&other| Feature::check(&[self, other]))
    }

    /// Refuses the first pair of these features that do not go together.
    ///
    /// # Errors
    /// Returns the pair and the reason.
    pub(crate) fn check(chosen: &[Feature]) -> Result<(), NotTogether> {
        let pair = REFUSED.into_iter().find(|(first, second, _)| chosen.contains(first) && chosen.contains(second));
        pair.map_or(Ok(()), |(first, second, reason)| Err(NotTogether { first, second, reason }))
    }
}

impl fmt::Display for Feature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            TensorParallel => "`Builder::tensor_parallel`",
            CutOverReplicas => "a weight cut over data-parallel replicas (`StageContext::replicas`)",
            Vocabulary => "`Builder::vocabulary`",
            InputGradients => "`Builder::input_gradients`",
            Share => "`Builder::share`",
            Validate => "`Builder::validate`",
            WeightedReduction => "`Reduction::Weighted`",
            OrderedAccumulation => "`Accumulation::Ordered`",
            MergedWeights => "`Tuning::merge_weights`",
            Matmuls => "`Builder::matmuls`",
            Precision => "`Builder::precision`",
            HalfReduction => "`Precision::reduce_in_half`",
            AutoPipeline => "`AutoPipeline`",
            Measuring => "measuring stages",
            StepTo => "`Pipeline::step_to`",
            Metadata => "`Pipeline::metadata`",
            ReplaceModule => "`Pipeline::replace_module`",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_guide_gives_the_reason_of_every_pair() {
        let guide = include_str!("../_guide/numbers.md").split_whitespace().collect::<Vec<_>>().join(" ");
        for (_, _, reason) in REFUSED {
            assert!(guide.contains(reason), "{reason}");
        }
    }
}
