//! A GPU of this process, with streams and events: the few calls to CUDA's driver that a link needs.
//!
//! CubeCL exposes neither its streams nor its events, so nothing here touches them. `order.rs` orders work in its
//! queues and in the link's.

use super::error::NcclError;
use super::tensors::{Area, Pinned};
use cudarc::driver::{CudaContext, DriverError, result, sys};
use std::sync::Arc;

/// A GPU, through its primary context, which CubeCL uses too.
#[derive(Debug, Clone)]
pub(crate) struct Gpu {
    context: Arc<CudaContext>,
}

/// The signature of `cuCtxWaitEvent`.
type WaitOnContext = unsafe extern "C" fn(sys::CUcontext, sys::CUevent) -> sys::CUresult;

impl Gpu {
    /// The number of GPUs that this process sees.
    pub(crate) fn count() -> Result<usize, NcclError> {
        // SAFETY: as in `open`.
        if !unsafe { sys::is_culib_present() } {
            return Err(NcclError::NoDriver);
        }
        let count = result::init().and_then(|()| CudaContext::device_count());
        Ok(count.map_err(failed("GPUs cannot be counted"))? as usize)
    }

    /// Opens the driver and the GPU, for the calling thread.
    pub(crate) fn open(index: usize) -> Result<Self, NcclError> {
        // SAFETY: it loads the driver's library, if there is one; CubeCL loads the same one.
        if !unsafe { sys::is_culib_present() } {
            return Err(NcclError::NoDriver);
        }
        let context = CudaContext::new(index).map_err(failed("the GPU cannot be opened"))?;
        let gpu = Self { context };
        gpu.bind()?;
        Ok(gpu)
    }

    /// Binds the GPU to the calling thread.
    pub(crate) fn bind(&self) -> Result<(), NcclError> {
        self.context.bind_to_thread().map_err(failed("the GPU cannot be bound to a thread"))
    }

    /// Returns true if the driver has events over a whole context (CUDA 12.5 or newer).
    pub(crate) fn has_context_events() -> bool {
        wait_on_context().is_some()
    }

    /// Makes all work that this process gives to the GPU from now on, in any queue, wait for an event.
    pub(crate) fn wait_before_all(&self, event: &Event) -> Result<(), NcclError> {
        let call = wait_on_context().ok_or(NcclError::NoContextEvents)?;
        // SAFETY: the function has this signature since CUDA 12.5, the first version that has it; the context lives
        // as long as `self`, the event as long as `event`, and the driver keeps what it needs of either.
        let done = unsafe { call(self.context.cu_ctx(), event.event) };
        done.result().map_err(failed("an event over the context failed"))
    }
}

/// The driver's `cuCtxWaitEvent`; `None` if the driver is older. cudarc has it only if built for a newer CUDA.
fn wait_on_context() -> Option<WaitOnContext> {
    // SAFETY: the driver is loaded (there is a `Gpu`, or the caller has checked for the driver before opening one),
    // stays loaded as long as the process lives, and its function of this name has this signature.
    unsafe {
        let of = || sys::culib().get::<WaitOnContext>(b"cuCtxWaitEvent\0").ok().map(|found| *found);
        sys::is_culib_present().then(of).flatten()
    }
}

fn failed(what: &'static str) -> impl Fn(DriverError) -> NcclError {
    move |error| NcclError::Driver { what, error: format!("{error:?}") }
}

/// A queue on a GPU, separate from those for computing.
#[derive(Debug)]
pub(crate) struct Stream {
    stream: sys::CUstream,
    /// Keeps the context alive.
    _gpu: Gpu,
}

// SAFETY: a stream's handle may be used from any thread whose context is the stream's; `Gpu::bind` ensures that.
unsafe impl Send for Stream {}

impl Stream {
    /// A stream of the default priority, or of the highest one.
    pub(crate) fn new(gpu: &Gpu, high_priority: bool) -> Result<Self, NcclError> {
        let (mut lowest, mut highest, mut stream) = (0, 0, std::ptr::null_mut());
        let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: the context is bound to this thread, and all are written before the calls return.
        let made = unsafe {
            let range = sys::cuCtxGetStreamPriorityRange(&mut lowest, &mut highest).result();
            let priority = if high_priority { highest } else { 0 };
            range.and_then(|()| sys::cuStreamCreateWithPriority(&mut stream, flags, priority).result())
        };
        made.map_err(failed("a stream cannot be made"))?;
        Ok(Self { stream, _gpu: gpu.clone() })
    }

    /// The stream as NCCL's type.
    pub(crate) fn for_nccl(&self) -> cudarc::nccl::sys::cudaStream_t {
        self.stream.cast()
    }

    /// Makes work that is queued from now on wait until a counter in the GPU's memory has reached a value.
    pub(crate) fn wait_for_value(&self, counter: &Pinned, value: u32) -> Result<(), NcclError> {
        let at_least = sys::CUstreamWaitValue_flags::CU_STREAM_WAIT_VALUE_GEQ as u32;
        // SAFETY: the stream is alive, and the counter's memory stays pinned as long as the link's thread lives.
        let done = unsafe {
            sys::cuStreamWaitValue32_v2(self.stream, counter.area().pointer as sys::CUdeviceptr, value, at_least)
        };
        done.result().map_err(failed("a stream cannot wait for a value"))
    }

    /// Fills memory with zeros, in the order of the queue.
    ///
    /// # Safety
    /// The memory stays pinned until an event after this has completed, even if this fails, and nothing else uses
    /// it until then.
    pub(crate) unsafe fn clear(&self, Area { pointer, bytes }: Area) -> Result<(), NcclError> {
        let address = pointer as sys::CUdeviceptr;
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: by the caller's promise the memory stays pinned while it is used; it has that many bytes. The
        // stream is alive.
        unsafe { result::memset_d8_async(address, 0, bytes, self.stream) }.map_err(failed("memory cannot be cleared"))
    }

    /// Returns true if everything in the queue has ended. A queue that failed runs nothing more.
    pub(crate) fn is_empty(&self) -> bool {
        // SAFETY: the handle is alive.
        let asked = unsafe { sys::cuStreamQuery(self.stream) };
        asked != sys::CUresult::CUDA_ERROR_NOT_READY
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: the handle is alive, and nothing uses it any more; the driver lets queued work end first.
        let _ = unsafe { result::stream::destroy(self.stream) };
    }
}

/// An event in a queue.
#[derive(Debug)]
pub(crate) struct Event {
    event: sys::CUevent,
    /// Keeps the context alive.
    _gpu: Gpu,
}

// SAFETY: an event's handle may be used from any thread.
unsafe impl Send for Event {}
// SAFETY: as above; the driver's calls on events are thread-safe.
unsafe impl Sync for Event {}

impl Event {
    pub(crate) fn new(gpu: &Gpu) -> Result<Self, NcclError> {
        let event = result::event::create(sys::CUevent_flags::CU_EVENT_DISABLE_TIMING);
        Ok(Self { event: event.map_err(failed("an event cannot be made"))?, _gpu: gpu.clone() })
    }

    /// Records the event after the current content of a queue.
    pub(crate) fn record(&self, stream: &Stream) -> Result<(), NcclError> {
        // SAFETY: both handles are alive.
        unsafe { result::event::record(self.event, stream.stream) }.map_err(failed("an event cannot be recorded"))
    }

    /// Returns true if everything before the event has ended.
    pub(crate) fn is_complete(&self) -> Result<bool, NcclError> {
        // SAFETY: the handle is alive.
        match unsafe { result::event::query(self.event) } {
            Ok(()) => Ok(true),
            Err(error) if error.0 == sys::CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            Err(error) => Err(failed("the queue of transfers failed")(error)),
        }
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: the handle is alive, and nothing uses it any more; the driver keeps an event that something waits
        // for.
        let _ = unsafe { result::event::destroy(self.event) };
    }
}
