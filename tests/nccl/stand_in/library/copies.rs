//! The driver's copies between host and device, by rows or whole, and fills.

use crate::driver::{SUCCESS, answer, number, queue};
use crate::order::Use;
use crate::values;
use std::alloc::{Layout, alloc, dealloc};
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::{LazyLock, Mutex};

type Handle = *mut c_void;
type Status = i32;

/// Pinned host memory, and its layout.
static PINNED: LazyLock<Mutex<BTreeMap<usize, Layout>>> = LazyLock::new(Mutex::default);

#[unsafe(no_mangle)]
extern "C" fn cuMemAllocHost_v2(place: *mut Handle, bytes: usize) -> Status {
    let layout = Layout::from_size_align(bytes.max(1), 512).unwrap();
    // SAFETY: the layout has a size.
    let pointer = unsafe { alloc(layout) };
    PINNED.lock().unwrap().insert(pointer as usize, layout);
    answer(place, pointer.cast())
}

#[unsafe(no_mangle)]
extern "C" fn cuMemFreeHost(pointer: Handle) -> Status {
    let layout = PINNED.lock().unwrap().remove(&number(pointer)).unwrap();
    // SAFETY: it was allocated with this layout.
    unsafe { dealloc(pointer.cast(), layout) };
    SUCCESS
}

/// Returns true if the driver would read this memory later. It copies other host memory before it returns.
fn is_pinned(address: usize) -> bool {
    let pinned = PINNED.lock().unwrap();
    pinned.range(..=address).next_back().is_some_and(|(start, layout)| address < start + layout.size())
}

/// Rows of memory: the address of the first, and the distance between them.
#[derive(Clone, Copy)]
struct Rows {
    address: u64,
    pitch: usize,
}

/// Copies rows of `width` bytes.
///
/// # Safety
/// The rows must be valid.
unsafe fn copy_rows(from: Rows, to: Rows, width: usize, height: usize) {
    for row in 0..height {
        let (source, target) = (from.address + (row * from.pitch) as u64, to.address + (row * to.pitch) as u64);
        // SAFETY: guaranteed by the caller.
        unsafe { (target as *mut u8).copy_from(source as *const u8, width) };
    }
}

fn span(rows: Rows, width: usize, height: usize) -> usize {
    if height == 0 { 0 } else { (height - 1) * rows.pitch + width }
}

fn to_device(to: Rows, from: Rows, width: usize, height: usize, stream: Handle) -> Status {
    let copied = (!is_pinned(from.address as usize)).then(|| {
        // SAFETY: the functions' contract: the rows are valid.
        unsafe { std::slice::from_raw_parts(from.address as *const u8, span(from, width, height)) }.to_vec()
    });
    let uses = vec![Use::write("a copy from the host", to.address, span(to, width, height))];
    // SAFETY: the functions' contract: the bytes are valid.
    let value = (width == 4 && height == 1).then(|| unsafe { (from.address as *const u32).read_unaligned() });
    let status = queue(stream, uses, move || {
        let address = copied.as_ref().map_or(from.address, |copied| copied.as_ptr() as u64);
        // SAFETY: as above; the device memory was checked and is freed only after this has run.
        unsafe { copy_rows(Rows { address, ..from }, to, width, height) };
    });
    if let Some(value) = value {
        values::written(to.address, value, stream);
    }
    status
}

fn to_host(to: Rows, from: Rows, width: usize, height: usize, stream: Handle) -> Status {
    let uses = vec![Use::read("a copy to the host", from.address, span(from, width, height))];
    // SAFETY: the device memory was checked and is freed only after this has run; the caller keeps the host's as
    // long.
    queue(stream, uses, move || unsafe { copy_rows(from, to, width, height) })
}

fn whole(address: u64) -> Rows {
    Rows { address, pitch: 0 }
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyHtoDAsync_v2(to: u64, from: *const c_void, bytes: usize, stream: Handle) -> Status {
    to_device(whole(to), whole(from as u64), bytes, 1, stream)
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyDtoHAsync_v2(to: *mut c_void, from: u64, bytes: usize, stream: Handle) -> Status {
    to_host(whole(to as u64), whole(from), bytes, 1, stream)
}

/// One side of a two-dimensional copy.
#[repr(C)]
struct Side {
    left: usize,
    top: usize,
    kind: u32,
    host: u64,
    device: u64,
    array: u64,
    pitch: usize,
}

/// The driver's `CUDA_MEMCPY2D`.
#[repr(C)]
struct Copy2D {
    from: Side,
    to: Side,
    width: usize,
    height: usize,
}

const HOST: u32 = 1;
const DEVICE: u32 = 2;

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemcpy2DAsync_v2(copy: *const Copy2D, stream: Handle) -> Status {
    // SAFETY: the function's contract: the pointer is valid.
    let Copy2D { from, to, width, height } = unsafe { copy.read() };
    assert!([from.left, from.top, to.left, to.top] == [0; 4], "the stand-in copies from the first element on");
    let rows =
        |side: &Side| Rows { address: if side.kind == HOST { side.host } else { side.device }, pitch: side.pitch };
    match (from.kind, to.kind) {
        (HOST, DEVICE) => to_device(rows(&to), rows(&from), width, height, stream),
        (DEVICE, HOST) => to_host(rows(&to), rows(&from), width, height, stream),
        kinds => panic!("the stand-in does not copy between {kinds:?}"),
    }
}

#[unsafe(no_mangle)]
extern "C" fn cuMemsetD8Async(to: u64, value: u8, bytes: usize, stream: Handle) -> Status {
    queue(stream, vec![Use::write("a fill", to, bytes)], move || {
        // SAFETY: the memory was checked and is freed only after this has run.
        unsafe { (to as *mut u8).write_bytes(value, bytes) };
    })
}
