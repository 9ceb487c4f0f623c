//! A forward that reads a tensor's value is not captured, however it reads it: its decision depends on the batch.

use super::model::{WIDTH, tensor};
use burn::module::Module;
use burn::tensor::Tensor;
use burn_pipeline::payload::{Boundary, Payload};
use burn_pipeline::stage::{SingleStage, SplitBackward, Stage, StageBox, StageError};

/// Decides by a value.
type Decides = fn(Tensor<2>) -> bool;

/// Doubles its input if the decision is true.
#[derive(Module, Debug)]
struct Deciding {
    #[module(skip)]
    decides: Decides,
}

impl Stage for Deciding {
    type Input = Tensor<2>;
    type Extra = ();
    type Output = Tensor<2>;

    fn forward(&self, x: Tensor<2>, (): ()) -> Tensor<2> {
        if (self.decides)(x.clone()) { x.mul_scalar(2.0) } else { x }
    }
}

const READS: [(&str, Decides); 9] = [
    ("into_data", |x| x.into_data().iter::<f32>().sum::<f32>() > 0.0),
    ("to_data", |x| x.to_data().iter::<f32>().sum::<f32>() > 0.0),
    ("try_into_data", |x| x.try_into_data().unwrap().iter::<f32>().sum::<f32>() > 0.0),
    ("into_scalar", |x| x.sum().into_scalar::<f32>() > 0.0),
    ("any", |x| x.sum().greater_scalar(0.0).any().into_scalar::<bool>()),
    ("all", |x| x.sum().greater_scalar(0.0).all().into_scalar::<bool>()),
    ("all_close", |x| !x.clone().all_close(x.abs().neg(), None, None)),
    ("argwhere", |x| x.sum().greater_scalar(0.0).argwhere().dims()[0] > 0),
    ("detached", |x| x.detach().sum().into_scalar::<f32>() > 0.0),
];

fn input(sign: f32) -> Tensor<2> {
    tensor(3, 2).abs() * sign
}

#[test]
fn reading_a_value_is_refused_and_never_baked_in() {
    for (name, decides) in READS {
        let stage = |split| SingleStage::new(StageBox::new(Deciding { decides }), split, true);
        let refused = stage(SplitBackward::Captured).forward(0, input(1.0).into_payload(), Payload::default());
        let error = refused.unwrap_err();
        assert!(
            matches!(&error, StageError::Unsupported(says) if says.contains("cannot be captured")),
            "{name}: {error}"
        );
        let mut stage = stage(SplitBackward::Auto);
        for sign in [1.0_f32, -1.0, 1.0] {
            let output = stage.forward(0, input(sign).into_payload(), Payload::default()).unwrap();
            let output = output.tensors().next().unwrap().to_data().unwrap();
            let x = input(sign).into_data();
            let factor = if sign > 0.0 { 2.0 } else { 1.0 };
            let expected: Vec<f32> = x.iter::<f32>().map(|x| x * factor).collect();
            assert_eq!(output.iter::<f32>().collect::<Vec<_>>(), expected, "{name}, sign {sign}, {WIDTH} wide");
        }
        assert!(!stage.report().captured, "{name}");
    }
}
