//! Goes through a module's parameters and buffers, whatever their rank and kind.

use crate::payload::AnyTensor;
use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId, Parameter};
use burn::tensor::kind::Basic;
use burn::tensor::{Bool, Device, Float, Int, Tensor};
use std::any::TypeId;

/// A parameter or buffer of any rank and kind. What reads its value initialises a lazy one.
pub(crate) trait AnyParam {
    fn id(&self) -> ParamId;
    fn is_float(&self) -> bool;
    /// Its value as it is stored. Burn's visitors and mappers see adapters apart from what they adapt.
    fn base(&self) -> AnyTensor;
    /// Returns true if it gets gradients.
    fn is_trained(&self) -> bool;
    /// Returns true if it would get gradients as a leaf. Burn shows what it remembers about a parameter only here:
    /// `valid` suspends it and `train` restores it.
    fn is_trained_as_leaf(&self) -> bool;
    /// Its device, which does not initialise it.
    fn lazy_device(&self) -> Device;
}

impl<const D: usize, K: Basic + 'static> AnyParam for Param<Tensor<D, K>>
where
    Tensor<D, K>: Parameter,
    Self: Module,
{
    fn id(&self) -> ParamId {
        self.id
    }

    fn is_float(&self) -> bool {
        TypeId::of::<K>() == TypeId::of::<Float>()
    }

    fn base(&self) -> AnyTensor {
        AnyTensor::new(Param::base(self))
    }

    fn is_trained(&self) -> bool {
        Parameter::is_require_grad(&**self)
    }

    fn is_trained_as_leaf(&self) -> bool {
        self.valid().train().is_trained()
    }

    fn lazy_device(&self) -> Device {
        Param::lazy_device(self)
    }
}

/// The place of a parameter in its module.
#[derive(Default)]
pub(in crate::stage) struct Place {
    path: Vec<String>,
    /// The types of the enclosing modules, outermost first, as Burn's visitors name them.
    pub(in crate::stage) containers: Vec<String>,
}

impl Place {
    /// Field names and positions in lists, joined by dots (`blocks.0.norm.gamma`).
    pub(in crate::stage) fn path(&self) -> String {
        self.path.join(".")
    }
}

/// Calls `see` with each parameter and buffer, in visiting order; one with several paths comes once for each.
pub(in crate::stage) fn each<M: Module>(module: &M, see: impl FnMut(&Place, &dyn AnyParam)) {
    struct Each<F> {
        place: Place,
        see: F,
    }

    impl<F: FnMut(&Place, &dyn AnyParam)> ModuleVisitor for Each<F> {
        fn enter_module(&mut self, name: &str, container: &str) {
            self.place.path.push(name.to_owned());
            self.place.containers.push(container.to_owned());
        }

        fn exit_module(&mut self, _: &str, _: &str) {
            self.place.path.pop();
            self.place.containers.pop();
        }

        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            (self.see)(&self.place, param);
        }

        fn visit_int<const D: usize>(&mut self, param: &Param<Tensor<D, Int>>) {
            (self.see)(&self.place, param);
        }

        fn visit_bool<const D: usize>(&mut self, param: &Param<Tensor<D, Bool>>) {
            (self.see)(&self.place, param);
        }
    }

    module.visit(&mut Each { place: Place::default(), see });
}

/// Like [`each`], for float parameters alone.
pub(in crate::stage) fn each_float<M: Module>(module: &M, mut see: impl FnMut(&Place, &dyn AnyParam)) {
    each(module, |place, param| {
        if param.is_float() {
            see(place, param);
        }
    });
}

/// The module with another value at each path for which there is one. It keeps identifiers, and what Burn remembers
/// about training.
pub(in crate::stage) fn with_each<M: Module>(
    module: M,
    mut value: impl FnMut(&dyn AnyParam) -> Option<AnyTensor>,
) -> M {
    with_renamed(module, |param| value(param).map(|value| (param.id(), value)))
}

/// Like [`with_each`], with another identifier too.
pub(super) fn with_renamed<M: Module>(module: M, new: impl FnMut(&dyn AnyParam) -> Option<(ParamId, AnyTensor)>) -> M {
    struct With<F>(F);

    impl<F: FnMut(&dyn AnyParam) -> Option<(ParamId, AnyTensor)>> With<F> {
        fn mapped<const D: usize, K: Basic + 'static>(&mut self, param: Param<Tensor<D, K>>) -> Param<Tensor<D, K>>
        where
            Tensor<D, K>: Parameter,
            Param<Tensor<D, K>>: AnyParam,
        {
            let Some((id, value)) = (self.0)(&param) else { return param };
            let (_, _, mapper) = param.consume();
            Param::from_mapped_value(id, Tensor::from_dispatch(value.into_dispatch()), mapper)
        }
    }

    impl<F: FnMut(&dyn AnyParam) -> Option<(ParamId, AnyTensor)>> ModuleMapper for With<F> {
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            self.mapped(param)
        }

        fn map_int<const D: usize>(&mut self, param: Param<Tensor<D, Int>>) -> Param<Tensor<D, Int>> {
            self.mapped(param)
        }

        fn map_bool<const D: usize>(&mut self, param: Param<Tensor<D, Bool>>) -> Param<Tensor<D, Bool>> {
            self.mapped(param)
        }
    }

    module.map(&mut With(new))
}
