//! Bytes of half precision: of messages, of gathered parameters, of reductions, of what is held; and sums that keep
//! growing.

use super::{LAYERS, MICROBATCHES, RATE, SAMPLES, WIDTH, batch, builder, precision};
use burn::module::{Module, Param};
use burn::optim::AdamWConfig;
use burn::tensor::{DType, FloatDType, Tensor};
use burn_pipeline::link::{Link, LinkError, Message, MessageKind, ThreadLink, Threads};
use burn_pipeline::schedule::Size;
use burn_pipeline::stage::{Precision, SplitBackward};
use burn_pipeline::{Accumulation, Batch, Pipeline, Stage, StageBox, StageContext, StepReport};
use pipeline_tests::device::device;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Instant;

#[derive(Module, Debug)]
struct One {
    weight: Param<Tensor<2>>,
}

impl Stage for One {
    type Input = Tensor<2>;
    type Extra = ();
    type Output = Tensor<2>;

    fn forward(&self, x: Tensor<2>, (): ()) -> Tensor<2> {
        x.matmul(self.weight.val())
    }
}

#[test]
fn sums_of_many_bf16_gradients_keep_growing() {
    // In bf16, 256 + 1 is 256.
    let ones = |precision: Option<Precision>| {
        let builder = Pipeline::builder().schedule("GPipe", Size::new(1, 512)).devices(vec![device()]);
        let builder = builder.reduction(burn_pipeline::stage::Reduction::Sum);
        let builder = match precision {
            Some(precision) => builder.precision(precision),
            None => builder,
        };
        let stages = |at: &StageContext| {
            let weight = Param::from_tensor(Tensor::ones([1, 1], (&at.device, DType::BF16)));
            StageBox::with_loss(One { weight }, |y: Tensor<2>, _: Tensor<2>| y.sum())
        };
        let mut pipeline = builder.stages(stages).build().unwrap();
        let ones = || Tensor::<2>::ones([512, 1], (&device(), DType::BF16));
        pipeline.accumulate(Batch::new(ones()).target(ones())).unwrap();
        let gradients = pipeline.take_gradients().unwrap().concat();
        gradients[0].as_ref().unwrap().to_data().unwrap().iter::<f32>().next().unwrap()
    };
    assert_eq!((ones(None), ones(Some(Precision::bf16()))), (256.0, 512.0));
}

/// A link that counts the bytes that it sends, by kind of message.
struct Counting {
    link: ThreadLink,
    sent: Arc<Mutex<HashMap<MessageKind, usize>>>,
}

impl Link for Counting {
    burn_pipeline::forward_link!(link: rank, ranks, monitor, to_device, set_activity);
    burn_pipeline::forward_link!(link: receive, probe, all_gather, abort);

    fn send(&mut self, to: usize, message: Message, deadline: Instant) -> Result<(), LinkError> {
        *self.sent.lock().unwrap().entry(message.header.kind).or_default() += message.payload.bytes();
        self.link.send(to, message, deadline)
    }
}

/// The bytes of gradients, of their sums and of gathered parameters that two replicas of one rank send in a step.
fn sent(precision: Option<Precision>, sharded: bool) -> [usize; 3] {
    let builder = builder("1F1B", 1, 2, precision).accumulation(Accumulation::AsTheyCome).sharded(sharded);
    let threads = Threads::new(2);
    let rank = |rank: usize| {
        let sent = Arc::new(Mutex::new(HashMap::new()));
        let link = Counting { link: threads.link(rank, device()), sent: sent.clone() };
        let mut pipeline = builder.clone().build_rank(Box::new(link)).unwrap();
        // The first step gathers masters too, for `after_step`, which these stages lack.
        pipeline.step(batch(0), RATE).unwrap();
        sent.lock().unwrap().clear();
        pipeline.step(batch(1), RATE).unwrap();
        let sent = std::mem::take(&mut *sent.lock().unwrap());
        // Keeps every rank alive until all have finished.
        pipeline.weights().unwrap();
        [MessageKind::ReplicaGradient, MessageKind::ReplicaSum, MessageKind::ParameterShard]
            .map(|kind| sent.get(&kind).copied().unwrap_or_default())
    };
    let rank = &rank;
    std::thread::scope(|scope| {
        let other = scope.spawn(move || rank(1));
        let (own, other) = (rank(0), other.join().unwrap());
        std::array::from_fn(|kind| own[kind] + other[kind])
    })
}

#[test]
fn gathered_parameters_and_reductions_in_half_take_half_the_bytes_on_the_wire() {
    // Matrices with their biases, and the norms, which are kept.
    let (matrices, norms) = (LAYERS * (2 * 2 * WIDTH * WIDTH + 3 * WIDTH), LAYERS * 2 * WIDTH);
    // Each of two replicas sends half of each tensor to the other.
    let (wide, half) = (4 * (matrices + norms), 2 * matrices + 4 * norms);
    let bf16 = || precision(FloatDType::BF16, 1.0);
    assert_eq!(sent(None, false), [wide, wide, 0]);
    assert_eq!(sent(Some(bf16()), false), [wide, wide, 0]);
    assert_eq!(sent(Some(bf16().reduce_in_half()), false), [half, half, 0]);
    let [_, _, gathered] = sent(None, true);
    assert!(gathered > 0 && gathered.is_multiple_of(wide), "{gathered}");
    assert_eq!(sent(Some(bf16()), true), [wide, 0, gathered / wide * half]);
    assert_eq!(sent(Some(bf16().reduce_in_half()), true), [half, 0, gathered / wide * half]);
}

#[test]
fn messages_and_held_activations_take_half_the_bytes_and_weights_are_masters_and_copies() {
    let step = |half: Option<Precision>| {
        let dtype = if half.is_some() { DType::BF16 } else { DType::F32 };
        let builder = Pipeline::builder().schedule("ZBH1", Size::new(2, MICROBATCHES)).devices(vec![device()]);
        let builder = builder.split(SplitBackward::Captured).optimizer(|| AdamWConfig::new().init());
        let builder = half.map_or(builder.clone(), |half| builder.precision(half));
        let stages = |at: &StageContext| {
            let part = One { weight: Param::from_tensor(Tensor::ones([WIDTH, WIDTH], &at.device)) };
            if at.is_last() {
                StageBox::with_loss(part, |y: Tensor<2>, _: Tensor<2>| y.mean())
            } else {
                StageBox::new(part)
            }
        };
        let mut pipeline = builder.stages(stages).build().unwrap();
        let ones = || Tensor::<2>::ones([SAMPLES, WIDTH], (&device(), dtype));
        let mut step = || pipeline.step(Batch::new(ones()).target(ones()), RATE).unwrap();
        step();
        step()
    };
    let [half, full] = [step(Some(Precision::bf16())), step(None)];
    assert_eq!(half.message_bytes[0] * 2, full.message_bytes[0]);
    let held = |report: &StepReport| report.peak_held_bytes.iter().map(|bytes| bytes.unwrap()).collect::<Vec<_>>();
    assert!(held(&full).iter().all(|bytes| *bytes > 0));
    // Besides activations, a captured stage holds its weight for `I`.
    for (half, full) in held(&half).into_iter().zip(held(&full)) {
        assert_eq!(2 * half, full);
    }
    // Four bytes of a master and two of its copy.
    let copied: Vec<usize> = full.weight_bytes.iter().map(|bytes| bytes / 4 * 6).collect();
    assert_eq!(half.weight_bytes, copied);
}
