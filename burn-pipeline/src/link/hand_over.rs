//! What crosses threads on a CubeCL device, so that its numbers are one thread's.
//!
//! Where two threads work on one tensor's memory, CubeCL loses the order of their work in two ways:
//!
//! - Each thread has a queue of its own on a device. A tensor names the queue of the thread that made it, also after another
//!   thread has changed it in place, so the next reader waits for the wrong queue.
//! - A thread changes a tensor in place where it sees no other handle of it. An operation gives its handle up before it is in
//!   the queue. So another thread may see none, and its change overtakes the operation.
//!
//! `tests/cube/two-threads.md` shows both in plain Burn. Two rules exclude them:
//!
//! 1. In a process that holds a pipeline, all threads share one queue a device ([`one_queue`]). Work enters it in the order
//!    in which it is called for, also from several threads. Ranks on different devices still work side by side.
//! 2. What one rank gives another rank, or the caller, has memory of its own: a copy, made by the thread that gives it
//!    ([`AnyTensor::unshared`](crate::stage::AnyTensor)). So no two threads hold one memory that either of them may change.
//!
//! With `fusion` there is a second kind of queue above: operations wait there until a group of them is whole. If ranks shared one, groups
//! would be made of several ranks' operations, in an order that is another one in each step; each would be searched for and compiled
//! anew, which took three to five times as long as not to fuse. So
//!
//! 3. each rank has a queue of its own for them ([`own_fusion_queue`]), and what it sends runs to its end before it is sent
//!    (`stage/boundary/fused.rs`). All of these end in the one queue of rule 1: CubeCL takes the queue whose number is the stream's,
//!    modulo how many there are.
//!
//! A batch needs no copy: the command that brings it to the ranks holds it until the last one has answered, so that none of
//! them sees itself alone.

/// Runs a rank with a queue of its own for operations that are to be fused; without `fusion` it just runs.
pub(crate) fn own_fusion_queue<T>(run: impl FnOnce() -> T) -> T {
    #[cfg(all(feature = "fusion", feature = "cubecl-backend"))]
    {
        use burn_cubecl::cubecl::config::{CubeClRuntimeConfig, RuntimeConfig};
        use cubecl_environment::stream::StreamId;
        use std::sync::atomic::{AtomicU64, Ordering};
        // 0 is that of all other threads.
        static RANKS: AtomicU64 = AtomicU64::new(1);
        let queues = u64::from(CubeClRuntimeConfig::get().streaming.max_streams).max(1);
        StreamId { value: queues * RANKS.fetch_add(1, Ordering::Relaxed) }.executes(run)
    }
    #[cfg(not(all(feature = "fusion", feature = "cubecl-backend")))]
    run()
}

/// From now on, all threads of this process share one queue on each CubeCL device.
pub(crate) fn one_queue() {
    #[cfg(feature = "cubecl-backend")]
    cubecl_environment::stream::set_policy(cubecl_environment::stream::StreamPolicy::Single);
}
