//! The user's code runs once for each forward of a microbatch, and once more for each set of outputs without a gradient.

use burn::module::{Module, Param};
use burn::tensor::{Device, Tensor};
use burn_pipeline::stage::{AnyTensor, Boundary, Payload, SingleStage, SplitBackward, Stage, StageBox};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Two outputs, and a count of its forwards.
#[derive(Module, Debug)]
struct Counting {
    weight: Param<Tensor<1>>,
    #[module(skip)]
    forwards: Arc<AtomicUsize>,
}

impl Stage for Counting {
    type Input = Tensor<1>;
    type Extra = ();
    type Output = (Tensor<1>, Tensor<1>);

    fn forward(&self, x: Tensor<1>, (): ()) -> Self::Output {
        self.forwards.fetch_add(1, Ordering::Relaxed);
        let y = x * self.weight.val();
        (y.clone().exp(), y)
    }
}

fn counting(recomputed: bool) -> (SingleStage, Arc<AtomicUsize>) {
    let forwards = Arc::default();
    let weight = Param::from_tensor(Tensor::ones([3], &Device::flex().autodiff()));
    let stage = StageBox::new(Counting { weight, forwards: Arc::clone(&forwards) }).recomputed(recomputed);
    (SingleStage::new(stage, SplitBackward::Captured, true), forwards)
}

#[test]
fn recomputation_and_backwards_run_none_of_the_user_s_code_but_for_gradients_that_are_absent() {
    for recomputed in [false, true] {
        let (mut stage, forwards) = counting(recomputed);
        // Both gradients, either of them, and none.
        for (microbatch, present) in
            [[true, true], [true, false], [false, true], [false, false]].into_iter().enumerate()
        {
            for whole in [true, false] {
                let before = forwards.load(Ordering::Relaxed);
                let input = Tensor::<1>::ones([3], &Device::flex()).into_payload();
                let outputs = stage.forward(microbatch, input, Payload::default()).unwrap();
                let seeds = outputs.tensors().zip(present).map(|(output, present)| present.then(|| output.clone()));
                let seeds: Vec<Option<AnyTensor>> = seeds.collect();
                match whole {
                    true => drop(stage.backward(microbatch, seeds).unwrap()),
                    false => {
                        stage.backward_input(microbatch, seeds).unwrap();
                        stage.backward_weight(&[microbatch]).unwrap();
                    }
                }
                // Once more where a set of gradients is absent for the first time.
                let again = usize::from(whole && microbatch > 0);
                assert_eq!(forwards.load(Ordering::Relaxed), before + 1 + again, "{recomputed}, {present:?}");
            }
        }
    }
}
