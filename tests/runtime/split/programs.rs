//! Programs as values: their contents, their costs, and the bytes that they hold.

use super::models::{Noisy, Tower, WIDTH, linear, noise};
use crate::cases::small_gpt;
use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::{Device, Int, Tensor};
use burn_pipeline::payload::{Boundary, Payload};
use burn_pipeline::program::{Program, StagePrograms};
use burn_pipeline::stage::{SingleStage, SplitBackward, Stage, StageBox};
use burn_pipeline::train::StageContext;
use pipeline_examples::gpt::Signal;
use std::sync::Arc;

const ROWS: usize = 4;
const FLOAT: usize = 4;

pub(super) fn programs(stage: StageBox, input: Payload, wants_input_gradient: bool) -> Arc<StagePrograms> {
    let stage = SingleStage::new(stage, SplitBackward::Captured, true);
    let mut stage = if wants_input_gradient { stage } else { stage.without_input_gradient() };
    stage.forward(0, input, Payload::default()).unwrap();
    stage.report().programs[0].clone()
}

fn tower(layers: usize) -> Arc<StagePrograms> {
    programs(StageBox::new(Tower::new(layers)), noise([ROWS, WIDTH]).into_payload(), true)
}

pub(super) fn count(program: &Program, name: &str) -> usize {
    program.operations().filter(|op| op.name == name).count()
}

fn matmul_flops(program: &Program) -> u64 {
    program.operations().filter(|op| op.name == "Matmul").map(|op| op.flops).sum()
}

#[test]
fn the_weights_products_are_in_w_and_the_input_s_in_i() {
    let (layers, programs) = (5, tower(5));
    for program in [programs.forward(), programs.input(), programs.weight()] {
        assert_eq!(count(program, "Matmul"), layers, "{program}");
        assert_eq!(matmul_flops(program), (2 * layers * ROWS * WIDTH * WIDTH) as u64);
    }
    assert_eq!(count(programs.forward(), "Relu"), layers);
    assert_eq!(count(programs.input(), "ReluBackward"), layers);
    assert_eq!(count(programs.weight(), "SumDim"), layers, "the biases' gradients");
    assert_eq!(count(programs.weight(), "ReluBackward") + count(programs.input(), "SumDim"), 0);
}

#[test]
fn b_is_i_and_w_together() {
    let programs = tower(3);
    let names = |program: &Program| {
        let mut names: Vec<String> = program.operations().map(|op| op.name).collect();
        names.sort();
        names
    };
    let mut parts = names(programs.input());
    parts.extend(names(programs.weight()));
    parts.sort();
    assert_eq!(names(programs.backward()), parts);
    assert_eq!(programs.backward().flops(), programs.input().flops() + programs.weight().flops());
}

#[test]
fn a_stack_of_linear_layers_costs_a_third_each() {
    let stage = StageBox::new(Tower::new(6));
    let programs = programs(stage, noise([512, WIDTH]).into_payload(), true);
    let total = matmul_flops(programs.forward()) + matmul_flops(programs.backward());
    for program in [programs.forward(), programs.input(), programs.weight()] {
        assert_eq!(3 * matmul_flops(program), total);
    }
    assert!((programs.deferrable() - 0.5).abs() < 0.05, "{}", programs.deferrable());
}

#[test]
fn what_is_held_is_what_the_formulas_say() {
    let (layers, programs) = (5, tower(5));
    let activation = ROWS * WIDTH * FLOAT;
    // Each layer's input for its weight, and each sum before its ReLU; the last layer's output was sent on.
    assert_eq!(programs.forward().held_bytes(), 2 * layers * activation);
    // Each layer's input, and the gradient of its output.
    assert_eq!(programs.input().held_bytes(), 2 * layers * activation);
    assert_eq!(programs.weight().held_bytes(), 0);
    assert_eq!(programs.backward().held_bytes(), 0);
}

#[test]
fn checkpointing_holds_less_and_computes_again() {
    let (layers, device) = (5, Device::flex().autodiff().gradient_checkpointing());
    let layer = |_| LinearConfig::new(WIDTH, WIDTH).init(&device);
    let stage = StageBox::new(Tower { layers: (0..layers).map(layer).collect() });
    let (kept, again) = (tower(layers), programs(stage, noise([ROWS, WIDTH]).into_payload(), true));
    assert!(again.forward().held_bytes() < kept.forward().held_bytes(), "{again}");
    assert!(again.backward().flops() > kept.backward().flops());
}

#[test]
fn unused_work_is_dropped() {
    // Without a gradient of the input, its last matmul is not computed.
    let wanted = tower(3);
    let unwanted = programs(StageBox::new(Tower::new(3)), noise([ROWS, WIDTH]).into_payload(), false);
    assert_eq!(count(wanted.backward(), "Matmul"), 6);
    assert_eq!(count(unwanted.backward(), "Matmul"), 5);
    // The backward of the first stage is still split: the chain in I, weights in W.
    assert_eq!((count(unwanted.input(), "Matmul"), count(unwanted.weight(), "Matmul")), (2, 3));
}

#[test]
fn a_first_stage_that_reads_tokens_splits_like_the_others() {
    let config = small_gpt();
    let at = |index| StageContext {
        index,
        stages: 4,
        rank: 0,
        device: Device::flex().autodiff(),
        cut: None,
        group: Default::default(),
        replicas: Default::default(),
    };
    let ids = Signal::Tokens(Tensor::<2, Int>::zeros([2, 6], &Device::flex()));
    let first = programs(config.stage(&at(0)), ids.into_payload(), false);
    let hidden = Signal::Hidden(noise([2, 6, 8])).into_payload();
    let second = programs(config.stage(&at(1)), hidden, true);
    assert_eq!(count(first.input(), "Matmul"), count(second.input(), "Matmul"));
    assert_eq!(count(first.weight(), "Matmul"), count(second.weight(), "Matmul"));
    assert_eq!(count(first.weight(), "EmbeddingBackward"), 2);
}

#[test]
fn random_numbers_are_drawn_in_the_forward_alone() {
    let programs = programs(StageBox::new(Noisy::new()), noise([ROWS, WIDTH]).into_payload(), true);
    assert_eq!(count(programs.forward(), "Random"), 1, "{programs}");
    assert_eq!(count(programs.input(), "Random") + count(programs.weight(), "Random"), 0);
}

#[test]
fn captures_of_one_stage_are_equal_and_print_alike() {
    let module = Tower::new(2);
    let capture = || programs(StageBox::new(module.clone()), noise([ROWS, WIDTH]).into_payload(), true);
    assert_eq!(capture(), capture());
    let text = capture().weight().to_string();
    assert!(text.starts_with("W: 8 operations"), "{text}");
    assert!(text.contains("= Matmul(") && text.lines().last().unwrap().trim_start().starts_with("gives"), "{text}");
}

/// A linear layer whose output is scaled by a number.
#[derive(Module, Debug)]
struct Scaled {
    layer: Linear,
}

impl Stage for Scaled {
    type Input = Tensor<2>;
    type Extra = ();
    type Output = Tensor<2>;

    fn forward(&self, x: Tensor<2>, (): ()) -> Tensor<2> {
        self.layer.forward(x) * 0.375
    }
}

#[test]
fn a_program_prints_the_scalars_of_its_operations() {
    let programs = programs(StageBox::new(Scaled { layer: linear() }), noise([ROWS, WIDTH]).into_payload(), true);
    for program in [programs.forward(), programs.input()] {
        let text = program.to_string();
        let scaled = text.lines().find(|line| line.contains("MulScalar(")).unwrap();
        assert!(scaled.ends_with(&format!("F32[{ROWS}, {WIDTH}], 0.375)")), "{text}");
    }
}

#[test]
fn captures_on_several_threads_at_once_do_not_mix() {
    let alone = tower(4);
    let threads: Vec<_> =
        (0..8).map(|_| std::thread::spawn(|| (0..20).map(|_| tower(4)).collect::<Vec<_>>())).collect();
    for programs in threads.into_iter().flat_map(|thread| thread.join().unwrap()) {
        assert_eq!(programs, alone);
    }
}
