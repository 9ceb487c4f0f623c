//! When a device runs out of memory or is lost, the step ends on all ranks with an error that says where.

use crate::{devices, turn};
use burn::module::{Module, Param};
use burn::optim::{ModuleOptimizer, Optimizer, SgdState};
use burn::tensor::{Device, Tensor};
use burn_pipeline::cost::{LinkCosts, Profile, StageCost};
use burn_pipeline::link::{TcpLink, Threads};
use burn_pipeline::schedule::Size;
use burn_pipeline::stage::{Batch, SplitBackward, Stage, StageBox};
use burn_pipeline::train::{Builder, Pipeline, PipelineError, StageContext};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

const MICROBATCHES: usize = 2;
/// A tebibyte of floats.
const LARGE: [usize; 2] = [1 << 19, 1 << 19];

/// The part of a stage that allocates a tebibyte.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Greedy {
    #[default]
    Nothing,
    Forward,
    Backward,
}

/// Makes a stage greedy from one of its forwards on.
#[derive(Clone, Debug, Default)]
struct Appetite {
    of: Greedy,
    from: usize,
    forwards: Arc<AtomicUsize>,
}

#[derive(Module, Debug)]
struct Scaled {
    factors: Param<Tensor<1>>,
    #[module(skip)]
    appetite: Appetite,
}

impl Stage for Scaled {
    type Input = Tensor<1>;
    type Extra = ();
    type Output = Tensor<1>;

    fn forward(&self, x: Tensor<1>, (): ()) -> Tensor<1> {
        let Appetite { of, from, forwards } = &self.appetite;
        let asks = forwards.fetch_add(1, Ordering::Relaxed) >= *from;
        let y = x * self.factors.val();
        let corner = |large: Tensor<2>| large.slice([0..1, 0..4]).reshape([4]);
        match of {
            Greedy::Forward if asks => y.clone() + corner(Tensor::ones(LARGE, &y.device())),
            // The forward reads a view; the backward allocates a gradient for the whole tensor.
            Greedy::Backward if asks => y * corner(self.factors.val().narrow(0, 0, 1).reshape([1, 1]).expand(LARGE)),
            _ => y,
        }
    }

    fn skip_capture(&self) -> Option<&'static str> {
        Some("it counts its forwards")
    }
}

/// Two stages; `stage` is the greedy one.
fn builder(devices: Vec<Device>, stage: usize, of: Greedy, from: usize) -> Builder {
    let make = move |at: &StageContext| {
        let of = if at.index == stage { of } else { Greedy::Nothing };
        let appetite = Appetite { of, from, ..Appetite::default() };
        let scaled = Scaled { factors: Param::from_tensor(Tensor::ones([4], &at.device)), appetite };
        match at.is_last() {
            true => StageBox::with_loss(scaled, |y: Tensor<1>, target: Tensor<1>| (y - target).square().mean()),
            false => StageBox::new(scaled),
        }
    };
    // On rank r: (r + 1) * 100 bytes of weights, and (r + 1) * 10 bytes per microbatch.
    let cost = |r: f64| StageCost {
        forward: 1.0,
        backward: Some(2.0),
        weight_bytes: 100.0 * r,
        activation_bytes: 10.0 * r,
        ..StageCost::default()
    };
    let profile = Profile::new(vec![cost(1.0), cost(2.0)], LinkCosts::default()).unwrap();
    let builder = Pipeline::builder().schedule("1F1B", Size::new(2, MICROBATCHES)).devices(devices);
    builder.split(SplitBackward::Eager).planned_with(profile).stages(make)
}

fn batch(device: &Device) -> Batch {
    let ones = Tensor::<1>::ones([4 * MICROBATCHES], device);
    Batch::new(ones.clone()).target(ones * 2.0)
}

/// The first rank holds two microbatches at once, the last one holds one.
fn assert_says_where(error: &str, rank: usize, place: &str) {
    let predicted = [100 + 2 * 10, 200 + 20][rank];
    let wanted = [
        format!("rank {rank}, stage {rank}, {place}"),
        "out of memory on ".to_owned(),
        ": can't allocate buffer of size: 1099511627776".to_owned(),
        format!("predicted to take {predicted} bytes on this rank"),
    ];
    assert!(wanted.iter().all(|wanted| error.contains(wanted)), "{wanted:?}: {error}");
}

#[test]
fn running_out_of_memory_names_rank_stage_microbatch_and_the_bytes_that_were_predicted() {
    let _turn = turn();
    let later = 3 * MICROBATCHES;
    let cases = [
        (0, Greedy::Forward, 0, "microbatch 0, F"),
        (1, Greedy::Forward, 1, "microbatch 1, F"),
        // The first stage sends no gradient.
        (0, Greedy::Backward, 1, "microbatch 1, B"),
        (1, Greedy::Backward, 0, "microbatch 0, B"),
        // Later rows are not checked after every task, so the first rank may report the last one's failure.
        (0, Greedy::Backward, later, "in one of the microbatches"),
    ];
    for device in devices() {
        for (stage, of, from, place) in cases {
            if cfg!(feature = "fusion") && from < later {
                // With fusion, tasks are not checked one by one: a sync would split fused groups.
                continue;
            }
            let mut pipeline = builder(vec![device.clone()], stage, of, from).build().unwrap();
            for _ in 0..from / MICROBATCHES {
                pipeline.accumulate(batch(&device)).unwrap();
            }
            let error = pipeline.accumulate(batch(&device)).unwrap_err().to_string();
            assert_says_where(&error, stage, place);
            let again = pipeline.accumulate(batch(&device)).unwrap_err().to_string();
            // No weight has changed, so the pipeline takes the next batch, which allocates as much.
            assert_says_where(&again, stage, "");
        }
    }
}

#[test]
fn a_message_that_cannot_be_read_for_lack_of_memory_names_its_task_and_ends_only_the_call() {
    let _turn = turn();
    for device in devices() {
        let threads = Threads::new(2);
        std::thread::scope(|scope| {
            for rank in 0..2 {
                let (mut link, device) = (threads.link(rank, device.clone()), &device);
                scope.spawn(move || {
                    let link = TcpLink::by_link(&mut link, device.clone(), Duration::from_secs(20)).unwrap();
                    // Rows after the second are not checked after every task.
                    let builder = builder(vec![device.clone()], 0, Greedy::Forward, 3 * MICROBATCHES);
                    let mut pipeline = builder.build_rank(Box::new(link)).unwrap();
                    (0..3).for_each(|_| drop(pipeline.accumulate(batch(device)).unwrap()));
                    for _ in 0..2 {
                        let error = pipeline.accumulate(batch(device)).unwrap_err();
                        assert!(matches!(error, PipelineError::Undone { .. }), "{error}");
                        assert_says_where(&error.to_string(), 0, "microbatch 0, SEND_F");
                    }
                });
            }
        });
    }
}

/// Plain gradient descent that allocates a tebibyte on one rank.
#[derive(Clone)]
struct Hungry {
    rank: usize,
}

impl Optimizer for Hungry {
    type State<const D: usize> = SgdState<D>;

    fn step<const D: usize>(
        &self,
        rate: f64,
        weight: Tensor<D>,
        gradient: Tensor<D>,
        state: Option<SgdState<D>>,
    ) -> (Tensor<D>, Option<SgdState<D>>) {
        let weight = weight - gradient.mul_scalar(rate);
        let hungry =
            std::thread::current().name().is_some_and(|name| name.starts_with(&format!("rank {} ", self.rank)));
        if !hungry {
            return (weight, state);
        }
        let shape = weight.shape();
        let more = Tensor::<2>::ones(LARGE, &weight.device()).slice([0..1, 0..shape.num_elements()]).reshape(shape);
        (weight + more, state)
    }

    fn to_device<const D: usize>(state: SgdState<D>, _: &Device) -> SgdState<D> {
        state
    }
}

#[test]
fn an_optimizer_that_runs_out_of_memory_ends_the_step_and_is_named() {
    let _turn = turn();
    for device in devices() {
        for rank in 0..2 {
            let builder = builder(vec![device.clone()], 0, Greedy::Nothing, 0);
            let mut pipeline = builder.optimizer(move || ModuleOptimizer::from(Hungry { rank })).build().unwrap();
            let error = pipeline.step(batch(&device), 0.1).unwrap_err().to_string();
            assert_says_where(&error, rank, "stepping its weights in step 1");
        }
    }
}

/// Loses a device after the first batch: that of the rank named in the environment, or of both ranks.
#[cfg(feature = "wgpu")]
fn lose(rank: &str) {
    use burn::tensor::DeviceKind;
    let (mortal, setup) = Device::wgpu_options().device_kind(DeviceKind::Cpu).init_with_setup().unwrap();
    let other = Device::wgpu(DeviceKind::DefaultDevice);
    let of = |at: &str| if rank == at || rank == "both" { mortal.clone() } else { other.clone() };
    let mut pipeline = builder(vec![of("0"), of("1")], 0, Greedy::Nothing, 0).build().unwrap();
    pipeline.accumulate(batch(&other)).unwrap();
    setup.device.destroy();
    let began = std::time::Instant::now();
    let error = pipeline.accumulate(batch(&other)).unwrap_err().to_string();
    assert!(began.elapsed() < std::time::Duration::from_secs(30), "{:?}", began.elapsed());
    let again = pipeline.accumulate(batch(&other)).unwrap_err().to_string();
    assert!(again.contains("was closed by an earlier failure"), "{again}");
    println!("{mortal:?}: {error}");
    println!("named: {}", error.contains(&format!("{mortal:?} is lost")));
}

#[cfg(feature = "wgpu")]
#[test]
fn a_lost_device_is_named_and_ends_all_ranks() {
    use crate::refusals::{CHILD, printed_by_child};
    if let Ok(rank) = std::env::var(CHILD) {
        return lose(&rank);
    }
    for rank in ["both", "0", "1"] {
        let printed = printed_by_child("lacking::a_lost_device_is_named_and_ends_all_ranks", &[(CHILD, rank)]);
        // Each rank reads tensors on the other rank's device and may fail there first. Then the process only checks
        // that all ranks end.
        assert!(rank != "both" || printed.contains("named: true"), "{rank}: {printed}");
    }
}
