//! Which optimizers may step pieces of parameters, and what else cannot be sharded.

use super::replicated;
use crate::cases::Text;
use burn::grad_clipping::GradientClippingConfig;
use burn::optim::momentum::MomentumConfig;
use burn::optim::{
    AdaGradConfig, AdafactorConfig, AdamConfig, AdamWConfig, LambConfig, LionConfig, ModuleOptimizer, MuonConfig,
    RmsPropConfig, SgdConfig,
};
use burn_pipeline::train::{BuildError, Builder};

fn sharded() -> Builder {
    replicated::<Text>(("1F1B", 1), 4, 2).sharded(true)
}

fn refused(make: impl Fn() -> ModuleOptimizer + Send + Sync + 'static) -> Option<String> {
    sharded().optimizer(make).build().err().map(|error| error.to_string())
}

#[test]
fn optimizers_that_step_each_element_by_itself_are_taken() {
    assert_eq!(refused(|| SgdConfig::new().init()), None);
    assert_eq!(refused(|| SgdConfig::new().with_momentum(Some(MomentumConfig::new())).init()), None);
    assert_eq!(refused(|| AdamConfig::new().init()), None);
    assert_eq!(refused(|| AdamWConfig::new().init()), None);
    assert_eq!(refused(|| RmsPropConfig::new().init()), None);
    assert_eq!(refused(|| AdaGradConfig::new().init()), None);
    assert_eq!(refused(|| LionConfig::new().init()), None);
    let by_value = || AdamWConfig::new().with_grad_clipping(Some(GradientClippingConfig::Value(0.5))).init();
    assert_eq!(refused(by_value), None);
}

#[test]
fn optimizers_that_look_at_whole_parameters_are_refused() {
    let by_norm = || AdamWConfig::new().with_grad_clipping(Some(GradientClippingConfig::Norm(0.5))).init();
    let refusals = [
        ("norm", refused(by_norm)),
        ("Lamb", refused(|| LambConfig::new().init())),
        ("Adafactor", refused(|| AdafactorConfig::new().init())),
        ("Muon", refused(|| MuonConfig::new().init())),
    ];
    for (name, refusal) in refusals {
        let refusal = refusal.unwrap_or_else(|| panic!("{name} was taken"));
        assert!(refusal.contains("does not step each element by itself"), "{name}: {refusal}");
        assert!(refusal.contains("stage "), "{name}: {refusal}");
    }
}

#[test]
fn what_cannot_be_sharded_is_refused_before_anything_runs() {
    let error = |builder: Builder| builder.build().unwrap_err();
    let alone = replicated::<Text>(("1F1B", 1), 4, 1).sharded(true);
    assert!(matches!(error(alone), BuildError::NothingToShardOver));
    let none = error(sharded().gathered_stages(0)).to_string();
    assert!(none.contains("at most 0") || none.contains("0 active") || none.contains(" 0"), "{none}");
}
