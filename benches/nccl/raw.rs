//! `ncclSend` and `ncclRecv` themselves: the same bytes to the other rank and back, in one stream.

use crate::samples::{SIZES, Samples};
use crate::{TIMEOUT, count};
use burn::tensor::Device;
use burn_pipeline::link::{Launch, Link, TcpLink};
use cudarc::driver::sys::CUstream;
use cudarc::driver::{CudaContext, result as driver};
use cudarc::nccl::result as calls;
use cudarc::nccl::sys::{self as nccl, ncclComm_t, ncclDataType_t, ncclResult_t};
use std::ffi::c_int;
use std::ptr::null_mut;
use std::sync::Arc;
use std::time::Instant;

const WARM_UP: usize = 3;

/// The number of GPUs that this process sees.
pub(crate) fn gpus() -> usize {
    // SAFETY: it loads the driver's library, if there is one.
    let there = unsafe { cudarc::driver::sys::is_culib_present() };
    if there { CudaContext::device_count().map_or(0, |count| count as usize) } else { 0 }
}

/// The first fields of `ncclConfig_t`, as of NCCL 2.18.
#[repr(C)]
struct Config(usize, u32, u32, c_int, [c_int; 3], usize, c_int);

/// One of two ranks.
struct Pair {
    communicator: ncclComm_t,
    stream: CUstream,
    other: c_int,
    _context: Arc<CudaContext>,
}

impl Pair {
    fn join(launch: &Launch) -> Self {
        let context = CudaContext::new(launch.local_rank % gpus()).unwrap();
        let mut link = TcpLink::connect(&launch.rendezvous().unwrap(), Device::flex(), TIMEOUT).unwrap();
        let own = if launch.rank == 0 {
            calls::get_uniqueid().unwrap().internal.map(|byte| byte as u8).to_vec()
        } else {
            vec![]
        };
        let ids = link.all_gather(own, Instant::now() + TIMEOUT).unwrap();
        let internal: [u8; 128] = ids[0].as_slice().try_into().unwrap();
        let id = nccl::ncclUniqueId { internal: internal.map(|byte| byte as _) };
        let mut config = Config(size_of::<Config>(), 0xcafe_beef, 21800, 0, [i32::MIN; 3], 0, i32::MIN);
        let (mut communicator, rank) = (null_mut(), launch.rank as c_int);
        // SAFETY: both pointers are valid, and the configuration is read before the call returns.
        let joined = unsafe { nccl::ncclCommInitRankConfig(&mut communicator, 2, id, rank, (&raw mut config).cast()) };
        assert!(matches!(joined, ncclResult_t::ncclSuccess | ncclResult_t::ncclInProgress), "{joined:?}");
        let stream = driver::stream::create(driver::stream::StreamKind::NonBlocking).unwrap();
        let pair = Self { communicator, stream, other: 1 - rank, _context: context };
        pair.settle();
        link.barrier(Instant::now() + TIMEOUT).unwrap();
        pair
    }

    /// Waits until the last call has done its work on the host.
    fn settle(&self) {
        let mut state = ncclResult_t::ncclInProgress;
        while state == ncclResult_t::ncclInProgress {
            // SAFETY: the communicator is alive.
            let asked = unsafe { nccl::ncclCommGetAsyncError(self.communicator, &mut state) };
            assert_eq!(asked, ncclResult_t::ncclSuccess);
        }
        assert_eq!(state, ncclResult_t::ncclSuccess);
    }

    fn send(&self, memory: u64, bytes: usize) {
        let (kind, stream) = (ncclDataType_t::ncclUint8, self.stream.cast());
        // SAFETY: the memory is that long, and is freed after a wait for the stream.
        unsafe { nccl::ncclSend(memory as *const _, bytes, kind, self.other, self.communicator, stream) };
        self.settle();
    }

    fn receive(&self, memory: u64, bytes: usize) {
        let (kind, stream) = (ncclDataType_t::ncclUint8, self.stream.cast());
        // SAFETY: as in `send`.
        unsafe { nccl::ncclRecv(memory as *mut _, bytes, kind, self.other, self.communicator, stream) };
        self.settle();
    }

    /// Half of each round trip, in seconds.
    fn there_and_back(&self, rank: usize, size: usize) -> Vec<f64> {
        // SAFETY: the context is current.
        let memory = unsafe { driver::malloc_sync(size) }.unwrap();
        let mut seconds = Vec::new();
        for round in 0..count(size) + WARM_UP {
            let began = Instant::now();
            if rank == 0 {
                self.send(memory, size);
                self.receive(memory, size);
            } else {
                self.receive(memory, size);
                self.send(memory, size);
            }
            // SAFETY: the stream is alive.
            unsafe { driver::stream::synchronize(self.stream) }.unwrap();
            if round >= WARM_UP {
                seconds.push(began.elapsed().as_secs_f64() / 2.0);
            }
        }
        // SAFETY: nothing uses it any more.
        unsafe { driver::free_sync(memory) }.unwrap();
        seconds
    }
}

/// Rank 0 prints its measurements of all sizes.
pub(crate) fn hops(launch: &Launch) {
    let pair = Pair::join(launch);
    let mut samples = Samples::default();
    for size in SIZES {
        samples.add("raw NCCL", size, &pair.there_and_back(launch.rank, size));
    }
    if launch.rank == 0 {
        print!("{}", samples.write());
    }
    // SAFETY: all ranks have received everything.
    unsafe { nccl::ncclCommAbort(pair.communicator) };
}
