//! NCCL's functions, by their names.

use crate::calls;
use crate::communicator::{Communicator, SUCCESS, alive};
use crate::group::{self, Call, Elements, SIZES};
use crate::room::RANKS;
use crate::sums::Joint;
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::fs::File;
use std::io::Read;

type Handle = *mut c_void;
type Status = c_int;

const INVALID_ARGUMENT: Status = 4;
/// 2.28.9.
const VERSION: c_int = 22809;

/// NCCL's `ncclUniqueId`.
#[repr(C)]
pub struct Id([u8; 128]);

/// The first fields of NCCL's `ncclConfig_t`.
#[repr(C)]
pub struct Config {
    size: usize,
    magic: c_uint,
    version: c_uint,
    blocking: c_int,
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ncclGetVersion(version: *mut c_int) -> Status {
    // SAFETY: the function's contract, here and below: pointers are valid for what is read or written.
    unsafe { version.write(VERSION) };
    SUCCESS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ncclGetUniqueId(id: *mut Id) -> Status {
    let mut bytes = [0; 128];
    File::open("/dev/urandom").unwrap().read_exact(&mut bytes[..16]).unwrap();
    // SAFETY: as above.
    unsafe { id.write(Id(bytes)) };
    SUCCESS
}

/// Returns true for communicators that do not block, the only ones supported.
unsafe fn is_served(config: *const Config) -> bool {
    // SAFETY: as above.
    let config = unsafe { &*config };
    config.magic == 0xcafe_beef && config.size >= size_of::<Config>() && config.version >= 21800 && config.blocking == 0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ncclCommInitRankConfig(
    place: *mut Handle,
    ranks: c_int,
    id: Id,
    rank: c_int,
    config: *mut Config,
) -> Status {
    let (ranks, rank) = (ranks as usize, rank as usize);
    // SAFETY: as above.
    if rank >= ranks || ranks > RANKS || !unsafe { is_served(config) } {
        return INVALID_ARGUMENT;
    }
    let name: String = id.0[..16].iter().map(|byte| format!("{byte:02x}")).collect();
    let communicator = Communicator::join(name, rank, None, (0..ranks).collect());
    // SAFETY: as above.
    unsafe { place.write(communicator.handle as Handle) };
    SUCCESS
}

/// The new handle is written once all have called, as in NCCL.
#[unsafe(no_mangle)]
unsafe extern "C" fn ncclCommSplit(
    parent: Handle,
    color: c_int,
    key: c_int,
    place: *mut Handle,
    config: *mut Config,
) -> Status {
    // SAFETY: as above.
    if !unsafe { is_served(config) } {
        return INVALID_ARGUMENT;
    }
    let place = place as usize;
    alive(parent as usize).split(color, key, move |made| {
        let handle = made.map_or(0, |made| made.handle);
        // SAFETY: as above, until the parent has settled.
        unsafe { (place as *mut Handle).write(handle as Handle) };
    });
    SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn ncclGroupStart() -> Status {
    group::start();
    SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn ncclGroupEnd() -> Status {
    group::end();
    SUCCESS
}

fn call(communicator: Handle, stream: Handle, kind: c_uint, peer: c_int, call: impl FnOnce(usize) -> Call) -> Status {
    let communicator = alive(communicator as usize);
    let peer = peer as usize;
    if peer >= communicator.world.len() || kind as usize >= SIZES.len() {
        return INVALID_ARGUMENT;
    }
    group::call(communicator, stream as usize, call(peer));
    SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn ncclSend(
    memory: *const c_void,
    count: usize,
    kind: c_uint,
    peer: c_int,
    communicator: Handle,
    stream: Handle,
) -> Status {
    let elements = Elements { address: memory as u64, count, kind };
    call(communicator, stream, kind, peer, |to| Call::Send { to, elements })
}

#[unsafe(no_mangle)]
extern "C" fn ncclRecv(
    memory: *mut c_void,
    count: usize,
    kind: c_uint,
    peer: c_int,
    communicator: Handle,
    stream: Handle,
) -> Status {
    let elements = Elements { address: memory as u64, count, kind };
    call(communicator, stream, kind, peer, |from| Call::Receive { from, elements })
}

#[unsafe(no_mangle)]
extern "C" fn ncclAllReduce(
    from: *const c_void,
    to: *mut c_void,
    count: usize,
    kind: c_uint,
    operation: c_uint,
    communicator: Handle,
    stream: Handle,
) -> Status {
    if operation != 0 {
        return INVALID_ARGUMENT;
    }
    joint("all-reduce", Joint::Sum, Elements { address: from as u64, count, kind }, to, communicator, stream)
}

/// Starts a collective, and records it for tests that count.
fn joint(name: &str, joint: Joint, from: Elements, to: *mut c_void, communicator: Handle, stream: Handle) -> Status {
    let root = match joint {
        Joint::Broadcast(root) | Joint::SumFor(root) => root,
        _ => 0,
    };
    calls::note(name);
    call(communicator, stream, from.kind, root as c_int, |_| Call::Joint { joint, from, to: to as u64 })
}

#[unsafe(no_mangle)]
extern "C" fn ncclAllGather(
    from: *const c_void,
    to: *mut c_void,
    count: usize,
    kind: c_uint,
    communicator: Handle,
    stream: Handle,
) -> Status {
    joint("all-gather", Joint::Gather, Elements { address: from as u64, count, kind }, to, communicator, stream)
}

#[unsafe(no_mangle)]
extern "C" fn ncclReduceScatter(
    from: *const c_void,
    to: *mut c_void,
    count: usize,
    kind: c_uint,
    operation: c_uint,
    communicator: Handle,
    stream: Handle,
) -> Status {
    if operation != 0 {
        return INVALID_ARGUMENT;
    }
    let count = count * alive(communicator as usize).world.len();
    joint("reduce-scatter", Joint::SumOfParts, Elements { address: from as u64, count, kind }, to, communicator, stream)
}

#[unsafe(no_mangle)]
extern "C" fn ncclBroadcast(
    from: *const c_void,
    to: *mut c_void,
    count: usize,
    kind: c_uint,
    root: c_int,
    communicator: Handle,
    stream: Handle,
) -> Status {
    let from = Elements { address: from as u64, count, kind };
    joint("broadcast", Joint::Broadcast(root as usize), from, to, communicator, stream)
}

#[unsafe(no_mangle)]
extern "C" fn ncclReduce(
    from: *const c_void,
    to: *mut c_void,
    count: usize,
    kind: c_uint,
    operation: c_uint,
    root: c_int,
    communicator: Handle,
    stream: Handle,
) -> Status {
    if operation != 0 {
        return INVALID_ARGUMENT;
    }
    let from = Elements { address: from as u64, count, kind };
    joint("reduce", Joint::SumFor(root as usize), from, to, communicator, stream)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ncclCommGetAsyncError(communicator: Handle, state: *mut Status) -> Status {
    // SAFETY: as above.
    unsafe { state.write(alive(communicator as usize).poll()) };
    SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn ncclCommFinalize(communicator: Handle) -> Status {
    alive(communicator as usize).finalize();
    SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn ncclCommDestroy(communicator: Handle) -> Status {
    alive(communicator as usize).destroy();
    SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn ncclCommAbort(communicator: Handle) -> Status {
    alive(communicator as usize).abort();
    SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn ncclGetErrorString(status: Status) -> *const c_char {
    let text = match status {
        2 => c"unhandled system error",
        4 => c"invalid argument",
        7 => c"in progress",
        _ => c"another error",
    };
    text.as_ptr()
}

#[unsafe(no_mangle)]
extern "C" fn ncclGetLastError(_communicator: Handle) -> *const c_char {
    c"".as_ptr()
}
