use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::optim::{GradientsParams, ModuleOptimizer};
use burn::tensor::{FloatDType, Gradients, Tensor};
use std::any::Any;
use std::collections::HashMap;

/// The plain loop of mixed precision. Half-precision copies of `masters` compute the losses of all microbatches,
/// which have one size; `factor` is the loss scale. Returns the stepped masters and the loss.
pub fn step<M: Module>(
    masters: M,
    optimizer: &mut ModuleOptimizer,
    rate: f64,
    (half, factor, microbatches): (FloatDType, f64, usize),
    keeps: fn(&str) -> bool,
    loss: impl Fn(&M, usize) -> Tensor<1>,
) -> (M, f64) {
    let copies = masters.clone().map(&mut Round { half, keeps, path: Vec::new() });
    let (mut sums, mut mean) = (HashMap::new(), 0.0);
    for microbatch in 0..microbatches {
        let loss = loss(&copies, microbatch);
        mean += loss.clone().into_scalar::<f32>() as f64 / microbatches as f64;
        let gradients = (loss * factor).backward();
        copies.visit(&mut Add { gradients, sums: &mut sums });
    }
    let (scale, made) = (1.0 / microbatches as f64 / factor, GradientsParams::new());
    let mut scaled = Scale { sums, scale, made };
    masters.visit(&mut scaled);
    (optimizer.step(rate, masters, scaled.made), mean)
}

/// Rounds each parameter, except those that `keeps` names.
struct Round {
    half: FloatDType,
    keeps: fn(&str) -> bool,
    path: Vec<String>,
}

impl ModuleMapper for Round {
    fn enter_module(&mut self, name: &str, _: &str) {
        self.path.push(name.to_owned());
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.path.pop();
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        match (self.keeps)(&self.path.join(".")) {
            true => param,
            false => param.map(|value| value.inner().cast(self.half).autodiff().require_grad()),
        }
    }
}

/// Sums of gradients in f32, each of its parameter's number of dimensions.
type Sums = HashMap<ParamId, Box<dyn Any>>;

/// Adds a microbatch's gradients to the sums.
struct Add<'a> {
    gradients: Gradients,
    sums: &'a mut Sums,
}

impl ModuleVisitor for Add<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let Some(gradient) = param.val().grad(&self.gradients) else { return };
        let gradient = gradient.cast(FloatDType::F32);
        let sum = self.sums.remove(&param.id).and_then(|sum| sum.downcast::<Tensor<D>>().ok());
        let sum = match sum {
            Some(sum) => *sum + gradient,
            None => gradient,
        };
        self.sums.insert(param.id, Box::new(sum));
    }
}

/// Divides the sums by the number of microbatches and the loss scale.
struct Scale {
    sums: Sums,
    scale: f64,
    made: GradientsParams,
}

impl ModuleVisitor for Scale {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if let Some(sum) = self.sums.remove(&param.id).and_then(|sum| sum.downcast::<Tensor<D>>().ok()) {
            self.made.register(param.id, *sum * self.scale);
        }
    }
}
