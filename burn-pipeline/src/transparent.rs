//! Modules that add nothing to the paths of what they hold.

/// Implements `Module` for a type that adds no part to its fields' paths.
macro_rules! transparent {
    ([$($bounds:tt)*] $type:ty { $($field:ident),* }) => {
        impl<$($bounds)*> burn::module::Module for $type {
            fn visit<V: burn::module::ModuleVisitor>(&self, _visitor: &mut V) {
                $(burn::module::Module::visit(&self.$field, _visitor);)*
            }

            fn map<Mapper: burn::module::ModuleMapper>(self, _mapper: &mut Mapper) -> Self {
                Self { $($field: burn::module::Module::map(self.$field, _mapper),)* ..self }
            }

            fn collect_devices(&self, devices: burn::module::Devices) -> burn::module::Devices {
                $(let devices = burn::module::Module::collect_devices(&self.$field, devices);)*
                devices
            }

            fn fork(self, _device: &burn::tensor::Device) -> Self {
                Self { $($field: burn::module::Module::fork(self.$field, _device),)* ..self }
            }

            fn to_device(self, _device: &burn::tensor::Device) -> Self {
                Self { $($field: burn::module::Module::to_device(self.$field, _device),)* ..self }
            }

            fn train(self) -> Self {
                Self { $($field: burn::module::Module::train(self.$field),)* ..self }
            }

            fn valid(&self) -> Self {
                Self { $($field: burn::module::Module::valid(&self.$field),)* ..self.clone() }
            }

            fn materialize(self) -> Self {
                Self { $($field: burn::module::Module::materialize(self.$field),)* ..self }
            }
        }
    };
}

pub(crate) use transparent;
