//! One queue a device.
//!
//! CubeCL gives each thread a queue of its own on a device. A thread that holds the last reference to a tensor may change it in
//! place, also where another thread made it. The tensor still names the queue of the thread that made it, so the next reader
//! waits for that queue, and not for the change. With two ranks on one device, losses differed from run to run.
//!
//! The rule: in a process that holds a pipeline, all threads share one queue a device. Ranks on different devices still work
//! side by side, since each device has its own queue.
//!
//! What it does not mend: where a plan has copies of a stage, the sums over copies still differ from run to run on one shared
//! device. The cause is not known, and building such a pipeline is refused.

/// From now on, all threads of this process share one queue on each CubeCL device.
pub(crate) fn one_queue() {
    #[cfg(feature = "cubecl-backend")]
    cubecl_environment::stream::set_policy(cubecl_environment::stream::StreamPolicy::Single);
}
