//! A communicator of NCCL: made without blocking, polled, and aborted when it fails.
//!
//! 1. Every call returns at once (`blocking = 0`); [`Communicator::settle`] polls until it is done, or until a
//!    deadline.
//! 2. Memory is passed as [`Area`], which the caller keeps pinned until an event after the call has completed: calls
//!    that use memory are `unsafe`.
//! 3. Dropping a communicator aborts it; [`Communicator::close`] ends it in agreement with all ranks.

use super::error::NcclError;
use super::gpu::Stream;
use super::tensors::Area;
use crate::host::config::{Config, OLDEST};
use burn::tensor::DType;
use burn_pipeline::link::FlatCollective;
use cudarc::nccl::{result, sys};
use std::ffi::{CStr, c_char, c_int};
use std::ptr::null_mut;
use std::time::{Duration, Instant};

/// The colour of ranks in no group of a split.
const NO_COLOR: c_int = -1;
/// The time between two polls.
const PAUSE: Duration = Duration::from_micros(20);

/// Returns why a wait must end, if it must.
type Stop<'a> = &'a dyn Fn() -> Option<String>;

/// The id with which ranks form a communicator: rank 0 makes it, and all ranks get it.
pub(crate) type Id = [u8; 128];

/// Opens the library and returns its version (2.28.9 is 22809).
pub(crate) fn library() -> Result<c_int, NcclError> {
    // SAFETY: it loads NCCL's library, if there is one.
    if !unsafe { sys::is_culib_present() } {
        return Err(NcclError::NoLibrary);
    }
    let version = result::get_nccl_version().map_err(|error| failed("its version", error.0))?;
    if version < OLDEST { Err(NcclError::Old { version }) } else { Ok(version) }
}

/// Makes a new id. This process must live until all ranks have joined.
pub(crate) fn new_id() -> Result<Id, NcclError> {
    let id = result::get_uniqueid().map_err(|error| failed("a new id", error.0))?;
    Ok(id.internal.map(|byte| byte as u8))
}

/// The direction of a transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    To(usize),
    From(usize),
}

/// A communicator with this process as one rank.
#[derive(Debug)]
pub(crate) struct Communicator {
    handle: sys::ncclComm_t,
}

// SAFETY: NCCL's calls on one communicator may come from any thread, one at a time; a `Communicator` is not shared.
unsafe impl Send for Communicator {}

impl Communicator {
    /// Joins the ranks with the same id. Ends at the deadline, or when `stop` returns a reason.
    pub(crate) fn join(
        id: &Id,
        rank: usize,
        ranks: usize,
        deadline: Instant,
        stop: Stop<'_>,
    ) -> Result<Self, NcclError> {
        let id = sys::ncclUniqueId { internal: id.map(|byte| byte as c_char) };
        let mut handle = null_mut();
        let mut config = Config::new();
        // SAFETY: the handle is written, and the configuration read, before the call returns, and both are alive.
        let status = unsafe {
            sys::ncclCommInitRankConfig(
                &mut handle,
                ranks as c_int,
                id,
                rank as c_int,
                std::ptr::from_mut(&mut config).cast(),
            )
            .result()
        };
        status.map_err(|error| failed("joining the other ranks", error.0))?;
        let communicator = Self { handle };
        communicator.settle("joining the other ranks", deadline, stop)?;
        Ok(communicator)
    }

    /// Makes a communicator of the ranks that pass the same colour, ordered by `key`. `None` if this rank passes no
    /// colour. All ranks must call it.
    pub(crate) fn split(
        &self,
        color: Option<u16>,
        key: usize,
        deadline: Instant,
        stop: Stop<'_>,
    ) -> Result<Option<Self>, NcclError> {
        let what = "making the communicator of a group";
        let color = color.map_or(NO_COLOR, c_int::from);
        // NCCL writes the handle when the parent has settled, which may be after an error here. So the memory is
        // leaked, and freed only when nothing can write to it any more.
        let slot: &'static mut sys::ncclComm_t = Box::leak(Box::new(null_mut()));
        let written = std::ptr::from_mut(slot);
        let mut config = Config::new();
        // SAFETY: the communicator is alive; the configuration is read before the call returns; the memory for the new
        // handle is not freed before the split has settled (below).
        let status = unsafe {
            sys::ncclCommSplit(self.handle, color, key as c_int, written, std::ptr::from_mut(&mut config).cast())
                .result()
        };
        status.map_err(|error| failed(what, error.0))?;
        self.settle(what, deadline, stop)?;
        // SAFETY: it came from a box, and the split has settled: nothing else uses it.
        let handle = *unsafe { Box::from_raw(written) };
        if handle.is_null() {
            return Ok(None);
        }
        let part = Self { handle };
        part.settle(what, deadline, stop)?;
        Ok(Some(part))
    }

    /// Sends and receives bytes, as one group.
    ///
    /// # Safety
    /// The memory stays pinned until an event after this group has completed, even if this fails. Until then
    /// nothing else writes to it, and nothing reads memory that is received into.
    pub(crate) unsafe fn exchange(&self, stream: &Stream, transfers: &[(Way, Area)]) -> Result<(), NcclError> {
        let (handle, queue) = (self.handle, stream.for_nccl());
        self.group("a group of transfers", |call| {
            for &(way, Area { pointer, bytes }) in transfers.iter().filter(|(_, area)| area.bytes > 0) {
                let kind = sys::ncclDataType_t::ncclUint8;
                // SAFETY: by the caller's promise the memory stays pinned while it is used; it has that many bytes.
                // Communicator and stream are alive.
                call(unsafe {
                    match way {
                        Way::To(peer) => sys::ncclSend(pointer.cast_const(), bytes, kind, peer as c_int, handle, queue),
                        Way::From(peer) => sys::ncclRecv(pointer, bytes, kind, peer as c_int, handle, queue),
                    }
                })?;
            }
            Ok(())
        })
    }

    /// Runs a collective of `members` ranks on every pair (memory that is read, memory that is written), as one
    /// group. Sums add elements as `dtype`.
    ///
    /// # Safety
    /// As for [`exchange`](Self::exchange). The communicator has `members` ranks.
    ///
    /// # Errors
    /// Returns [`NcclError::Memory`] if memory does not have the bytes that the collective reads and writes.
    pub(crate) unsafe fn collect(
        &self,
        collective: FlatCollective,
        members: usize,
        stream: &Stream,
        pairs: &[(DType, Area, Area)],
    ) -> Result<(), NcclError> {
        self.group("a collective", |call| {
            // SAFETY: the caller's promise.
            pairs.iter().try_for_each(|pair| unsafe { self.collect_one(collective, members, stream, pair, call) })
        })
    }

    /// # Safety
    /// As for [`collect`](Self::collect).
    unsafe fn collect_one(
        &self,
        collective: FlatCollective,
        members: usize,
        stream: &Stream,
        &(dtype, from, to): &(DType, Area, Area),
        call: &dyn Fn(sys::ncclResult_t) -> Result<(), NcclError>,
    ) -> Result<(), NcclError> {
        let (handle, queue, sum) = (self.handle, stream.for_nccl(), sys::ncclRedOp_t::ncclSum);
        let (source, target) = (from.pointer.cast_const(), to.pointer);
        // Only summed elements have a type.
        let (byte, bytes) = (sys::ncclDataType_t::ncclUint8, from.bytes);
        let elements = || element(dtype).map(|(kind, width)| (kind, bytes / width));
        let needed = match collective {
            FlatCollective::AllGather => bytes * members,
            FlatCollective::ReduceScatter => bytes / members,
            _ => bytes,
        };
        if to.bytes < needed {
            return Err(NcclError::Memory {
                error: format!("{needed} bytes are written, but the memory has {}", to.bytes),
            });
        }
        // SAFETY: the caller's promise; both have the bytes that are read and written. Communicator and stream are
        // alive.
        unsafe {
            match collective {
                FlatCollective::AllReduce => {
                    let (kind, count) = elements()?;
                    call(sys::ncclAllReduce(source, target, count, kind, sum, handle, queue))
                }
                FlatCollective::ReduceScatter => {
                    let (kind, count) = elements()?;
                    call(sys::ncclReduceScatter(source, target, count / members, kind, sum, handle, queue))
                }
                FlatCollective::Reduce { root } => {
                    let (kind, count) = elements()?;
                    call(sys::ncclReduce(source, target, count, kind, sum, root as c_int, handle, queue))
                }
                FlatCollective::AllGather => call(sys::ncclAllGather(source, target, bytes, byte, handle, queue)),
                FlatCollective::Broadcast { root } => {
                    call(sys::ncclBroadcast(source, target, bytes, byte, root as c_int, handle, queue))
                }
                FlatCollective::AllToAll => (0..members).filter(|_| bytes > 0).try_for_each(|member| {
                    let (each, peer) = (bytes / members, member as c_int);
                    let (source, target) = (source.byte_add(member * each), target.byte_add(member * each));
                    call(sys::ncclSend(source, each, byte, peer, handle, queue))?;
                    call(sys::ncclRecv(target, each, byte, peer, handle, queue))
                }),
            }
        }
    }

    /// Runs calls as one group, which ends even if one of them fails.
    fn group(
        &self,
        what: &'static str,
        body: impl FnOnce(&dyn Fn(sys::ncclResult_t) -> Result<(), NcclError>) -> Result<(), NcclError>,
    ) -> Result<(), NcclError> {
        let check = |status: sys::ncclResult_t| status.result().map(drop).map_err(|error| failed(what, error.0));
        result::group_start().map_err(|error| failed(what, error.0))?;
        let done = body(&check);
        let ended = result::group_end().map(drop).map_err(|error| failed(what, error.0));
        done.and(ended)
    }

    /// Returns true if the last call has done its work on the host.
    pub(crate) fn is_settled(&self, what: &'static str) -> Result<bool, NcclError> {
        let mut state = sys::ncclResult_t::ncclSuccess;
        // SAFETY: the communicator is alive, and the state is written before the call returns.
        let asked = unsafe { sys::ncclCommGetAsyncError(self.handle, &mut state) };
        asked.result().map_err(|error| failed(what, error.0))?;
        match state {
            sys::ncclResult_t::ncclSuccess => Ok(true),
            sys::ncclResult_t::ncclInProgress => Ok(false),
            error => Err(failed(what, error)),
        }
    }

    /// Polls until the last call has done its work on the host.
    pub(crate) fn settle(&self, what: &'static str, deadline: Instant, stop: Stop<'_>) -> Result<(), NcclError> {
        self.settle_until(what, deadline, stop, || Ok(true))
    }

    /// Polls until the last call has done its work on the host, and `done` returns true.
    pub(crate) fn settle_until(
        &self,
        what: &'static str,
        deadline: Instant,
        stop: Stop<'_>,
        done: impl Fn() -> Result<bool, NcclError>,
    ) -> Result<(), NcclError> {
        while !(self.is_settled(what)? && done()?) {
            if let Some(reason) = stop() {
                return Err(NcclError::Stopped { what, reason });
            }
            if Instant::now() >= deadline {
                return Err(NcclError::Timeout { what });
            }
            std::thread::sleep(PAUSE);
        }
        Ok(())
    }

    /// Begins to end the communicator, together with its other ranks. Returns false if it cannot.
    pub(crate) fn finalize(&self) -> bool {
        // SAFETY: the communicator is alive.
        unsafe { sys::ncclCommFinalize(self.handle).result() }.is_ok()
    }

    /// Ends the communicator after [`Communicator::finalize`]. If the other ranks do not do so before the deadline,
    /// or `stop` returns a reason, it is aborted.
    pub(crate) fn close(self, deadline: Instant, stop: Stop<'_>) {
        if self.settle("closing a communicator", deadline, stop).is_ok() {
            // SAFETY: it is finalised, nothing uses it any more, and it is not dropped as well.
            let _ = unsafe { sys::ncclCommDestroy(self.handle) };
            std::mem::forget(self);
        }
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        if !self.handle.is_null() {
            // SAFETY: the communicator is alive, nothing uses it any more, and no thread is inside one of its
            // calls. The call ends queued work.
            let _ = unsafe { sys::ncclCommAbort(self.handle) };
        }
    }
}

/// NCCL's type for adding elements, and its size in bytes.
fn element(dtype: DType) -> Result<(sys::ncclDataType_t, usize), NcclError> {
    let kind = match dtype {
        DType::F64 => sys::ncclDataType_t::ncclFloat64,
        DType::F32 | DType::Flex32 => sys::ncclDataType_t::ncclFloat32,
        DType::F16 => sys::ncclDataType_t::ncclFloat16,
        DType::BF16 => sys::ncclDataType_t::ncclBfloat16,
        DType::I64 => sys::ncclDataType_t::ncclInt64,
        DType::I32 => sys::ncclDataType_t::ncclInt32,
        DType::I8 => sys::ncclDataType_t::ncclInt8,
        DType::U64 => sys::ncclDataType_t::ncclUint64,
        DType::U32 => sys::ncclDataType_t::ncclUint32,
        DType::U8 => sys::ncclDataType_t::ncclUint8,
        dtype => return Err(NcclError::Elements { dtype }),
    };
    Ok((kind, dtype.size()))
}

fn failed(what: &'static str, status: sys::ncclResult_t) -> NcclError {
    // SAFETY: both return a text that the library keeps, or null; the second ignores the communicator.
    let texts = unsafe { [sys::ncclGetErrorString(status), sys::ncclGetLastError(null_mut())] };
    let texts = texts.map(|text| match text.is_null() {
        true => String::new(),
        // SAFETY: it is a text that ends with a zero, and is not changed while it is read.
        false => unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned(),
    });
    NcclError::Failed { what, error: texts.join(": ").trim_end_matches([':', ' ']).to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_that_nccl_cannot_add_are_refused() {
        assert_eq!(element(DType::BF16).unwrap(), (sys::ncclDataType_t::ncclBfloat16, 2));
        for dtype in [DType::I16, DType::U16, DType::Bool(burn::tensor::BoolStore::U8)] {
            assert!(matches!(element(dtype), Err(NcclError::Elements { .. })));
        }
    }
}
