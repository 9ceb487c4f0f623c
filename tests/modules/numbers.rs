//! The element types of the table: parameters that are f64, bf16 or f16 by themselves, and those that a precision
//! rounds. Running statistics, norms that compute with them, and Burn's recurrent layers stay f32 beside all of them.

use crate::cases::Case;
use crate::cell::Mode;
use crate::masks::Masks;
use burn::lr_scheduler::module_lr_scheduler::ModuleLearningRate;
use burn::module::{Module, ModuleMapper, Param, ParamGroup};
use burn::optim::ModuleOptimizer;
use burn::tensor::{FloatDType, Tensor};
use burn_pipeline::stage::{LossScale, Precision};
use burn_pipeline::train::StageContext;

/// What runs with each type: every engine and way to run, over the kinds of schedules.
pub(crate) const CELLS: [(&str, Mode); 8] = [
    ("ZBVZeroBubble", Mode::Plain),
    ("1F1B", Mode::Eager),
    ("ZBH1", Mode::Captured),
    ("DualPipe", Mode::Recomputed),
    ("1F1B", Mode::DataParallel),
    ("ZBVZeroBubble", Mode::Sharded),
    ("ZBVZeroBubble", Mode::TensorParallel),
    ("1F1B", Mode::Resumed),
];

/// A precision.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Half {
    pub(crate) dtype: FloatDType,
    /// The loss scale.
    pub(crate) factor: f64,
}

impl Half {
    /// The same for a pipeline.
    pub(crate) fn precision(self, keeps: fn(&str) -> bool) -> Precision {
        let made = if self.dtype == FloatDType::BF16 { Precision::bf16() } else { Precision::f16() };
        let made = made.loss_scale(LossScale { initial: self.factor, ..LossScale::default() });
        // A group that matches nothing is refused.
        if keeps("layers.0.kind") { made.keep(ParamGroup::from_predicate("kind")) } else { made }
    }
}

/// Element types of parameters.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Numbers {
    /// By themselves.
    Own(FloatDType),
    /// Of rounded copies.
    Rounded(Half),
}

impl Numbers {
    pub(crate) const ALL: [Self; 5] = [
        Self::Own(FloatDType::F64),
        Self::Own(FloatDType::BF16),
        Self::Own(FloatDType::F16),
        Self::Rounded(Half { dtype: FloatDType::BF16, factor: 1.0 }),
        Self::Rounded(Half { dtype: FloatDType::F16, factor: 1024.0 }),
    ];

    /// Its column in the table.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Own(FloatDType::F64) => "f64",
            Self::Own(FloatDType::BF16) => "bf16",
            Self::Own(_) => "f16",
            Self::Rounded(Half { dtype: FloatDType::BF16, .. }) => "`Precision::bf16`",
            Self::Rounded(_) => "`Precision::f16`",
        }
    }
}

/// A module with other numbers.
#[derive(Clone)]
pub(crate) struct Typed<C> {
    pub(crate) case: C,
    pub(crate) numbers: Numbers,
}

impl<C: Case> Case for Typed<C> {
    type Model = C::Model;

    fn name(&self) -> &'static str {
        self.case.name()
    }

    fn part(&self, at: &StageContext) -> C::Model {
        let part = self.case.part(at);
        match self.numbers {
            Numbers::Own(own) => part.map(&mut Cast::new(own, self.case.keeps())),
            Numbers::Rounded(_) => part,
        }
    }

    fn half(&self) -> Option<Half> {
        if let Numbers::Rounded(half) = self.numbers { Some(half) } else { None }
    }

    fn keeps(&self) -> fn(&str) -> bool {
        self.case.keeps()
    }

    fn optimizer(&self) -> ModuleOptimizer {
        self.case.optimizer()
    }

    fn learning_rate(&self, step: usize) -> ModuleLearningRate {
        self.case.learning_rate(step)
    }

    fn before(&self, step: usize) {
        self.case.before(step);
    }

    fn masks(&self) -> &[Masks] {
        self.case.masks()
    }
}

/// Gives parameters another type, except those that are kept.
pub(crate) struct Cast {
    to: FloatDType,
    keeps: fn(&str) -> bool,
    path: Vec<String>,
}

impl Cast {
    pub(crate) fn new(to: FloatDType, keeps: fn(&str) -> bool) -> Self {
        Self { to, keeps, path: Vec::new() }
    }
}

impl ModuleMapper for Cast {
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
                true => value.inner().cast(self.to).autodiff().require_grad(),
                false => value.cast(self.to),
            }),
        }
    }
}
