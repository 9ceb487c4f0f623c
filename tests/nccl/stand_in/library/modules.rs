//! The driver's functions for modules and launches. The processors are in `ptx/`.
//!
//! Which memory a kernel uses is known when it has run. Its uses are checked then, against the order that the launch
//! had (`order.rs`).

use crate::driver::{SUCCESS, answer, number};
use crate::order::Use;
use crate::ptx::{Kernel, Launch, Module, run};
use crate::queue::{device, launches};
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ops::Range;
use std::sync::Arc;

type Handle = *mut c_void;
type Status = c_int;

/// The driver's status for a name that a module does not have.
const NOT_FOUND: Status = 500;

/// A kernel, with the variables of its module.
struct Function {
    kernel: Arc<Kernel>,
    variables: Arc<[Range<u64>]>,
}

#[unsafe(no_mangle)]
extern "C" fn cuModuleLoadData(module: *mut Handle, image: *const c_char) -> Status {
    // SAFETY: CubeCL's images are null-terminated texts.
    let text = unsafe { CStr::from_ptr(image) }.to_string_lossy();
    let Module { kernels, variables } = Module::parse(&text);
    let variables: Arc<[Range<u64>]> =
        variables.into_iter().map(|(address, bytes)| address..address + bytes as u64).collect();
    let function = |kernel| Function { kernel: Arc::new(kernel), variables: variables.clone() };
    // CubeCL never unloads a module.
    let functions: &Vec<Function> = Box::leak(Box::new(kernels.into_iter().map(function).collect()));
    answer(module, std::ptr::from_ref(functions).cast_mut().cast())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuModuleGetFunction(function: *mut Handle, module: Handle, name: *const c_char) -> Status {
    // SAFETY: the function's contract: a module of `cuModuleLoadData`, and a text.
    let (functions, name) = unsafe { (&*module.cast::<Vec<Function>>(), CStr::from_ptr(name)) };
    match functions.iter().find(|function| function.kernel.name.as_bytes() == name.to_bytes()) {
        Some(found) => answer(function, std::ptr::from_ref(found).cast_mut().cast()),
        None => NOT_FOUND,
    }
}

/// The launch says how much shared memory there is.
#[unsafe(no_mangle)]
extern "C" fn cuFuncSetAttribute(_function: Handle, _attribute: c_int, _value: c_int) -> Status {
    SUCCESS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuLaunchKernel(
    function: Handle,
    blocks_x: c_uint,
    blocks_y: c_uint,
    blocks_z: c_uint,
    threads_x: c_uint,
    threads_y: c_uint,
    threads_z: c_uint,
    shared: c_uint,
    stream: Handle,
    params: *const *const u8,
    _extra: Handle,
) -> Status {
    // SAFETY: the function's contract: a function of `cuModuleGetFunction`.
    let Function { kernel, variables } = unsafe { &*function.cast::<Function>() };
    let _launches = launches();
    let mut device = device();
    device.check_settled(number(stream));
    let launch = Launch {
        kernel: kernel.clone(),
        variables: variables.clone(),
        // SAFETY: the function's contract: a pointer for each parameter.
        params: unsafe { gather(kernel, params) },
        blocks: [blocks_x, blocks_y, blocks_z],
        threads: [threads_x, threads_y, threads_z],
        shared: shared as usize,
        memory: device.memory.blocks(),
    };
    device.launch(number(stream), move || uses(&launch));
    SUCCESS
}

/// The parameters at their places.
///
/// # Safety
/// There is a pointer for each parameter of the kernel, to as many bytes.
unsafe fn gather(kernel: &Kernel, params: *const *const u8) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (place, &(start, length)) in kernel.params.iter().enumerate() {
        bytes.resize(start, 0);
        // SAFETY: the function's contract.
        bytes.extend_from_slice(unsafe { std::slice::from_raw_parts(params.add(place).read(), length) });
    }
    bytes
}

/// Runs a kernel, and returns the memory that it has used.
fn uses(launch: &Launch) -> Vec<Use> {
    let mut touched = run(launch);
    let module = |range: &Range<u64>| launch.variables.iter().any(|variable| variable.contains(&range.start));
    let of = |ranges: Vec<Range<u64>>, writes| {
        let kept = ranges.into_iter().filter(|range| !module(range));
        kept.map(move |range| Use { range, writes, what: "a kernel" }).collect::<Vec<_>>()
    };
    let mut uses = of(touched.ranges(true), true);
    uses.extend(of(touched.ranges(false), false));
    uses
}
