//! Kernels and transfers on the same memory: in order they pass, and each order that is left out ends the process.

use super::folder::folder;
use super::rank::{BYTES, Rank};
use super::{start, start_without_link};
use cudarc::driver::result as driver;
use cudarc::driver::sys::{CUfunction, CUstream};
use cudarc::nccl::sys::ncclDataType_t;
use std::collections::BTreeMap;
use std::ffi::{CStr, c_void};
use std::time::Duration;

/// The bytes that a kernel uses: half of a block of memory.
const USED: usize = BYTES / 2;

/// `fill` writes the number of each thread, `double` doubles 4 bytes of each.
const MODULE: &CStr = c"
.version 8.7
.target sm_75
.address_size 64
.visible .entry fill(.param .u64 to) .reqntid 512, 1, 1 {
    .reg .b32 %r<4>; .reg .b64 %rd<4>;
    ld.param.u64 %rd1, [to]; mov.u32 %r1, %tid.x; mul.wide.u32 %rd2, %r1, 4; add.s64 %rd3, %rd1, %rd2;
    st.global.b32 [%rd3], %r1; ret;
}
.visible .entry double(.param .u64 to) .reqntid 512, 1, 1 {
    .reg .b32 %r<4>; .reg .b64 %rd<4>;
    ld.param.u64 %rd1, [to]; mov.u32 %r1, %tid.x; mul.wide.u32 %rd2, %r1, 4; add.s64 %rd3, %rd1, %rd2;
    ld.global.b32 %r2, [%rd3]; shl.b32 %r3, %r2, 1; st.global.b32 [%rd3], %r3; ret;
}";

const UNKNOWN: &CStr = c"
.version 8.7
.target sm_90
.address_size 64
.visible .entry fill(.param .u64 to) { .reg .b32 %r<9>; redux.sync.add.s32 %r1, %r2, -1; ret; }";

/// Queues a kernel of a module.
fn launch(module: &CStr, name: &CStr, memory: u64, stream: CUstream) {
    let mut address = memory;
    let mut params = [(&raw mut address).cast::<c_void>()];
    // SAFETY: the module is a text, the stream is alive, and the kernel has this parameter. The memory is as long as
    // the kernel's, unless the test breaks this rule.
    unsafe {
        let module = driver::module::load_data(module.as_ptr().cast()).unwrap();
        let function: CUfunction = driver::module::get_function(module, name.to_owned()).unwrap();
        driver::launch_kernel(function, (1, 1, 1), (512, 1, 1), 0, stream, &mut params).unwrap();
    }
}

fn fill(memory: u64, stream: CUstream) {
    launch(MODULE, c"fill", memory, stream);
}

fn double(memory: u64, stream: CUstream) {
    launch(MODULE, c"double", memory, stream);
}

/// Runs the named part of a rank's process. Returns false if the name is not one of these.
pub(super) fn part(name: &str) -> bool {
    let Some(name) = name.strip_prefix("kernel ") else { return false };
    let rank = Rank::new();
    let memory = rank.memory();
    match name {
        "in order" => in_order(&rank, memory),
        "computes what is sent" | "changes what is sent" if rank.rank == 1 => {
            rank.receive(memory, USED, ncclDataType_t::ncclUint8);
        }
        "computes what is sent" => {
            fill(memory, rank.compute);
            rank.send(memory, USED);
        }
        "changes what is sent" => {
            rank.send(memory, USED);
            rank.settle();
            fill(memory, rank.compute);
        }
        "reads what is received" if rank.rank == 0 => rank.send(memory, USED),
        "reads what is received" => {
            rank.receive(memory, USED, ncclDataType_t::ncclUint8);
            rank.settle();
            double(memory, rank.compute);
        }
        "beside kernel" => {
            fill(memory, rank.compute);
            double(memory + USED as u64, rank.transfers);
        }
        "and kernel" => {
            fill(memory, rank.compute);
            double(memory, rank.transfers);
        }
        "on freed memory" => {
            // SAFETY: nothing uses it before.
            unsafe { driver::free_sync(memory) }.unwrap();
            fill(memory, rank.compute);
        }
        "beyond" => fill(memory + USED as u64 + 4, rank.compute),
        "not known" => launch(UNKNOWN, c"fill", memory, rank.compute),
        _ => return false,
    }
    rank.finish(rank.compute);
    rank.settle();
    rank.finish(rank.transfers);
    true
}

/// What one rank computes is sent, and the other one computes on it.
fn in_order(rank: &Rank, memory: u64) {
    for round in 1..4 {
        if rank.rank == 0 {
            fill(memory, rank.compute);
            rank.wait(rank.transfers, rank.event(rank.compute));
            rank.send(memory, USED);
            rank.settle();
            // The next round changes what was sent.
            rank.wait(rank.compute, rank.event(rank.transfers));
            continue;
        }
        rank.wait(rank.transfers, rank.event(rank.compute));
        rank.receive(memory, USED, ncclDataType_t::ncclUint8);
        rank.settle();
        rank.wait(rank.compute, rank.event(rank.transfers));
        double(memory, rank.compute);
        let mut read = [0_u8; USED];
        // SAFETY: the memory is that long, and the host waits before it reads.
        unsafe { driver::memcpy_dtoh_async(&mut read, memory, rank.compute) }.unwrap();
        rank.finish(rank.compute);
        let numbers = read.chunks_exact(4).map(|bytes| u32::from_le_bytes(bytes.try_into().unwrap()));
        assert!(numbers.eq((0..512).map(|thread| 2 * thread)), "round {round}");
    }
}

#[test]
fn kernels_and_transfers_in_order_pass() {
    start_without_link(2, "kernel in order", &[]).all_pass();
    // Two queues, without an order: different words of the same block.
    start_without_link(2, "kernel beside kernel", &[]).all_pass();
}

#[test]
fn a_kernel_without_an_order_or_without_its_memory_ends_its_process() {
    let order = "memory is used before its event";
    for (part, rule, details) in [
        ("kernel computes what is sent", order, "a send"),
        ("kernel changes what is sent", order, "a send"),
        ("kernel reads what is received", order, "a receive"),
        ("kernel and kernel", order, "a kernel on stream"),
        ("kernel on freed memory", "a kernel uses memory that is allocated", "fill writes 4 bytes"),
        ("kernel beyond", "a kernel uses memory that is allocated", "fill writes 4 bytes"),
        ("kernel not known", "the stand-in interprets every instruction of a kernel", "redux.sync.add.s32"),
    ] {
        let ended = start_without_link(2, part, &[]).end_with_the_first(Duration::from_secs(20));
        let found = ended.lines().any(|line| line.contains(&format!("broken rule: {rule}")) && line.contains(details));
        assert!(found, "{part}: {ended}");
    }
}

/// The opcodes of a module's instructions.
fn opcodes<'a>(text: &'a str) -> impl Iterator<Item = &'a str> {
    let statements = text.lines().map(str::trim).filter(|line| line.contains(';') && !line.starts_with('.'));
    let first = |line: &'a str| line.split_whitespace().find(|word| !word.starts_with(['@', '{', ')', ';']));
    statements.filter_map(first)
}

#[test]
#[ignore = "prints a table"]
fn the_instructions_of_burns_operations() {
    let modules = folder().join("modules");
    std::fs::create_dir_all(&modules).unwrap();
    start(1, "operations", &[("CUBECL_CUDA_DUMP_PTX", modules.to_str().unwrap())]).all_pass();
    let (mut counts, mut kernels) = (BTreeMap::<String, usize>::new(), 0);
    for module in std::fs::read_dir(&modules).unwrap() {
        let text = std::fs::read_to_string(module.unwrap().path()).unwrap();
        opcodes(&text).for_each(|opcode| *counts.entry(opcode.trim_end_matches(';').to_owned()).or_default() += 1);
        kernels += 1;
    }
    println!("{kernels} kernels, {} instructions", counts.values().sum::<usize>());
    counts.iter().for_each(|(opcode, count)| println!("{count:8} {opcode}"));
}
