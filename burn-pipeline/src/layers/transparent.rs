//! Modules that add nothing to the paths of what they hold.

/// Implements `Module` for a type that adds no part to its fields' paths.
macro_rules! transparent {
    ([$($bounds:tt)*] $type:ty { $($field:ident),* }) => {
        impl<$($bounds)*> Module for $type {
            fn visit<V: ModuleVisitor>(&self, _visitor: &mut V) {
                $(self.$field.visit(_visitor);)*
            }

            fn map<Mapper: ModuleMapper>(self, _mapper: &mut Mapper) -> Self {
                Self { $($field: self.$field.map(_mapper),)* ..self }
            }

            fn collect_devices(&self, devices: Devices) -> Devices {
                $(let devices = self.$field.collect_devices(devices);)*
                devices
            }

            fn fork(self, _device: &Device) -> Self {
                Self { $($field: self.$field.fork(_device),)* ..self }
            }

            fn to_device(self, _device: &Device) -> Self {
                Self { $($field: self.$field.to_device(_device),)* ..self }
            }

            fn train(self) -> Self {
                Self { $($field: self.$field.train(),)* ..self }
            }

            fn valid(&self) -> Self {
                Self { $($field: self.$field.valid(),)* ..self.clone() }
            }

            fn materialize(self) -> Self {
                Self { $($field: self.$field.materialize(),)* ..self }
            }
        }
    };
}

pub(super) use transparent;
