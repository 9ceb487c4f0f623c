//! A rank that calls CUDA's driver and NCCL directly.

use cudarc::driver::sys::{CUevent, CUevent_flags, CUstream};
use cudarc::driver::{CudaContext, result as driver};
use cudarc::nccl::sys::{self as nccl, ncclComm_t, ncclDataType_t, ncclResult_t};
use std::ptr::null_mut;
use std::sync::Arc;

/// The bytes of a block of memory.
pub(super) const BYTES: usize = 4096;

/// A rank, its communicator and two streams.
pub(super) struct Rank {
    pub(super) rank: i32,
    pub(super) communicator: ncclComm_t,
    pub(super) compute: CUstream,
    pub(super) transfers: CUstream,
    _context: Arc<CudaContext>,
}

/// The first fields of `ncclConfig_t`.
#[repr(C)]
struct Config(usize, u32, u32, i32, [i32; 3], usize, i32);

impl Rank {
    pub(super) fn new() -> Self {
        let number = |name: &str| std::env::var(name).unwrap().parse::<i32>().unwrap();
        let (rank, ranks) = (number("RANK"), number("WORLD_SIZE"));
        let context = CudaContext::new(0).unwrap();
        let stream = || driver::stream::create(driver::stream::StreamKind::NonBlocking).unwrap();
        let mut config = Config(size_of::<Config>(), 0xcafe_beef, 21800, 0, [i32::MIN; 3], 0, i32::MIN);
        let (id, mut communicator) = (nccl::ncclUniqueId { internal: [7; 128] }, null_mut());
        // SAFETY: both pointers are valid, and the configuration is that of NCCL 2.18.
        let joined =
            unsafe { nccl::ncclCommInitRankConfig(&mut communicator, ranks, id, rank, (&raw mut config).cast()) };
        assert_eq!(joined, ncclResult_t::ncclSuccess);
        let rank = Self { rank, communicator, compute: stream(), transfers: stream(), _context: context };
        rank.settle();
        rank
    }

    pub(super) fn other(&self) -> i32 {
        1 - self.rank
    }

    pub(super) fn memory(&self) -> u64 {
        // SAFETY: the context is current.
        unsafe { driver::malloc_sync(BYTES) }.unwrap()
    }

    /// Memory for the computing stream's later jobs.
    pub(super) fn ordered_memory(&self) -> u64 {
        // SAFETY: the stream is alive.
        unsafe { driver::malloc_async(self.compute, BYTES) }.unwrap()
    }

    pub(super) fn free_in(&self, stream: CUstream, memory: u64) {
        // SAFETY: the stream is alive, and the memory is not used any more, unless the test breaks this rule.
        unsafe { driver::free_async(memory, stream) }.unwrap();
    }

    pub(super) fn write(&self, to: u64, stream: CUstream) {
        // SAFETY: the memory is that long, unless the test breaks this rule.
        unsafe { driver::memcpy_htod_async(to, &[3_u8; BYTES], stream) }.unwrap();
    }

    pub(super) fn settle(&self) {
        let mut state = ncclResult_t::ncclInProgress;
        while state == ncclResult_t::ncclInProgress {
            // SAFETY: the communicator is alive.
            let asked = unsafe { nccl::ncclCommGetAsyncError(self.communicator, &mut state) };
            assert_eq!(asked, ncclResult_t::ncclSuccess);
        }
        assert_eq!(state, ncclResult_t::ncclSuccess);
    }

    pub(super) fn send(&self, memory: u64, bytes: usize) {
        let kind = ncclDataType_t::ncclUint8;
        // SAFETY: memory, communicator and stream are valid, unless the test breaks this rule.
        let sent = unsafe {
            nccl::ncclSend(memory as *const _, bytes, kind, self.other(), self.communicator, self.transfers.cast())
        };
        assert_eq!(sent, ncclResult_t::ncclSuccess);
    }

    pub(super) fn receive(&self, memory: u64, count: usize, kind: ncclDataType_t) {
        // SAFETY: as above.
        let received = unsafe {
            nccl::ncclRecv(memory as *mut _, count, kind, self.other(), self.communicator, self.transfers.cast())
        };
        assert_eq!(received, ncclResult_t::ncclSuccess);
    }

    pub(super) fn group(&self, body: impl FnOnce()) {
        // SAFETY: a group is ended by the thread that starts it.
        unsafe { nccl::ncclGroupStart() };
        body();
        // SAFETY: as above.
        unsafe { nccl::ncclGroupEnd() };
    }

    pub(super) fn event(&self, behind: CUstream) -> CUevent {
        let event = driver::event::create(CUevent_flags::CU_EVENT_DISABLE_TIMING).unwrap();
        // SAFETY: both are alive.
        unsafe { driver::event::record(event, behind) }.unwrap();
        event
    }

    pub(super) fn wait(&self, stream: CUstream, event: CUevent) {
        // SAFETY: both are alive.
        unsafe {
            driver::stream::wait_event(stream, event, cudarc::driver::sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT)
        }
        .unwrap();
    }

    /// Writes a counter in the computing stream, and makes the other stream wait for its value. The counter's memory
    /// is that of the other stream's last job, which comes before.
    pub(super) fn wait_for_value(&self, memory: u64) {
        self.wait(self.compute, self.event(self.transfers));
        // SAFETY: memory and streams are alive.
        unsafe {
            driver::memcpy_htod_async(memory, &7_u32.to_ne_bytes(), self.compute).unwrap();
            let waits = cudarc::driver::sys::cuStreamWaitValue32_v2(self.transfers, memory, 7, 0);
            assert_eq!(waits, cudarc::driver::sys::CUresult::CUDA_SUCCESS);
        }
    }

    pub(super) fn finish(&self, stream: CUstream) {
        // SAFETY: it is alive.
        unsafe { driver::stream::synchronize(stream) }.unwrap();
    }

    /// Rank 0 sends memory to rank 1, in order. Returns the address that receives it.
    pub(super) fn transfer(&self) -> u64 {
        let memory = self.memory();
        match self.rank {
            0 => {
                self.write(memory, self.compute);
                self.wait(self.transfers, self.event(self.compute));
                self.send(memory, BYTES);
            }
            _ => self.receive(memory, BYTES, ncclDataType_t::ncclUint8),
        }
        memory
    }
}
