//! Streams that wait for a value in memory, which another stream copies there from the host.
//!
//! Such a wait orders what comes after it behind the copy. The mock is stricter than the driver: the copy of exactly
//! this value must be in its stream when the wait is queued. Otherwise a call that waits for the whole device may come
//! between, and wait for ever.

use crate::broken::broken;
use crate::driver::{Handle, SUCCESS, Status, number};
use crate::queue::{Mark, device, launches};
use std::collections::HashMap;
use std::ffi::c_uint;
use std::sync::{Arc, LazyLock, Mutex};

/// The last value that was copied to each address, and a mark after the copy.
static WRITTEN: LazyLock<Mutex<HashMap<u64, (u32, Arc<Mark>)>>> = LazyLock::new(Mutex::default);

/// A copy of four bytes was queued.
pub fn written(address: u64, value: u32, stream: Handle) {
    let mark = device().mark(&[number(stream)]);
    WRITTEN.lock().unwrap().insert(address, (value, mark));
}

/// `CU_STREAM_WAIT_VALUE_GEQ`.
const AT_LEAST: c_uint = 0;

#[unsafe(no_mangle)]
extern "C" fn cuStreamWaitValue32_v2(stream: Handle, address: u64, value: u32, flags: c_uint) -> Status {
    assert_eq!(flags, AT_LEAST, "the mock waits for values of at least the given one");
    let _launches = launches();
    let found = WRITTEN.lock().unwrap().get(&address).cloned();
    let Some((_, mark)) = found.filter(|(written, _)| *written == value) else {
        broken("the value that a stream waits for is in a queue", format!("{value} at {address:#x}"))
    };
    let mut device = device();
    device.check_settled(number(stream));
    device.wait(number(stream), &mark);
    SUCCESS
}
