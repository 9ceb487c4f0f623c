//! Matmuls alone, by shape, on one thread: compiled programs of one matmul, PyTorch's (oneDNN), and the crate `gemm`'s.
//!
//! `cargo bench -p benches --bench matmuls [-- --rounds N]`. `PYTHON` is as for the bench `pytorch`.
//!
//! 1. The shapes are those of the step of the bench `pytorch`: forward, input gradient (the right operand is a
//!    transposed view) and weight gradient (the left operand is one). In the last shape packing is less than 1 % of
//!    the work, so its row shows the kernels alone.
//! 2. Elements: `f32`; `f32` as products of `bf16` parts (`Matmuls::Bf16x6` and `Bf16x3`, with matrix tiles); `f32`
//!    rounded to `bf16` (`Matmuls::Bf16`, and `torch.autocast`); and `bf16` tensors.
//! 3. Each round runs all contestants of a shape in turn. A contestant multiplies for about 40 ms per round.

#![allow(missing_docs, clippy::print_stdout, reason = "a benchmark prints")]

use benches::flags::Flags;
use benches::roofline::multiply;
use benches::spread::Spread;
use benches::torch::PyTorch;
use burn::backend::flex::FlexTensor;
use burn::backend::ir::{
    BaseOperationIr, FloatOperationIr, MatmulOpIr, OperationIr, SwapDimsOpIr, TensorId, TensorIr, TensorStatus,
};
use burn::tensor::{DType, Shape, TensorData};
use burn_pipeline_compile::{Bf16, Compiled, Mismatch, Parts, Tensors};
use std::collections::HashMap;
use std::error::Error;
use std::time::Instant;

/// Floating-point operations of one contestant in a round.
const WORK: f64 = 8e9;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Elements {
    F32,
    Split(Parts),
    Rounded,
    Bf16,
}

/// The operand that is a transposed view.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Layout {
    Plain,
    Right,
    Left,
}

struct Row {
    name: &'static str,
    layout: Layout,
    /// Rows, depth and columns.
    sizes: [usize; 3],
}

const ROWS: [Row; 10] = [
    Row { name: "queries, keys, values", layout: Layout::Plain, sizes: [512, 256, 768] },
    Row { name: "feed-forward up", layout: Layout::Plain, sizes: [512, 256, 1024] },
    Row { name: "feed-forward down", layout: Layout::Plain, sizes: [512, 1024, 256] },
    Row { name: "up, input gradient", layout: Layout::Right, sizes: [512, 1024, 256] },
    Row { name: "down, input gradient", layout: Layout::Right, sizes: [512, 256, 1024] },
    Row { name: "up, weight gradient", layout: Layout::Left, sizes: [256, 512, 1024] },
    Row { name: "down, weight gradient", layout: Layout::Left, sizes: [1024, 512, 256] },
    Row { name: "one head's scores", layout: Layout::Right, sizes: [128, 64, 128] },
    Row { name: "one head's values", layout: Layout::Plain, sizes: [128, 128, 64] },
    Row { name: "kernels alone", layout: Layout::Plain, sizes: [4096, 512, 4096] },
];

impl Row {
    fn flops(&self) -> f64 {
        2.0 * self.sizes.iter().product::<usize>() as f64
    }

    fn times(&self) -> usize {
        (WORK / self.flops()).max(1.0) as usize
    }

    /// The stored shapes of both operands.
    fn stored(&self) -> [[usize; 2]; 2] {
        let [rows, depth, columns] = self.sizes;
        let left = if self.layout == Layout::Left { [depth, rows] } else { [rows, depth] };
        let right = if self.layout == Layout::Right { [columns, depth] } else { [depth, columns] };
        [left, right]
    }
}

/// The tensors of a program, by id.
struct Held(HashMap<TensorId, FlexTensor>);

impl Tensors for Held {
    type Error = Mismatch;

    fn read(&mut self, tensor: &TensorIr) -> FlexTensor {
        self.0[&tensor.id].clone()
    }

    fn write(&mut self, tensor: &TensorIr, value: FlexTensor) {
        self.0.insert(tensor.id, value);
    }

    fn interpret(&mut self, operation: &OperationIr) -> Result<(), Mismatch> {
        unreachable!("{operation:?} is compiled")
    }
}

fn values(shape: [usize; 2]) -> TensorData {
    let count = shape[0] * shape[1];
    TensorData::new((0..count).map(|at| (at * 7919 % 1009) as f32 / 1009.0 - 0.5).collect(), shape.to_vec())
}

/// A compiled program of one matmul. Returns the seconds of a run of it, each time that it is called.
fn compiled(row: &Row, elements: Elements) -> Option<impl FnMut() -> Result<f64, Box<dyn Error>> + use<>> {
    let dtype = if elements == Elements::Bf16 { DType::BF16 } else { DType::F32 };
    let rounded = match elements {
        Elements::F32 => None,
        Elements::Split(parts) => Some(Bf16::detect(parts)?),
        Elements::Rounded | Elements::Bf16 => Some(Bf16::detect(Parts::One)?),
    };
    let [rows, depth, columns] = row.sizes;
    let shapes = row.stored().into_iter().chain([[rows, depth], [depth, columns], [rows, columns]]);
    let tensor = |(id, shape): (u64, [usize; 2])| TensorIr {
        id: TensorId::new(id),
        shape: Shape::from(shape.to_vec()),
        status: TensorStatus::ReadOnly,
        dtype,
    };
    let tensors: Vec<TensorIr> = (0..).zip(shapes).map(tensor).collect();
    let mut operands = [tensors[0].clone(), tensors[1].clone()];
    let mut operations = Vec::new();
    if let Some(side) = [Layout::Left, Layout::Right].iter().position(|layout| *layout == row.layout) {
        let (input, out) = (tensors[side].clone(), tensors[2 + side].clone());
        operands[side] = out.clone();
        operations.push(OperationIr::BaseFloat(BaseOperationIr::SwapDims(SwapDimsOpIr {
            input,
            out,
            dim1: 0,
            dim2: 1,
        })));
    }
    let [lhs, rhs] = operands;
    let matmul = MatmulOpIr { lhs, rhs, out: tensors[4].clone() };
    operations.push(OperationIr::Float(dtype, FloatOperationIr::Matmul(matmul)));
    let kept = [0, 1, 4].map(TensorId::new).into_iter().collect();
    let program = Compiled::new(&operations, kept, rounded);
    let fed = (0..)
        .zip(row.stored())
        .map(|(id, shape)| (TensorId::new(id), FlexTensor::from_data(values(shape).convert_dtype(dtype))));
    let (mut held, times) = (Held(fed.collect()), row.times());
    Some(move || {
        let began = Instant::now();
        for _ in 0..times {
            program.run(0..program.len(), &mut held).map_err(|mismatch| mismatch.to_string())?;
        }
        Ok(began.elapsed().as_secs_f64() / times as f64)
    })
}

/// The crate `gemm` on the same operands.
fn plain_gemm(row: &Row) -> impl FnMut() -> Result<f64, Box<dyn Error>> + use<> {
    let [left, right] = row.stored().map(|shape| values(shape).iter::<f32>().collect::<Vec<_>>());
    let ([rows, depth, columns], layout, times) = (row.sizes, row.layout, row.times());
    let mut to = vec![0.0_f32; rows * columns];
    let (left_turned, right_turned) = (layout == Layout::Left, layout == Layout::Right);
    move || {
        let began = Instant::now();
        for _ in 0..times {
            multiply([rows, depth, columns], (&left, left_turned), (&right, right_turned), 1.0, &mut to);
        }
        Ok(began.elapsed().as_secs_f64() / times as f64)
    }
}

/// The columns: ours, and what PyTorch calls its own.
const COLUMNS: [(&str, Contestant); 9] = [
    ("f32", Contestant::Own(Elements::F32)),
    ("`gemm`, f32", Contestant::Gemm),
    ("PyTorch, f32", Contestant::PyTorch("f32")),
    ("bf16x6", Contestant::Own(Elements::Split(Parts::Three))),
    ("bf16x3", Contestant::Own(Elements::Split(Parts::Two))),
    ("rounded", Contestant::Own(Elements::Rounded)),
    ("`autocast`", Contestant::PyTorch("rounded")),
    ("bf16", Contestant::Own(Elements::Bf16)),
    ("PyTorch, bf16", Contestant::PyTorch("bf16")),
];

#[derive(Clone, Copy)]
enum Contestant {
    Own(Elements),
    Gemm,
    PyTorch(&'static str),
}

fn main() -> Result<(), Box<dyn Error>> {
    let rounds = Flags::read(&[("--rounds N", "rounds; 9 if absent")]).number("--rounds", 9);
    rayon::ThreadPoolBuilder::new().num_threads(1).build_global()?;
    let (mut torch, version) = PyTorch::start("matmul.py", &[], env!("CARGO_TARGET_TMPDIR"))?;
    println!("{version}; {rounds} rounds; GFLOP/s: median (min..max)\n");
    let columns = COLUMNS.map(|(name, _)| name).join(" | ");
    println!("| matmul | rows x depth x columns | {columns} |\n|---|---|{}", "---|".repeat(COLUMNS.len()));
    for row in &ROWS {
        let cells = measured(row, rounds, &mut torch)?;
        let [rows, depth, columns] = row.sizes;
        println!("| {} | {rows} x {depth} x {columns} | {} |", row.name, cells.join(" | "));
    }
    Ok(())
}

/// The speed of each contestant.
fn measured(row: &Row, rounds: usize, torch: &mut PyTorch) -> Result<Vec<String>, Box<dyn Error>> {
    let layout = match row.layout {
        Layout::Plain => "plain",
        Layout::Right => "right",
        Layout::Left => "left",
    };
    let [rows, depth, columns] = row.sizes;
    let mut own = COLUMNS.map(|(_, contestant)| match contestant {
        Contestant::Own(elements) => compiled(row, elements),
        _ => None,
    });
    let mut gemm = plain_gemm(row);
    let mut seconds = vec![Vec::new(); COLUMNS.len()];
    for _ in 0..=rounds {
        for ((seconds, own), (_, contestant)) in seconds.iter_mut().zip(&mut own).zip(COLUMNS) {
            seconds.extend(match (contestant, own) {
                (Contestant::Own(_), own) => own.as_mut().map(|run| run()).transpose()?,
                (Contestant::Gemm, _) => Some(gemm()?),
                (Contestant::PyTorch(elements), _) => {
                    let line = format!("{elements} {layout} {rows} {depth} {columns} {}", row.times());
                    Some(torch.seconds(&line)?)
                }
            });
        }
    }
    let cell = |seconds: &Vec<f64>| match seconds.get(1..) {
        None => "-".to_owned(),
        // The first round warms up.
        Some(seconds) => {
            let Spread { min, median, max } = Spread::of(seconds);
            let speed = |seconds: f64| row.flops() / seconds / 1e9;
            format!("{:.0} ({:.0}..{:.0})", speed(median), speed(max), speed(min))
        }
    };
    Ok(seconds.iter().map(cell).collect())
}
