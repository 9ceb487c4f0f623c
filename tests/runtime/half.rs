//! Norms and factors of gradients in every float type equal a plain computation in f64, and Burn's own clipping.
//! Half precision has neither the range for squares (300 in f16) nor the digits for small factors.

use burn::grad_clipping::GradientClippingConfig;
use burn::module::{Module, Param};
use burn::optim::{AdamWConfig, ModuleOptimizer, SgdConfig};
use burn::tensor::{DType, Device, Tensor, TensorData};
use burn_pipeline::payload::AnyTensor;
use burn_pipeline::schedule::Size;
use burn_pipeline::stage::Reduction;
use burn_pipeline::train::Builder;
use burn_pipeline::{Batch, Pipeline, Stage, StageBox, StageContext};

const TYPES: [DType; 4] = [DType::F64, DType::F32, DType::F16, DType::BF16];
const WIDTH: usize = 8;

/// A gradient, and the norm to which it is clipped.
const CASES: [(f64, f64); 6] = [(300.0, 1.0), (300.0, 1e-2), (1e-4, 1e-4), (1e-4, 1e-5), (0.11, 0.3), (3e4, 100.0)];

/// A stage whose weight gets a given number as gradient.
#[derive(Module, Debug)]
struct Steep {
    weight: Param<Tensor<2>>,
    #[module(skip)]
    gradient: f64,
}

impl Stage for Steep {
    type Input = Tensor<2>;
    type Extra = ();
    type Output = Tensor<2>;

    fn forward(&self, x: Tensor<2>, (): ()) -> Tensor<2> {
        // The value is 0, so that no sum is too large.
        x + (self.weight.val() - 1.0).mul_scalar(self.gradient)
    }
}

fn stage(at: &StageContext, dtype: DType, gradient: f64) -> StageBox {
    let weight = Tensor::<2>::ones([1, WIDTH], (&at.device, dtype));
    let part = Steep { weight: Param::from_tensor(weight), gradient };
    match at.is_last() {
        false => StageBox::new(part),
        true => StageBox::with_loss(part, |y: Tensor<2>, _: Tensor<2>| y.sum()),
    }
}

/// Two stages, and `microbatches` microbatches of one row.
fn builder(schedule: &str, microbatches: usize, replicas: usize, dtype: DType, gradient: f64) -> Builder {
    let size = Size::new(2, microbatches / replicas);
    let builder = Pipeline::builder().schedule(schedule, size).devices(vec![Device::flex()]);
    let builder = builder.reduction(Reduction::Sum).data_parallel(replicas).optimizer(|| SgdConfig::new().init());
    builder.stages(move |at| stage(at, dtype, gradient))
}

fn batch(rows: usize, dtype: DType) -> Batch {
    let zeros = || Tensor::<2>::zeros([rows, WIDTH], (&Device::flex(), dtype));
    Batch::new(zeros()).target(zeros())
}

/// The number, rounded to the type.
fn rounded(value: f64, dtype: DType) -> f64 {
    TensorData::from([value]).convert_dtype(dtype).iter::<f64>().next().unwrap()
}

/// Half a unit in the last place of a number in the type, or of its smallest number.
fn half_unit(value: f64, dtype: DType) -> f64 {
    let (digits, smallest) = match dtype {
        DType::F64 => (53, 0.0),
        DType::F32 => (24, 0.0),
        DType::F16 => (11, 2f64.powi(-24)),
        _ => (8, 0.0),
    };
    (value.abs() * 2f64.powi(-digits)).max(smallest / 2.0)
}

fn assert_near(got: f64, expected: f64, dtype: DType, slack: f64, of: &str) {
    // f32 sums have a rounding of their own.
    let own = if dtype == DType::F64 { 1e-12 } else { 1e-6 };
    let most = half_unit(expected, dtype) + (own + slack) * expected.abs();
    assert!((got - expected).abs() <= most, "{of}: {got:e} is not {expected:e}, within {most:e}");
}

#[test]
fn norms_and_clipped_gradients_are_those_of_f64_and_of_burn() {
    for dtype in TYPES {
        for (gradient, limit) in CASES {
            let expected = rounded(gradient, dtype);
            let norm = expected * ((2 * WIDTH) as f64).sqrt();
            for (schedule, replicas) in [("1F1B", 1), ("ZBH1", 1), ("DualPipe", 1)] {
                let of = format!("{dtype:?} {gradient:e} to {limit:e}, {schedule}");
                // DualPipe needs several microbatches, whose sum of large gradients would be infinite.
                let microbatches = if schedule == "DualPipe" { 4 } else { 1 };
                if microbatches as f64 * gradient > 6e4 {
                    continue;
                }
                let sum = rounded(expected * microbatches as f64, dtype);
                let clipped = |limit: f64| {
                    let builder = builder(schedule, microbatches, replicas, dtype, gradient).clip_norm(limit);
                    let mut pipeline = builder.build().unwrap();
                    pipeline.accumulate(batch(microbatches, dtype)).unwrap();
                    pipeline.take_gradients().unwrap().concat()
                };
                let builder = builder(schedule, microbatches, replicas, dtype, gradient).clip_norm(limit);
                let report = builder.build().unwrap().step(batch(microbatches, dtype), 0.0).unwrap();
                let norm = norm * microbatches as f64;
                assert_near(report.gradient_norm.unwrap(), norm, DType::F32, 0.0, &of);
                let factor = (limit / (norm + 1e-6)).min(1.0);
                let all = clipped(limit);
                assert_eq!(all.len(), 2);
                for values in all.iter().flatten() {
                    for got in values.to_data().unwrap().iter::<f64>() {
                        assert_near(got, sum * factor, dtype, 0.0, &of);
                    }
                }
                // Burn clips each parameter separately, to this part of the norm of two.
                let alone = GradientClippingConfig::Norm((limit / 2f64.sqrt()) as f32).init();
                let own = alone.clip_gradient(Tensor::<2>::full([1, WIDTH], sum, (&Device::flex(), dtype)));
                let own = own.into_data().iter::<f64>().next().unwrap();
                for got in all.iter().flatten().flat_map(|all| all.to_data().unwrap().iter::<f64>().collect::<Vec<_>>())
                {
                    // Burn adds the smallest number to the norm, PyTorch and this library 10⁻⁶; and Burn's limit is
                    // an f32.
                    assert_near(got, own, dtype, 1e-6 / norm + 1e-7 + half_unit(1.0, dtype), &of);
                }
            }
        }
    }
}

#[test]
fn shards_and_replicas_have_the_same_norm() {
    for dtype in TYPES {
        for (gradient, limit) in [(300.0, 1.0), (1e-4, 1e-5)] {
            let norm = |replicas: usize, sharded: bool| {
                let builder = builder("1F1B", 2, replicas, dtype, gradient).clip_norm(limit).sharded(sharded);
                builder.build().unwrap().step(batch(2, dtype), 0.0).unwrap().gradient_norm.unwrap()
            };
            let expected = 2.0 * rounded(gradient, dtype) * ((2 * WIDTH) as f64).sqrt();
            for (replicas, sharded) in [(1, false), (2, false), (2, true)] {
                assert_near(norm(replicas, sharded), expected, DType::F32, 0.0, &format!("{dtype:?} x{replicas}"));
            }
        }
    }
}

#[test]
fn factors_that_half_precision_does_not_have_are_multiplied_all_the_same() {
    for dtype in TYPES {
        for (value, factor) in [(300.0, 1.2e-8), (6e4, 1.0 / 3.0), (1e-3, 3e4), (0.7, 1.0 / 80_000.0)] {
            let value = rounded(value, dtype);
            let scaled = AnyTensor::new(Tensor::<1>::full([5], value, (&Device::flex(), dtype))).scale(factor);
            assert_eq!(scaled.dtype(), dtype);
            for got in scaled.to_data().unwrap().iter::<f64>() {
                assert_near(got, value * factor, dtype, 0.0, &format!("{dtype:?}: {value} times {factor:e}"));
            }
        }
    }
}

/// Returns true if an optimizer was accepted for pieces of parameters of this type.
fn is_taken(dtype: DType, make: impl Fn() -> ModuleOptimizer + Send + Sync + 'static) -> bool {
    let built = builder("1F1B", 2, 2, dtype, 1.0).sharded(true).optimizer(make).build();
    match built {
        Ok(_) => true,
        Err(error) => {
            assert!(error.to_string().contains("does not step each element by itself"), "{error}");
            false
        }
    }
}

#[test]
fn clipping_by_any_norm_is_refused_for_pieces_and_by_any_value_taken() {
    let limits = [1e-20, 1e-6, 1.0, 100.0, 1e6, 1e12, 1e17, 5e18, 1.2e19, 2e19, 1e30, f32::MAX];
    for dtype in TYPES {
        for limit in limits {
            let (norm, value) = (GradientClippingConfig::Norm(limit), GradientClippingConfig::Value(limit));
            let sgd = |clips: &GradientClippingConfig| {
                let clips = clips.clone();
                move || SgdConfig::new().with_gradient_clipping(Some(clips.clone())).init()
            };
            let adam = |clips: &GradientClippingConfig| {
                let clips = clips.clone();
                move || AdamWConfig::new().with_grad_clipping(Some(clips.clone())).init()
            };
            assert!(!is_taken(dtype, sgd(&norm)), "SGD to the norm {limit:e} in {dtype:?}");
            assert!(!is_taken(dtype, adam(&norm)), "AdamW to the norm {limit:e} in {dtype:?}");
            // Thresholds that half precision cannot represent are left to Burn.
            if dtype == DType::F32 || dtype == DType::F64 {
                assert!(is_taken(dtype, sgd(&value)), "SGD by the value {limit:e} in {dtype:?}");
                assert!(is_taken(dtype, adam(&value)), "AdamW by the value {limit:e} in {dtype:?}");
            }
        }
        assert!(
            is_taken(dtype, || AdamWConfig::new().init()) && is_taken(dtype, || SgdConfig::new().init()),
            "{dtype:?}"
        );
    }
}
