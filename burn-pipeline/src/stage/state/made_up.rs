//! What an optimizer does to made-up parameters, so that processes can compare their optimizers, which show none of
//! their settings.
//!
//! Guarantees: nothing in a stage changes. Optimizers that bring a made-up parameter to different values differ.
//! Those that bring all of them to the same values may still differ in something that 12 steps do not show.
//!
//! 1. A small matrix gets each of some names of the model, so that groups of parameters
//!    ([`ModuleOptimizer::with_group`]) choose as they do in the model.
//! 2. All take 12 steps with gradients whose norms grow by a factor of 8, from 3e-5 to 2e5: whatever norm or value an
//!    optimizer clips to, some gradients are clipped and some are not; the first ones show epsilons. The learning
//!    rate is large, so that weight decay shows.

use super::in_model::step_made_up;
use super::names::Names;
use super::weights::float_weights;
use crate::panics::quietly;
use crate::payload::AnyTensor;
use burn::module::{Module, Param};
use burn::optim::ModuleOptimizer;
use burn::tensor::{DType, Device, Tensor, TensorData};
use serde::{Deserialize, Serialize};

/// The maximum number of names that get a matrix; of more names, this many are taken evenly.
const NAMES: usize = 256;
const STEPS: i32 = 12;
const RATE: f64 = 1e3;
/// Relative to the largest value: devices round differently.
const TOLERANCE: f32 = 1e-4;

/// What an optimizer does to made-up parameters.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum MadeUpSteps {
    /// There is no optimizer.
    None,
    /// It panics.
    Panics,
    /// The elements of each parameter after its steps.
    Steps(Vec<Vec<f32>>),
}

#[derive(Module, Debug)]
struct MadeUp {
    at: Vec<Param<Tensor<2>>>,
}

/// The names that get a matrix.
pub(crate) fn made_up_names(names: &[String]) -> Vec<String> {
    names.iter().step_by(names.len().div_ceil(NAMES).max(1)).cloned().collect()
}

impl MadeUpSteps {
    /// Steps a matrix with each of these names.
    pub(crate) fn of(optimizer: Option<ModuleOptimizer>, names: &[String], device: &Device) -> Self {
        match optimizer {
            None => Self::None,
            Some(optimizer) => quietly(|| Self::steps(optimizer, names, device)).unwrap_or(Self::Panics),
        }
    }

    fn steps(mut optimizer: ModuleOptimizer, names: &[String], device: &Device) -> Self {
        let data = |values: [f32; 4]| TensorData::new(values.to_vec(), [2, 2]);
        let weight = || Tensor::from_data(data([0.5, -0.25, 0.125, -1.0]), (device, DType::F32));
        let mut made = MadeUp { at: names.iter().map(|_| Param::from_tensor(weight())).collect() };
        let places = names.to_vec();
        let name = move |path: &str| {
            let place = path.strip_prefix("at.").and_then(|place| place.parse::<usize>().ok());
            place.and_then(|place| places.get(place)).cloned().unwrap_or_default()
        };
        let in_model = Names::default().renamed(name);
        for step in 0..STEPS {
            let scale = 8f32.powi(step - 6);
            // Each step goes in another direction, so that moments show what they keep.
            let values = [1.0, -2.0, 3.0, if step % 2 == 0 { -0.5 } else { 0.25 }];
            let gradient = AnyTensor::from_data(data(values.map(|value| value * scale)), device);
            let gradients: Vec<_> = made.at.iter().map(|at| (at.id, gradient.clone())).collect();
            made = step_made_up(&mut optimizer, RATE, made, gradients, &in_model);
        }
        let read = |weight: AnyTensor| weight.into_data().map(|data| data.iter::<f32>().collect());
        let steps: Result<Vec<Vec<f32>>, String> = float_weights(&made).into_iter().map(|(_, at)| read(at)).collect();
        steps.map_or(Self::Panics, Self::Steps)
    }

    /// The index of the first matrix that two optimizers bring to different values, if there is one.
    pub(crate) fn differ(&self, other: &Self) -> Option<usize> {
        match (self, other) {
            (Self::None, Self::None) | (Self::Panics, Self::Panics) => None,
            (Self::Steps(own), Self::Steps(other)) => {
                let place = own.iter().zip(other).position(|(own, other)| !close(own, other));
                place.or((own.len() != other.len()).then_some(0))
            }
            _ => Some(0),
        }
    }

    /// Describes the optimizer in an error message.
    pub(crate) fn described(&self, place: usize) -> String {
        match self {
            Self::None => "none".to_owned(),
            Self::Panics => "one that panics at a small matrix".to_owned(),
            Self::Steps(at) => {
                let first = at.get(place).and_then(|at| at.first()).copied().unwrap_or(f32::NAN);
                format!("one whose {STEPS} test steps bring a made-up weight from 0.5 to {first:e}")
            }
        }
    }
}

fn close(own: &[f32], other: &[f32]) -> bool {
    let largest = own.iter().chain(other).map(|value| value.abs()).fold(0.0, f32::max);
    let close = |(own, other): (&f32, &f32)| {
        own.to_bits() == other.to_bits() || own.is_nan() && other.is_nan() || (own - other).abs() <= TOLERANCE * largest
    };
    own.len() == other.len() && own.iter().zip(other).all(close)
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::grad_clipping::GradientClippingConfig;
    use burn::module::ParamGroup;
    use burn::optim::momentum::MomentumConfig;
    use burn::optim::{AdamWConfig, MuonConfig, SgdConfig};

    fn steps(optimizer: ModuleOptimizer) -> MadeUpSteps {
        let names = ["blocks.0.weight", "blocks.0.norm.gamma", "head.weight"].map(str::to_owned);
        MadeUpSteps::of(Some(optimizer), &names, &Device::flex().autodiff())
    }

    #[test]
    fn every_setting_of_an_optimizer_shows_in_what_it_does() {
        let clipped = |clip| AdamWConfig::new().with_grad_clipping(Some(clip)).init();
        let momentum = |momentum| SgdConfig::new().with_momentum(Some(momentum)).init();
        let others: Vec<(&str, ModuleOptimizer)> = vec![
            ("adamw", AdamWConfig::new().init()),
            ("weight decay", AdamWConfig::new().with_weight_decay(2e-4).init()),
            ("no weight decay", AdamWConfig::new().with_weight_decay(0.0).init()),
            ("beta 1", AdamWConfig::new().with_beta_1(0.91).init()),
            ("beta 2", AdamWConfig::new().with_beta_2(0.99).init()),
            ("epsilon", AdamWConfig::new().with_epsilon(1e-8).init()),
            ("amsgrad", AdamWConfig::new().with_amsgrad(true).with_beta_2(0.9).init()),
            ("clip to 1", clipped(GradientClippingConfig::Norm(1.0))),
            ("clip to 2", clipped(GradientClippingConfig::Norm(2.0))),
            ("clip to 100", clipped(GradientClippingConfig::Norm(100.0))),
            ("clip each to 1", clipped(GradientClippingConfig::Value(1.0))),
            ("sgd", SgdConfig::new().init()),
            ("momentum", momentum(MomentumConfig::new())),
            ("less momentum", momentum(MomentumConfig::new().with_momentum(0.8))),
            ("dampening", momentum(MomentumConfig::new().with_dampening(0.0))),
            ("nesterov", momentum(MomentumConfig::new().with_nesterov(true))),
            ("muon", MuonConfig::new().init()),
            (
                "a group",
                AdamWConfig::new().init().with_group(
                    ParamGroup::from_predicate("norm"),
                    AdamWConfig::new().with_weight_decay(0.0).build(),
                    None,
                ),
            ),
        ];
        let all: Vec<(&str, MadeUpSteps, MadeUpSteps)> =
            others.into_iter().map(|(name, made)| (name, steps(made.clone()), steps(made))).collect();
        for (place, (name, one, again)) in all.iter().enumerate() {
            assert_eq!(one.differ(again), None, "{name}");
            for (other, two, _) in &all[place + 1..] {
                assert!(one.differ(two).is_some(), "{name} and {other}: {one:?}");
            }
            assert!(one.differ(&MadeUpSteps::None).is_some());
        }
        let (plain, group) = (&all[0].1, &all[all.len() - 1].1);
        assert_eq!(plain.differ(group), Some(1), "only the norm's parameter is in the group");
    }

    #[test]
    fn many_names_are_taken_evenly() {
        let names: Vec<String> = (0..1000).map(|name| name.to_string()).collect();
        let taken = made_up_names(&names);
        assert!(taken.len() <= NAMES && taken.len() > NAMES / 2);
        assert_eq!(made_up_names(&names[..256]), names[..256]);
        assert!(made_up_names(&[]).is_empty());
    }
}
