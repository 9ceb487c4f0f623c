//! How tensors cross threads on a CubeCL device, so that results equal those of one thread.
//!
//! Where two threads work on one tensor's memory, CubeCL loses the order of their work in two ways:
//!
//! - Each thread has its own queue on a device. A tensor names the queue of the thread that made it, even after
//!   another thread has changed it in place, so the next reader waits for the wrong queue.
//! - A thread changes a tensor in place if it sees no other handle of it. An operation drops its handle before it
//!   enters the queue. So another thread may see no handle, and its change overtakes the operation.
//!
//! `tests/cube/two-threads.md` shows both in plain Burn. Two rules exclude them:
//!
//! 1. In a process that holds a pipeline, all threads share one queue per device ([`one_queue`]). Work enters it in
//!    the order of the calls, also from several threads. Ranks on different devices still work in parallel.
//! 2. A tensor that a rank gives to another rank or to the caller has its own memory: a copy that the giving thread
//!    makes ([`AnyTensor::unshared`](crate::payload::AnyTensor)). So no two threads hold memory that either of them
//!    may change.
//!
//! With `fusion` there is a second kind of queue above, where operations wait until a group of them is complete. If
//! ranks shared one, groups would mix several ranks' operations, in another order in each step. Each group would be
//! searched for and compiled anew, which took three to five times as long as no fusion. Hence a third rule:
//!
//! 3. Each rank has its own fusion queue ([`own_fusion_queue`]), and a tensor is computed to its end before it is
//!    sent (`payload/fused.rs`). All fusion queues end in the one queue of rule 1: CubeCL takes the queue
//!    whose number is the stream's, modulo the number of queues.
//!
//! A batch needs no copy: the command that brings it to the ranks keeps a handle until the last rank has answered,
//! so no rank sees itself as the only holder.

/// Runs a rank with its own queue for operations that are to be fused; without `fusion` it just runs it.
pub(crate) fn own_fusion_queue<T>(run: impl FnOnce() -> T) -> T {
    #[cfg(all(feature = "fusion", feature = "cubecl-backend"))]
    {
        use burn_cubecl::cubecl::config::{CubeClRuntimeConfig, RuntimeConfig};
        use cubecl_environment::stream::StreamId;
        use std::sync::atomic::{AtomicU64, Ordering};
        // 0 is the stream of all other threads.
        static RANKS: AtomicU64 = AtomicU64::new(1);
        let queues = u64::from(CubeClRuntimeConfig::get().streaming.max_streams).max(1);
        StreamId { value: queues * RANKS.fetch_add(1, Ordering::Relaxed) }.executes(run)
    }
    #[cfg(not(all(feature = "fusion", feature = "cubecl-backend")))]
    run()
}

/// Makes all threads of this process share one queue on each CubeCL device from now on.
pub(crate) fn one_queue() {
    #[cfg(feature = "cubecl-backend")]
    cubecl_environment::stream::set_policy(cubecl_environment::stream::StreamPolicy::Single);
}
