//! The plain loop that every cell must equal: the whole model on one device, with Burn's forward, backward and
//! optimizer.

use crate::cases::Case;
use crate::numbers::Cast;
use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{DType, FloatDType, Tensor, TensorData};
use burn_pipeline::stage::{Batch, Stage};
use pipeline_tests::device::device;
use pipeline_tests::reference::{Reference, whole};

/// The guide's own plain loop of mixed precision.
#[allow(unreachable_pub, reason = "a user copies it as it is")]
#[path = "../../burn-pipeline/src/_guide/half_precision.rs"]
mod written;

/// The steps of every run.
pub(crate) const STEPS: usize = 3;
/// The samples of every microbatch.
const ROWS: usize = 3;
/// The seed of the batch that is evaluated at the end.
const HELD_OUT: u64 = 77;

/// Data and loss of a model.
pub(crate) trait Forward: Stage<Extra = ()> {
    /// An input, of tensors by their seeds, which count from the batch's seed.
    fn input(tensor: impl Fn(u64) -> Tensor<2>) -> Self::Input;
    /// The loss over some samples.
    fn loss(output: Self::Output, target: Tensor<2>) -> Tensor<1>;
    /// The same model, whose linear maps are computed in parts, as a tensor-parallel group computes them.
    fn in_parts(self, parts: usize) -> Self;
}

/// The mean square of a difference, of which halves take too few digits.
pub(crate) fn squares(output: Tensor<2>, target: Tensor<2>) -> Tensor<1> {
    let wide = if output.dtype() == DType::F64 { FloatDType::F64 } else { FloatDType::F32 };
    (output.cast(wide) - target.cast(wide)).square().mean().cast(FloatDType::F32)
}

/// Numbers in [-1, 1) that leave Burn's generator alone.
pub(crate) fn noise(seed: u64, samples: usize) -> Tensor<2> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1u32 << 23) as f32 - 1.0
    };
    let width = crate::layers::WIDTH;
    let values: Vec<f32> = (0..samples * width).map(|_| next()).collect();
    Tensor::from_data(TensorData::new(values, [samples, width]), &device())
}

/// The results of a run: the losses of all steps, everything that the module holds afterwards, and the loss of an
/// evaluated batch.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) losses: Vec<f64>,
    pub(crate) values: Vec<Vec<f64>>,
    pub(crate) evaluated: f64,
}

impl Outcome {
    /// The largest difference, relative for large numbers. Infinite if shapes differ.
    pub(crate) fn distance(&self, other: &Self) -> f64 {
        let numbers = |outcome: &Self| {
            let values = outcome.values.iter().flatten().copied().collect::<Vec<f64>>();
            [outcome.losses.clone(), values, vec![outcome.evaluated]].concat()
        };
        let (own, theirs) = (numbers(self), numbers(other));
        if own.len() != theirs.len() {
            return f64::INFINITY;
        }
        // A NaN must not pass as equality.
        let distance =
            |(a, b): (&f64, &f64)| if (a - b).is_nan() { f64::INFINITY } else { (a - b).abs() / b.abs().max(1.0) };
        own.iter().zip(&theirs).map(distance).fold(0.0, f64::max)
    }
}

/// The batch of a step.
pub(crate) fn batch<C: Case>(step: usize, microbatches: usize) -> Batch {
    of_seed::<C::Model>(2 * step as u64 + 1, microbatches)
}

/// The batch that is evaluated at the end.
pub(crate) fn held_out<C: Case>(microbatches: usize) -> Batch {
    of_seed::<C::Model>(HELD_OUT, microbatches)
}

fn of_seed<M: Forward>(seed: u64, microbatches: usize) -> Batch {
    let samples = microbatches * ROWS;
    Batch::new(M::input(|add| noise(seed + add, samples))).target(noise(seed + 1, samples))
}

/// The plain loop over batches of `microbatches` microbatches, with linear maps in `parts` parts.
pub(crate) fn plain<C: Case>(case: &C, microbatches: usize, parts: usize) -> Outcome {
    let mut reference = Reference::resumed(case.part(&whole()).in_parts(parts), case.optimizer());
    let (sizes, samples) = (vec![ROWS; microbatches], microbatches * ROWS);
    let (mut outcome, mut optimizer) = (Outcome::default(), case.optimizer());
    for step in 0..STEPS {
        case.before(step);
        let seed = 2 * step as u64 + 1;
        let loss = |model: &C::Model, i: usize| loss_of(model, seed, samples, i, true);
        outcome.losses.push(match case.half() {
            None => reference.step(&sizes, case.learning_rate(step), None, loss).loss,
            Some(half) => {
                let how = (half.dtype, half.factor, microbatches, 1);
                let (rate, masters) = (case.learning_rate(step), reference.model.clone());
                let (stepped, mean) = written::step(masters, &mut optimizer, rate, how, case.keeps(), loss);
                reference.model = stepped;
                mean
            }
        });
        reference.model = reference.model.after_step(&vec![Vec::new(); microbatches]);
    }
    let model = reference.model.valid();
    outcome.values = floats(&model);
    let model = case.half().map_or(model.clone(), |half| model.map(&mut Cast::new(half.dtype, case.keeps())));
    let losses = (0..microbatches).map(|i| loss_of(&model, HELD_OUT, samples, i, false).into_scalar::<f32>());
    outcome.evaluated = losses.map(f64::from).sum::<f64>() / microbatches as f64;
    outcome
}

/// The loss of microbatch `i` of the batch with this seed.
fn loss_of<M: Forward>(model: &M, seed: u64, samples: usize, i: usize, training: bool) -> Tensor<1> {
    let piece = |seed| {
        let rows = noise(seed, samples).narrow(0, i * ROWS, ROWS);
        if training { rows.autodiff() } else { rows }
    };
    M::loss(model.forward(M::input(|add| piece(seed + add)), ()), piece(seed + 1))
}

fn floats<M: Module>(model: &M) -> Vec<Vec<f64>> {
    struct Floats(Vec<Vec<f64>>);

    impl ModuleVisitor for Floats {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            self.0.push(param.val().into_data().iter::<f64>().collect());
        }
    }

    let mut floats = Floats(Vec::new());
    model.visit(&mut floats);
    floats.0
}
