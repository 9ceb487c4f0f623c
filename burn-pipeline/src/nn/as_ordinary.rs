//! Wraps ordinary layers for a group: parameters keep the paths that they have in the ordinary layer.
//!
//! Guarantees: the paths, and the types of modules around each parameter, are those of the ordinary layer. So
//! checkpoints, exports, stores with their adapters, and groups of parameters mean one model, whatever the group's
//! size.

/// Implements Burn's module traits for a layer that wraps an ordinary one: visitors do not see the wrapper.
macro_rules! as_ordinary {
    ($layer:ident { $inner:ident }) => {
        impl burn::module::Module for $layer {
            fn collect_devices(&self, devices: burn::module::Devices) -> burn::module::Devices {
                burn::module::Module::collect_devices(&self.$inner, devices)
            }

            fn fork(self, device: &burn::tensor::Device) -> Self {
                Self { $inner: burn::module::Module::fork(self.$inner, device), ..self }
            }

            fn to_device(self, device: &burn::tensor::Device) -> Self {
                Self { $inner: burn::module::Module::to_device(self.$inner, device), ..self }
            }

            fn train(self) -> Self {
                Self { $inner: burn::module::Module::train(self.$inner), ..self }
            }

            fn valid(&self) -> Self {
                Self { $inner: burn::module::Module::valid(&self.$inner), ..self.clone() }
            }

            fn materialize(self) -> Self {
                Self { $inner: burn::module::Module::materialize(self.$inner), ..self }
            }

            fn visit<V: burn::module::ModuleVisitor>(&self, visitor: &mut V) {
                burn::module::Module::visit(&self.$inner, visitor);
            }

            fn map<M: burn::module::ModuleMapper>(self, mapper: &mut M) -> Self {
                Self { $inner: burn::module::Module::map(self.$inner, mapper), ..self }
            }
        }

        impl burn::module::ModuleDisplayDefault for $layer {
            fn content(&self, content: burn::module::Content) -> Option<burn::module::Content> {
                content.set_top_level_type(stringify!($layer)).add(stringify!($inner), &self.$inner).optional()
            }

            fn num_params(&self) -> usize {
                burn::module::Module::num_params(self)
            }
        }

        impl burn::module::ModuleDisplay for $layer {}

        impl std::fmt::Display for $layer {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(&burn::module::ModuleDisplay::format(self, Default::default()))
            }
        }
    };
}

pub(super) use as_ordinary;
