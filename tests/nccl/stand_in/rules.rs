//! The mock ends a process that breaks a rule, and names the rule, for each of its checks. The same calls in order
//! pass.

use super::start;
use cudarc::driver::sys::{CUevent, CUevent_flags, CUstream};
use cudarc::driver::{CudaContext, result as driver};
use cudarc::nccl::sys::{self as nccl, ncclComm_t, ncclDataType_t, ncclResult_t};
use std::ptr::null_mut;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The bytes of a block of memory.
pub(super) const BYTES: usize = 4096;

/// A rank that calls both libraries directly.
pub(super) struct Rank {
    pub(super) rank: i32,
    communicator: ncclComm_t,
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

    fn other(&self) -> i32 {
        1 - self.rank
    }

    pub(super) fn memory(&self) -> u64 {
        // SAFETY: the context is current.
        unsafe { driver::malloc_sync(BYTES) }.unwrap()
    }

    fn write(&self, to: u64, stream: CUstream) {
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

    fn group(&self, body: impl FnOnce()) {
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

    pub(super) fn finish(&self, stream: CUstream) {
        // SAFETY: it is alive.
        unsafe { driver::stream::synchronize(stream) }.unwrap();
    }

    /// Rank 0 sends memory to rank 1, in order. Returns the address that receives it.
    fn transfer(&self) -> u64 {
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

/// Breaks the rule of that name in a rank's process. Returns false if there is none.
pub(super) fn part(name: &str) -> bool {
    let bytes = ncclDataType_t::ncclUint8;
    let rank = Rank::new();
    let memory = rank.memory();
    match name {
        "order" => keeps_order(&rank),
        "count" if rank.rank == 0 => rank.send(memory, BYTES),
        "count" => rank.receive(memory, BYTES - 1, bytes),
        "type" if rank.rank == 0 => rank.send(memory, BYTES / 4),
        "type" => rank.receive(memory, BYTES / 4, ncclDataType_t::ncclInt32),
        "circle" => {
            rank.send(memory, BYTES);
            rank.settle();
            rank.receive(rank.memory(), BYTES, bytes);
        }
        "sent too early" => {
            rank.write(memory, rank.compute);
            rank.send(memory, BYTES);
        }
        "used too early" => {
            let got = rank.transfer();
            rank.settle();
            rank.write(got, rank.compute);
        }
        "freed" => {
            let used = rank.transfer();
            rank.settle();
            // SAFETY: none; this breaks the rule.
            unsafe { driver::free_sync(used) }.unwrap();
        }
        "beyond" => rank.send(memory + 1, BYTES),
        "recorded too early" => {
            rank.transfer();
            rank.event(rank.transfers);
        }
        "called too early" => {
            rank.transfer();
            // No stream is used in between: that would break another rule.
            match rank.rank {
                0 => rank.send(memory, BYTES),
                _ => rank.receive(memory, BYTES, bytes),
            }
        }
        "overlap" => rank.group(|| {
            rank.send(memory, BYTES);
            rank.receive(memory, BYTES, bytes);
        }),
        "itself" => rank.group(|| {
            // SAFETY: the arguments are valid.
            unsafe {
                nccl::ncclSend(memory as *const _, BYTES, bytes, rank.rank, rank.communicator, rank.transfers.cast())
            };
        }),
        "destroyed" => {
            // SAFETY: the communicator is alive.
            unsafe { nccl::ncclCommDestroy(rank.communicator) };
        }
        _ => return false,
    }
    rank.settle();
    rank.finish(rank.transfers);
    true
}

/// The calls of the rules below, in order.
fn keeps_order(rank: &Rank) {
    for _ in 0..3 {
        let got = rank.transfer();
        rank.settle();
        let there = rank.memory();
        rank.group(|| {
            rank.send(got, BYTES);
            rank.receive(there, BYTES, ncclDataType_t::ncclUint8);
        });
        rank.settle();
        rank.wait(rank.compute, rank.event(rank.transfers));
        let mut read = [0_u8; BYTES];
        // SAFETY: the memory is that long, and the host waits before it reads.
        unsafe { driver::memcpy_dtoh_async(&mut read, there, rank.compute) }.unwrap();
        rank.finish(rank.compute);
        assert_eq!(read, [3; BYTES]);
        // SAFETY: the host has seen that nothing uses it any more.
        unsafe { driver::free_sync(got).and(driver::free_sync(there)) }.unwrap();
    }
    // SAFETY: nothing uses the communicator while it ends.
    unsafe { nccl::ncclCommFinalize(rank.communicator) };
    rank.settle();
    // SAFETY: as above.
    unsafe { nccl::ncclCommDestroy(rank.communicator) };
    std::process::exit(0);
}

#[test]
fn calls_in_order_pass() {
    start(2, "order", &[]).all_pass();
}

#[test]
fn a_process_that_breaks_a_rule_ends_with_its_name() {
    for (part, rule) in [
        ("count", "both ends of a transfer name the same count and type"),
        ("type", "both ends of a transfer name the same count and type"),
        ("circle", "queues do not wait for each other: rank 0 waits for [1], rank 1 waits for [0]"),
        ("sent too early", "memory is used before its event: a send"),
        ("used too early", "memory is used before its event: a copy from the host"),
        ("freed", "memory is freed while in flight"),
        ("beyond", "memory is not allocated"),
        ("recorded too early", "a group is not in the queue yet"),
        ("called too early", "a communicator has not settled"),
        ("overlap", "calls of one group use memory of their own"),
        ("itself", "a rank receives what it sends to itself"),
        ("destroyed", "a communicator is destroyed after it was finalised"),
    ] {
        let began = Instant::now();
        // The peer of a process that has ended waits for it, as over NCCL.
        let ended = start(2, part, &[]).end_with_the_first(Duration::from_secs(20));
        assert!(ended.contains(&format!("broken rule: {rule}")), "{part}: {ended}");
        println!("{part}: {:?}", began.elapsed());
    }
}
