//! The user's code runs once for each forward of a microbatch, whichever gradients its backward gets.

use crate::cases::read;
use burn::module::{Module, Param};
use burn::tensor::{Device, Tensor};
use burn_pipeline::payload::{AnyTensor, Boundary, Payload};
use burn_pipeline::stage::{SingleStage, SplitBackward, Stage, StageBox};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Two outputs, and a count of its forwards.
#[derive(Module, Debug)]
struct Counting {
    weight: Param<Tensor<1>>,
    #[module(skip)]
    forwards: Arc<AtomicUsize>,
    /// True if the outputs depend on the count.
    tells: bool,
}

impl Stage for Counting {
    type Input = Tensor<1>;
    type Extra = ();
    type Output = (Tensor<1>, Tensor<1>);

    fn forward(&self, x: Tensor<1>, (): ()) -> Self::Output {
        let count = self.forwards.fetch_add(1, Ordering::Relaxed);
        let y = x * self.weight.val();
        let y = if self.tells { y.add_scalar(count as f32) } else { y };
        (y.clone().exp(), y)
    }
}

fn counting(recomputed: bool, tells: bool) -> (SingleStage, Arc<AtomicUsize>) {
    let forwards = Arc::default();
    let weight = Param::from_tensor(Tensor::ones([3], &Device::flex().autodiff()));
    let stage = StageBox::new(Counting { weight, forwards: Arc::clone(&forwards), tells }).recomputed(recomputed);
    (SingleStage::new(stage, SplitBackward::Captured, true), forwards)
}

#[test]
fn recomputation_and_backwards_run_none_of_the_user_s_code() {
    for (recomputed, tells) in [(false, false), (false, true), (true, false), (true, true)] {
        let (mut stage, forwards) = counting(recomputed, tells);
        // Both gradients, either of them, and none.
        let sets = [[true, true], [true, false], [false, true], [false, false]];
        for (microbatch, present) in sets.into_iter().cycle().take(12).enumerate() {
            for whole in [true, false] {
                let before = forwards.load(Ordering::Relaxed);
                let input = Tensor::<1>::ones([3], &Device::flex()).into_payload();
                let outputs = stage.forward(microbatch, input, Payload::default()).unwrap();
                let given = outputs.tensors().nth(1).map(read).unwrap();
                assert_eq!(given, [if tells { 1.0 + before as f32 } else { 1.0 }; 3]);
                let seeds = outputs.tensors().zip(present).map(|(output, present)| present.then(|| output.clone()));
                let seeds: Vec<Option<AnyTensor>> = seeds.collect();
                let gradient = match whole {
                    true => stage.backward(microbatch, seeds).unwrap(),
                    false => {
                        let gradient = stage.backward_input(microbatch, seeds).unwrap();
                        stage.backward_weight(&[microbatch]).unwrap();
                        gradient
                    }
                };
                assert_eq!(gradient[0].is_some(), present != [false, false]);
                assert_eq!(forwards.load(Ordering::Relaxed), before + 1, "{recomputed}, {tells}, {present:?}");
            }
        }
    }
}
