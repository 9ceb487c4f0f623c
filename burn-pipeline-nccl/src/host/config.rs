//! The configuration of a communicator: NCCL's `ncclConfig_t`, byte for byte.
//!
//! The structure differs between the headers that cudarc can be built for. This one has the fields, the size and the
//! version of NCCL 2.18, which every later library accepts.

use std::ffi::{c_char, c_int, c_uint};
use std::ptr::null;

/// The oldest NCCL that can split communicators.
pub(crate) const OLDEST: c_int = 21800;
const MAGIC: c_uint = 0xcafe_beef;
/// NCCL's value for "the library decides".
const UNDEFINED: c_int = i32::MIN;

/// `ncclConfig_t` of NCCL 2.18.
#[repr(C)]
pub(crate) struct Config {
    size: usize,
    magic: c_uint,
    version: c_uint,
    blocking: c_int,
    cga_cluster_size: c_int,
    min_ctas: c_int,
    max_ctas: c_int,
    net_name: *const c_char,
    split_share: c_int,
}

impl Config {
    /// Calls that return at once; the library decides everything else.
    pub(crate) fn new() -> Self {
        Self {
            size: size_of::<Self>(),
            magic: MAGIC,
            version: OLDEST as c_uint,
            blocking: 0,
            cga_cluster_size: UNDEFINED,
            min_ctas: UNDEFINED,
            max_ctas: UNDEFINED,
            net_name: null(),
            split_share: UNDEFINED,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::offset_of;

    /// The library reads these bytes with the layout of its own header.
    #[test]
    fn the_configuration_is_that_of_a_program_built_with_nccl_2_18() {
        let config = Config::new();
        // From `nccl.h`, for 8-byte pointers.
        let places = [offset_of!(Config, magic), offset_of!(Config, version), offset_of!(Config, blocking)];
        assert_eq!(places, [8, 12, 16]);
        let places = [offset_of!(Config, cga_cluster_size), offset_of!(Config, min_ctas), offset_of!(Config, max_ctas)];
        assert_eq!(places, [20, 24, 28]);
        assert_eq!([offset_of!(Config, net_name), offset_of!(Config, split_share)], [32, 40]);
        assert_eq!((size_of::<Config>(), config.size), (48, 48));
        assert_eq!((config.blocking, config.magic, config.version), (0, 0xcafe_beef, 21800));
        let left = [config.cga_cluster_size, config.min_ctas, config.max_ctas, config.split_share];
        assert_eq!((left, config.net_name.is_null()), ([i32::MIN; 4], true));
    }
}
