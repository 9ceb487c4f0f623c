//! Goes through a module's float parameters, whatever their rank.

use crate::payload::AnyTensor;
use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::tensor::Tensor;

/// A float parameter of any rank.
pub(in crate::stage) trait FloatParam {
    /// Its identifier.
    fn id(&self) -> ParamId;
    /// Its value in forwards. Initialises a lazy parameter.
    fn value(&self) -> AnyTensor;
    /// Its value as it is stored, without adapters. Initialises a lazy parameter.
    fn base(&self) -> AnyTensor;
    /// Returns true if it gets gradients.
    fn is_trained(&self) -> bool;
}

impl<const D: usize> FloatParam for Param<Tensor<D>> {
    fn id(&self) -> ParamId {
        self.id
    }

    fn value(&self) -> AnyTensor {
        AnyTensor::new(self.val())
    }

    fn base(&self) -> AnyTensor {
        AnyTensor::new(Param::base(self))
    }

    fn is_trained(&self) -> bool {
        self.is_require_grad()
    }
}

/// Calls `see` with each float parameter, in visiting order; one with several paths comes once for each.
pub(in crate::stage) fn each_float<M: Module>(module: &M, see: impl FnMut(&dyn FloatParam)) {
    struct Each<F>(F);

    impl<F: FnMut(&dyn FloatParam)> ModuleVisitor for Each<F> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            (self.0)(param);
        }
    }

    module.visit(&mut Each(see));
}
