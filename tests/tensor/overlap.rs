//! Collectives of captured stages overlap with computation.

use crate::model::{batch, builder_of};
use crate::plain::{SEQUENCE, SMALL};
use burn::backend::Dispatch;
use burn::module::{Module, Param};
use burn::optim::SgdConfig;
use burn::tensor::{Device, Tensor};
use burn_pipeline::link::{Header, Link, LinkError, Message, MessageKind, Threads};
use burn_pipeline::payload::Payload;
use burn_pipeline::stage::{SplitBackward, Stage, StageBox};
use burn_pipeline::tensor_parallel::TensorGroup;
use burn_pipeline::{Batch, Pipeline, Size};
use pipeline_tests::product::{ON_WEIGHT, ProductOps};
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Instant;

/// The number of exchanges with a matmul between start and wait in a program's text, and the number of all
/// exchanges.
fn beside_products(program: &str) -> (usize, usize) {
    let (mut open, mut filled, mut all) = (Vec::new(), 0, 0);
    // Tensors are written with a `%`, which the summary of a compiled program lacks.
    for line in program.lines().filter(|line| line.contains('%')) {
        if line.contains("start of ") {
            open.push(false);
            all += 1;
        } else if line.contains("wait for ") {
            filled += usize::from(open.remove(0));
        } else if line.contains("Matmul") {
            open.iter_mut().for_each(|filled| *filled = true);
        }
    }
    (filled, all)
}

#[test]
fn gradients_of_weights_stand_beside_the_exchanges_of_a_backward() {
    for (config, compile) in [(SMALL, false), (SMALL, true), (SEQUENCE, false), (SEQUENCE, true)] {
        let builder = builder_of(config, ("1F1B", 1), (1, 1, 2)).split(SplitBackward::Captured).compile(compile);
        let mut pipeline = builder.build().unwrap();
        pipeline.step(batch(&config, 8), 0.1).unwrap();
        let (_, engine) = pipeline.engines().unwrap().swap_remove(0);
        let backward = engine.programs[0].backward();
        let text = if compile { backward.compiled().unwrap() } else { backward.to_string() };
        let (filled, all) = beside_products(&text);
        println!("{config:?}, compiled {compile}: {filled} of {all} exchanges of the backward overlap with matmuls");
        // The inputs of each block's attention and feed-forward layer, and of the head.
        assert!(filled >= 9, "{filled} of {all}: {text}");
    }
}

#[derive(Module, Debug)]
struct Layer {
    scale: Param<Tensor<2>>,
    weight: Param<Tensor<2>>,
    #[module(skip)]
    group: TensorGroup,
}

impl Stage for Layer {
    type Input = Tensor<2>;
    type Extra = ();
    type Output = Tensor<2>;

    fn forward(&self, x: Tensor<2>, (): ()) -> Tensor<2> {
        // The gradient of `scale` needs the gradient of the matmul's input, summed over members.
        let x = self.group.copy_to(x * self.scale.val());
        Tensor::from_dispatch(Dispatch::product(x.into_dispatch(), self.weight.val().into_dispatch()))
    }
}

/// What each rank's thread did, in order.
static DONE: Mutex<BTreeMap<String, Vec<&'static str>>> = Mutex::new(BTreeMap::new());

fn note(what: &'static str) {
    let thread = std::thread::current();
    DONE.lock().unwrap().entry(format!("{:?}", thread.id())).or_default().push(what);
}

/// A link that records when tensors of collectives are sent and received.
struct Noting<L> {
    link: L,
}

impl<L: Link> Link for Noting<L> {
    burn_pipeline::forward_link!(link: rank, ranks, monitor, to_device, set_activity);
    burn_pipeline::forward_link!(link: probe, all_gather, abort);

    fn send(&mut self, to: usize, message: Message, deadline: Instant) -> Result<(), LinkError> {
        if message.header.kind == MessageKind::Member {
            note("sent");
        }
        self.link.send(to, message, deadline)
    }

    fn receive(&mut self, from: usize, header: Header, deadline: Instant) -> Result<Payload, LinkError> {
        let received = self.link.receive(from, header, deadline);
        if header.kind == MessageKind::Member {
            note("received");
        }
        received
    }
}

/// The losses of both members, and what each did in the last step.
fn steps(split: SplitBackward, compile: bool) -> (Vec<u64>, Vec<Vec<&'static str>>) {
    DONE.lock().unwrap().clear();
    let threads = Threads::new(2);
    let member = |rank| {
        let link = Box::new(Noting { link: threads.link(rank, Device::flex()) });
        let mut pipeline = Pipeline::builder()
            .schedule("1F1B", Size::new(1, 1))
            .devices(vec![Device::flex()])
            .stages(|at| {
                let ones = |shape: [usize; 2]| Param::from_tensor(Tensor::<2>::ones(shape, &at.device));
                let layer = Layer { scale: ones([1, 4]), weight: ones([4, 4]), group: at.group.clone() };
                StageBox::with_loss(layer, |y: Tensor<2>, t: Tensor<2>| (y - t).square().mean())
            })
            .optimizer(|| SgdConfig::new().init())
            .split(split)
            .compile(compile)
            .tensor_parallel(2)
            .build_rank(link)
            .unwrap();
        let x = Tensor::<2>::ones([2, 4], &Device::flex());
        let batch = || Batch::new(x.clone()).target(x.clone());
        (0..3).map(|_| pipeline.step(batch(), 0.01).unwrap().loss.to_bits()).collect::<Vec<_>>()
    };
    let losses = std::thread::scope(|scope| {
        let members = [0, 1].map(|rank| scope.spawn(move || member(rank)));
        members.map(|member| member.join().unwrap()).concat()
    });
    (losses, DONE.lock().unwrap().values().cloned().collect())
}

#[test]
fn a_step_hides_an_exchange_behind_the_weights_gradient() {
    ON_WEIGHT.get_or_init(|| || note("weight"));
    let (losses, blocking) = steps(SplitBackward::Eager, false);
    assert!(blocking.iter().all(|done| done.ends_with(&["weight", "sent", "received"])), "{blocking:?}");
    for compile in [false, true] {
        let (same, done) = steps(SplitBackward::Captured, compile);
        assert!(done.iter().all(|done| done.ends_with(&["sent", "weight", "received"])), "{compile}: {done:?}");
        assert_eq!(same, losses);
    }
}
