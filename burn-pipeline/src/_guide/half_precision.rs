use burn::lr_scheduler::module_lr_scheduler::ModuleLearningRate;
use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::optim::{GradientsParams, ModuleOptimizer};
use burn::tensor::{FloatDType, Gradients, Tensor};
use std::any::Any;
use std::collections::HashMap;

/// The plain loop of mixed precision. Half-precision copies of `masters` compute the losses of all microbatches,
/// which have one size; `factor` is the loss scale. `replicas` is 1, or the number of replicas that reduce in half.
/// Returns the stepped masters and the loss.
pub fn step<M: Module>(
    masters: M,
    optimizer: &mut ModuleOptimizer,
    rate: impl Into<ModuleLearningRate>,
    (half, factor, microbatches, replicas): (FloatDType, f64, usize, usize),
    keeps: fn(&str) -> bool,
    loss: impl Fn(&M, usize) -> Tensor<1>,
) -> (M, f64) {
    let copies = masters.clone().map(&mut Round { half, keeps, path: Vec::new() });
    let (mut sums, mut mean) = (HashMap::new(), 0.0);
    for replica in 0..replicas {
        let (share, mut own) = (microbatches / replicas, HashMap::new());
        for microbatch in replica * share..(replica + 1) * share {
            let loss = loss(&copies, microbatch);
            mean += loss.clone().into_scalar::<f32>() as f64 / microbatches as f64;
            let gradients = (loss * factor).backward();
            copies.visit(&mut Add { gradients, sums: &mut own });
        }
        copies.visit(&mut Cross { sent: own, sums: &mut sums, rounds: replicas > 1 });
    }
    let mut back = HashMap::new();
    copies.visit(&mut Cross { sent: sums, sums: &mut back, rounds: replicas > 1 });
    let (scale, made) = (1.0 / microbatches as f64 / factor, GradientsParams::new());
    let mut scaled = Scale { sums: back, scale, made };
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
            false => param.map(|value| match value.is_require_grad() {
                true => value.inner().cast(self.half).autodiff().require_grad(),
                false => value.cast(self.half),
            }),
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
        add(self.sums, param.id, gradient.cast(FloatDType::F32));
    }
}

fn add<const D: usize>(sums: &mut Sums, id: ParamId, gradient: Tensor<D>) {
    let sum = match take::<D>(sums, id) {
        Some(sum) => sum + gradient,
        None => gradient,
    };
    sums.insert(id, Box::new(sum));
}

fn take<const D: usize>(sums: &mut Sums, id: ParamId) -> Option<Tensor<D>> {
    sums.remove(&id)?.downcast().ok().map(|sum| *sum)
}

/// Adds what a replica sends, rounded to the type of the copies if replicas reduce in half.
struct Cross<'a> {
    sent: Sums,
    sums: &'a mut Sums,
    rounds: bool,
}

impl ModuleVisitor for Cross<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let Some(sent) = take::<D>(&mut self.sent, param.id) else { return };
        let rounded = if self.rounds { sent.cast(FloatDType::from(param.val().dtype())) } else { sent };
        add(self.sums, param.id, rounded.cast(FloatDType::F32));
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
        if let Some(sum) = take::<D>(&mut self.sums, param.id) {
            self.made.register(param.id, sum * self.scale);
        }
    }
}
