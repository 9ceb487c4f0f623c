//! Numbers of choices and tokens beyond the range of f16 (65,504), and scores below it.

use super::{HALVES, apart, rounded, values};
use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::SgdConfig;
use burn::tensor::{DType, Device, Int, Tensor, TensorData};
use burn_pipeline::schedule::Size;
use burn_pipeline::{Batch, Pipeline, Reduction, Stage, StageBox, StageContext};
use burn_pipeline_moe::auxiliary::{AuxiliaryLosses, AuxiliaryWeights};
use burn_pipeline_moe::layers::{BlockKind, LayerAuxiliary};
use burn_pipeline_moe::lengths::RowLengths;
use burn_pipeline_moe::losses::{load_balance, router_z};
use burn_pipeline_moe::ops::{RouteOptions, route};

/// More tokens than f16 can count.
const MANY: usize = 70_000;
/// As a loss scale, so that gradients per token stay in the range of f16.
const SCALE: f64 = 16384.0;

/// A leaf in this type.
fn leaf<const R: usize>(tensor: Tensor<R>, dtype: DType) -> Tensor<R> {
    Tensor::from_data(tensor.into_data(), (&Device::flex().autodiff(), dtype)).require_grad()
}

#[test]
fn load_balance_in_half_precision_counts_more_choices_than_f16_has_numbers() {
    // 8,192 tokens with eight choices each, and 1,000 more.
    let load = [20_001, 15_537, 999, 30_000];
    for (half, unit) in HALVES {
        let run = |dtype| {
            let probabilities = leaf(rounded(4, [9, 4], half).abs(), dtype);
            let load = Tensor::<1, Int>::from_ints(load, &Device::flex().autodiff());
            let loss = load_balance(probabilities.clone(), load);
            assert_eq!(loss.dtype(), dtype, "a loss has the type of the probabilities");
            (values(loss.clone()), values(probabilities.grad(&loss.backward()).unwrap()))
        };
        let ((loss, gradient), (expected, of_expected)) = (run(half), run(DType::F32));
        assert!(expected[0] > 1.0 && apart(&loss, &expected) <= unit, "{half:?}: {loss:?} is not {expected:?}");
        assert!(apart(&gradient, &of_expected) <= 2.0 * unit, "{half:?}: {gradient:?} is not {of_expected:?}");
    }
}

#[test]
fn mean_probabilities_of_more_tokens_than_f16_can_count_have_gradients() {
    for sigmoid in [false, true] {
        let options = RouteOptions { top_k: 1, sigmoid, normalize: false };
        for (half, unit) in HALVES {
            let run = |dtype| {
                let logits = leaf(rounded(5, [MANY, 2], half), dtype);
                let factors = Tensor::<1>::from_floats([SCALE as f32, -8192.0], &Device::flex().autodiff());
                let means = route(logits.clone(), None, options).mean_probabilities;
                values(logits.grad(&(means * factors.cast(dtype)).sum().backward()).unwrap())
            };
            let off = apart(&run(half), &run(DType::F32));
            assert!(off <= unit, "{half:?}, sigmoid {sigmoid}: {off:e}");
        }
    }
}

#[test]
fn gates_of_scores_below_the_range_of_f16_still_add_up_to_one() {
    let options = RouteOptions { top_k: 2, sigmoid: true, normalize: true };
    for (half, unit) in HALVES {
        let logits = Tensor::<2>::from_floats([[-20.0, -21.0, -40.0]], &Device::flex());
        let run = |dtype| {
            let routed = route(logits.clone().cast(dtype), None, options);
            (values(routed.gates), values(routed.mean_probabilities))
        };
        let ((gates, means), (of_gates, of_means)) = (run(half), run(DType::F32));
        assert!(apart(&gates, &of_gates) <= unit, "{half:?}: {gates:?} is not {of_gates:?}");
        assert!(apart(&means, &of_means) <= unit, "{half:?}: {means:?} is not {of_means:?}");
    }
}

#[test]
fn a_z_loss_in_the_range_of_f16_is_finite_where_single_squares_are_not() {
    for (half, unit) in HALVES {
        let mut logits = [[0.0f32, 1.0]; 8];
        logits[3] = [300.0, 0.0];
        let run = |dtype| values(router_z(Tensor::<2>::from_floats(logits, &Device::flex()).cast(dtype)));
        let (got, expected) = (run(half), run(DType::F32));
        assert!(apart(&got, &expected) <= unit, "{half:?}: {got:?} is not {expected:?}");
    }
}

#[test]
fn auxiliary_losses_of_routers_in_different_types_add_up() {
    let losses = AuxiliaryLosses::new(AuxiliaryWeights::new(), &[BlockKind::ExpertsDepths; 2]);
    let one =
        |value: f32, dtype: DType| Some(Tensor::<1>::from_data(TensorData::from([value]), (&Device::flex(), dtype)));
    let layer = |kept, rounded| LayerAuxiliary {
        load_balance: one(2.0, kept),
        router_z: one(0.5, kept),
        depth_router: one(1.0, rounded),
        ..LayerAuxiliary::default()
    };
    for (half, _) in HALVES {
        let mixed = losses.total(&[layer(DType::F32, half), layer(half, half)]).unwrap();
        let wide = losses.total(&[layer(DType::F32, DType::F32), layer(DType::F32, DType::F32)]).unwrap();
        assert_eq!(mixed.dtype(), DType::F32);
        assert!(apart(&values(mixed), &values(wide)) < 1.0 / 256.0);
        // One type stays that type.
        assert_eq!(losses.total(&[layer(half, half)]).unwrap().dtype(), half);
    }
}

#[derive(Module, Debug)]
struct Part {
    linear: Linear,
}

impl Stage for Part {
    type Input = Tensor<3>;
    type Extra = ();
    type Output = Tensor<3>;

    fn forward(&self, x: Tensor<3>, (): ()) -> Tensor<3> {
        self.linear.forward(x)
    }
}

#[test]
fn half_precision_losses_of_tokens_add_up_beyond_the_range_of_f16() {
    const SEQ: usize = 2048;
    for (half, unit) in HALVES {
        let stage = move |at: &StageContext| {
            let part = Part { linear: LinearConfig::new(1, 1).init(&at.device) };
            StageBox::with_loss(part, move |y: Tensor<3>, counts: Tensor<1, Int>| {
                let [batch, seq, _] = y.dims();
                let of_tokens = y.mul_scalar(0.0).add_scalar(40.0).reshape([batch, seq]).cast(half);
                RowLengths::tokens(counts).loss(of_tokens)
            })
        };
        let builder = Pipeline::builder().schedule("GPipe", Size::new(1, 1)).reduction(Reduction::Weighted);
        let builder = builder.optimizer(|| SgdConfig::new().init()).devices(vec![Device::flex()]).stages(stage);
        let counts = Tensor::<1, Int>::from_ints([2000, 1], &Device::flex());
        let batch = Batch::new(Tensor::<3>::zeros([2, SEQ, 1], &Device::flex())).target(counts);
        let loss = builder.build().unwrap().step(batch, 0.1).unwrap().loss;
        assert!((loss / 40.0 - 1.0).abs() <= unit, "{half:?}: {loss}");
    }
}
