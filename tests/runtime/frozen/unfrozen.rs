//! A rule that unfreezes a stage before the first one that trains: the plan has no backward for it.

use super::{MICROBATCHES, Stack, WIDTH, batch, loss, stack};
use burn::module::Module;
use burn::optim::SgdConfig;
use burn::tensor::{Device, Tensor};
use burn_pipeline::{Pipeline, Size, Stage, StageBox};

/// Layers that are unfrozen after a step.
#[derive(Module, Debug)]
struct Thawing {
    stack: Stack,
}

impl Stage for Thawing {
    type Input = Tensor<2>;
    type Extra = ();
    type Output = Tensor<2>;

    fn forward(&self, x: Tensor<2>, (): ()) -> Tensor<2> {
        self.stack.forward(x, ())
    }

    fn after_step(mut self, _: &[Vec<f64>]) -> Self {
        for layer in &mut self.stack.layers {
            layer.weight = layer.weight.clone().set_require_grad(true);
        }
        self
    }
}

#[test]
fn a_stage_without_a_backward_that_a_rule_unfreezes_is_refused_until_its_module_is_replaced() {
    let builder = Pipeline::builder().schedule("1F1B", Size::new(2, MICROBATCHES)).devices(vec![Device::flex()]);
    let builder = builder.optimizer(|| SgdConfig::new().init()).stages(|at| match at.is_last() {
        false => StageBox::new(Thawing { stack: stack(0..2, &[], &at.device) }),
        true => StageBox::with_loss(stack(2..4, &[2, 3], &at.device), loss),
    });
    let mut pipeline = builder.build().unwrap();
    let first = |pipeline: &mut Pipeline| {
        let weights = pipeline.weights().unwrap();
        weights[0][0].to_data().unwrap().iter::<f32>().collect::<Vec<f32>>()
    };
    let before = first(&mut pipeline);
    assert_eq!(before.len(), WIDTH * WIDTH);
    pipeline.step(batch(0), 0.1).unwrap();
    let refused = pipeline.step(batch(1), 0.1).unwrap_err().to_string();
    assert!(refused.contains("rank 0, stage 0: a parameter was unfrozen"), "{refused}");
    assert!(refused.contains("`Pipeline::replace_module`"), "{refused}");
    assert_eq!(first(&mut pipeline), before);
    pipeline.replace_module(0, |module: Thawing, _| module).unwrap();
    pipeline.step(batch(1), 0.1).unwrap();
    assert_ne!(first(&mut pipeline), before);
}
