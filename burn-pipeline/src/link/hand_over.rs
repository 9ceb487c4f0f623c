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
//! A batch needs no copy: the command that brings it to the ranks holds it until the last one has answered, so that none of
//! them sees itself alone.

/// From now on, all threads of this process share one queue on each CubeCL device.
pub(crate) fn one_queue() {
    #[cfg(feature = "cubecl-backend")]
    cubecl_environment::stream::set_policy(cubecl_environment::stream::StreamPolicy::Single);
}
