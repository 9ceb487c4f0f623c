//! Wraps ordinary layers for a group: parameters keep the paths that they have in the ordinary layer.
//!
//! Guarantees: the paths, and the types of modules around each parameter, are those of the ordinary layer. So
//! checkpoints, exports, stores with their adapters, and groups of parameters mean one model, whatever the group's
//! size.

/// Implements Burn's module traits for a layer that wraps an ordinary one: visitors do not see the wrapper.
macro_rules! as_ordinary {
    ($layer:ident { $inner:ident }) => {
        crate::transparent::transparent!([] $layer { $inner });

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
