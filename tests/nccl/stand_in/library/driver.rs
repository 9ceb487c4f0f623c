//! The driver's functions, by their names; those for memory are in `allocation.rs`, those for kernels in `modules.rs`.

use crate::calls;
use crate::order::Use;
use crate::queue::{device, launches};
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

pub type Handle = *mut c_void;
pub type Status = c_int;

pub const SUCCESS: Status = 0;
pub const OUT_OF_MEMORY: Status = 2;
const NOT_READY: Status = 600;

/// The bytes of memory that the device reports.
const TOTAL: usize = 1 << 34;
/// CUDA 12.8, which has events over a context.
const VERSION: c_int = 12080;

pub fn number(handle: Handle) -> usize {
    handle as usize
}

fn handle(number: usize) -> Handle {
    number as Handle
}

/// Writes a function's result.
pub fn answer<T>(place: *mut T, value: T) -> Status {
    // SAFETY: the functions' contract: the pointer is valid for one value.
    unsafe { place.write(value) };
    SUCCESS
}

/// Queues a job of a caller that names the stream.
pub fn queue(stream: Handle, uses: Vec<Use>, job: impl FnOnce() + Send + 'static) -> Status {
    let _launches = launches();
    let mut device = device();
    device.check_settled(number(stream));
    device.queue(number(stream), uses, false, job);
    SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn cuInit(_flags: c_uint) -> Status {
    SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn cuDriverGetVersion(version: *mut c_int) -> Status {
    answer(version, VERSION)
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetCount(count: *mut c_int) -> Status {
    answer(count, 1)
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGet(device: *mut c_int, ordinal: c_int) -> Status {
    answer(device, ordinal)
}

/// The attributes that CubeCL and cudarc read. The architecture is sm_75 without matrix instructions: CubeCL
/// recognises it by its name. A block has 96 KiB of shared memory, of which sm_75 has 64: Burn's `bf16` matmuls need
/// more than that, and refuse to start without.
#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetAttribute(value: *mut c_int, attribute: c_int, _device: c_int) -> Status {
    let found = match attribute {
        1..=3 => 1024,
        4 => 64,
        5 => i32::MAX,
        6 | 7 => 65535,
        10 => 32,
        16 => 132,
        75 => 7,
        76 => 5,
        97 => 98304,
        115 => 1,
        other => panic!("the stand-in has no attribute {other}"),
    };
    answer(value, found)
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetName(name: *mut c_char, length: c_int, _device: c_int) -> Status {
    put_text(name, length, c"stand-in of a GTX")
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetPCIBusId(name: *mut c_char, length: c_int, _device: c_int) -> Status {
    put_text(name, length, c"0000:00:00.0")
}

fn put_text(place: *mut c_char, length: c_int, text: &CStr) -> Status {
    let bytes = text.to_bytes_with_nul();
    assert!(bytes.len() <= length as usize);
    // SAFETY: the functions' contract: the bytes are valid.
    unsafe { place.copy_from_nonoverlapping(bytes.as_ptr().cast(), bytes.len()) };
    SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceTotalMem_v2(bytes: *mut usize, _device: c_int) -> Status {
    answer(bytes, TOTAL)
}

#[unsafe(no_mangle)]
extern "C" fn cuDevicePrimaryCtxRetain(context: *mut Handle, _device: c_int) -> Status {
    answer(context, handle(1))
}

#[unsafe(no_mangle)]
extern "C" fn cuDevicePrimaryCtxRelease_v2(_device: c_int) -> Status {
    SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxSetCurrent(_context: Handle) -> Status {
    SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxGetCurrent(context: *mut Handle) -> Status {
    answer(context, handle(1))
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxWaitEvent(_context: Handle, event: Handle) -> Status {
    let _launches = launches();
    let mut device = device();
    if let Some(mark) = device.event(number(event)).clone() {
        device.wait_everywhere(&mark);
    }
    SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn cuGetErrorString(_error: Status, text: *mut *const c_char) -> Status {
    answer(text, c"an error of the stand-in".as_ptr())
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamCreate(stream: *mut Handle, _flags: c_uint) -> Status {
    answer(stream, handle(device().create_stream()))
}

/// As on current GPUs.
#[unsafe(no_mangle)]
extern "C" fn cuCtxGetStreamPriorityRange(lowest: *mut c_int, highest: *mut c_int) -> Status {
    answer(lowest, 0);
    answer(highest, -5)
}

/// Priorities change nothing here. They are recorded.
#[unsafe(no_mangle)]
extern "C" fn cuStreamCreateWithPriority(stream: *mut Handle, flags: c_uint, priority: c_int) -> Status {
    calls::note(&format!("stream of priority {priority}"));
    cuStreamCreate(stream, flags)
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamDestroy_v2(stream: Handle) -> Status {
    device().destroy_stream(number(stream));
    SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamSynchronize(stream: Handle) -> Status {
    let mark = device().mark(&[number(stream)]);
    mark.wait();
    device().know(&mark);
    SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamQuery(stream: Handle) -> Status {
    let mut device = device();
    if device.is_empty(number(stream)) { SUCCESS } else { NOT_READY }
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamWaitEvent(stream: Handle, event: Handle, _flags: c_uint) -> Status {
    let _launches = launches();
    let mut device = device();
    device.check_settled(number(stream));
    if let Some(mark) = device.event(number(event)).clone() {
        device.wait(number(stream), &mark);
    }
    SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn cuEventCreate(event: *mut Handle, _flags: c_uint) -> Status {
    answer(event, handle(device().create_event()))
}

#[unsafe(no_mangle)]
extern "C" fn cuEventDestroy_v2(event: Handle) -> Status {
    device().destroy_event(number(event));
    SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn cuEventRecord(event: Handle, stream: Handle) -> Status {
    let _launches = launches();
    let mut device = device();
    device.check_settled(number(stream));
    let mark = device.mark(&[number(stream)]);
    *device.event(number(event)) = Some(mark);
    SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn cuEventQuery(event: Handle) -> Status {
    let mut device = device();
    match device.event(number(event)).clone() {
        Some(mark) if !mark.is_reached() => NOT_READY,
        Some(mark) => {
            device.know(&mark);
            SUCCESS
        }
        None => SUCCESS,
    }
}

#[unsafe(no_mangle)]
extern "C" fn cuEventSynchronize(event: Handle) -> Status {
    let found = device().event(number(event)).clone();
    if let Some(mark) = found {
        mark.wait();
        device().know(&mark);
    }
    SUCCESS
}

/// The milliseconds from one event to another, as this process ran.
#[unsafe(no_mangle)]
extern "C" fn cuEventElapsedTime_v2(milliseconds: *mut f32, from: Handle, to: Handle) -> Status {
    let mut device = device();
    let [from, to] = [from, to].map(|event| device.event(number(event)).clone().and_then(|mark| mark.when()));
    match (from, to) {
        (Some(from), Some(to)) => answer(milliseconds, to.saturating_duration_since(from).as_secs_f32() * 1e3),
        _ => NOT_READY,
    }
}
