//! One queue a device.
//!
//! CubeCL gives each thread a queue of its own on a device, and orders two queues only where a thread reads a tensor of
//! another one. A tensor that one thread sends and another then changes in place (CubeCL does so whenever it holds the last
//! reference) still names the queue of the thread that made it, so whoever reads it next does not wait for the change: two
//! ranks on one device got other numbers in each run.
//!
//! The rule: within a process that holds a pipeline, all work on a device goes through one queue, in the order in which
//! threads hand it in. A thread that was handed a tensor was handed it after the work that makes it, so every read comes
//! after every write without an event or a wait. Ranks of different devices still work side by side, since each device has
//! its queue; ranks of one device would share its cores anyway. Operations that Burn's fusion holds back are held back by
//! queue as well, so a tensor is never handed on while its operations wait in another thread.

/// From now on, all threads of this process hand in their work on CubeCL devices to one queue a device.
pub(crate) fn one_queue() {
    #[cfg(feature = "cubecl-backend")]
    cubecl_environment::stream::set_policy(cubecl_environment::stream::StreamPolicy::Single);
}
