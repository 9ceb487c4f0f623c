//! A failure in one rank of a tensor-parallel group ends all ranks in time, with an error that names the rank.

use burn::module::Module;
use burn::nn::LinearConfig;
use burn::optim::SgdConfig;
use burn::tensor::{Device, Tensor};
use burn_pipeline::link::{TcpLink, Threads};
use burn_pipeline::nn::{ColumnLinear, RowLinear};
use burn_pipeline::stage::{SplitBackward, Stage, StageBox, init_seeded};
use burn_pipeline::tensor_parallel::TensorGroup;
use burn_pipeline::train::{GroupSizes, PipelineError};
use burn_pipeline::{Batch, Builder, Pipeline, Size, StageContext};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

pub(crate) const TIMEOUT: Duration = Duration::from_secs(4);

/// What member 1 of stage 1 does wrong.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum How {
    Nothing,
    Panic,
    /// Panics while [`BROKEN`] is set.
    PanicForAWhile,
    PanicInBackward,
    Stall,
    OtherOrder,
    OtherShape,
    OneMore,
    OneMoreInBackward,
    OneLayerMore,
    NoReduce,
    NoCopy,
    RandomUnseen,
}

/// Makes [`How::PanicForAWhile`] panic.
static BROKEN: AtomicBool = AtomicBool::new(false);

#[derive(Module, Debug)]
struct Layer {
    up: ColumnLinear,
    down: RowLinear,
    #[module(skip)]
    group: TensorGroup,
    #[module(skip)]
    how: How,
}

impl Stage for Layer {
    type Input = Tensor<2>;
    type Extra = ();
    type Output = Tensor<2>;

    fn forward(&self, x: Tensor<2>, (): ()) -> Tensor<2> {
        let (group, one) = (&self.group, x.clone().slice([0..1, 0..1]));
        match self.how {
            How::Nothing | How::PanicInBackward | How::OneLayerMore => {}
            How::Panic => panic!("a broken forward"),
            How::PanicForAWhile => assert!(!BROKEN.load(Ordering::SeqCst), "a broken forward"),
            How::Stall => std::thread::sleep(3 * TIMEOUT),
            How::OtherOrder => return group.all_gather(self.up.forward(x), 1),
            How::OtherShape => return x + group.reduce_from(one),
            How::OneMore => drop(group.reduce_from(x.clone())),
            // Sums the gradient of the input once more.
            How::OneMoreInBackward => return self.down.forward(self.up.forward(group.copy_to(x))),
            How::NoReduce => return self.down.linear.forward(self.up.forward(x)),
            How::NoCopy => return self.down.forward(self.up.linear.forward(x)),
            How::RandomUnseen => {
                // It cannot be recorded, so its random numbers go unnoticed.
                let _ = x.clone().mean().into_scalar::<f32>();
                return x.random_like(burn::tensor::Distribution::Default);
            }
        }
        let y = self.down.forward(self.up.forward(x));
        let y = if self.how == How::OneLayerMore { self.down.forward(self.up.forward(y)) } else { y };
        if self.how == How::PanicInBackward { broken::backward(y, self.down.linear.weight.val()) } else { y }
    }
}

/// An operation whose backward panics.
mod broken {
    use burn::backend::DispatchTensor;
    use burn::tensor::Tensor;
    use burn_pipeline::ops::{DeferredOp, deferred};

    #[derive(Debug)]
    struct Broken;

    impl DeferredOp for Broken {
        fn name(&self) -> &'static str {
            "broken"
        }

        fn forward(&self, operands: &[DispatchTensor]) -> DispatchTensor {
            operands[0].clone()
        }

        fn gradient(&self, _: usize, _: &[DispatchTensor], _: &DispatchTensor) -> DispatchTensor {
            panic!("a broken backward")
        }
    }

    pub(super) fn backward(y: Tensor<2>, weight: Tensor<2>) -> Tensor<2> {
        Tensor::from_dispatch(deferred(Broken, vec![y.into_dispatch(), weight.into_dispatch()]))
    }
}

/// A stage of one layer that behaves as `how` says.
pub(crate) fn layer(at: &StageContext, how: How) -> StageBox {
    let linear =
        |seed| init_seeded(2 * at.index as u64 + seed, &at.device, |device| LinearConfig::new(4, 4).init(device));
    let (up, down) = (ColumnLinear::cut(linear(0), &at.group), RowLinear::cut(linear(1), &at.group));
    let layer = Layer { up, down, group: at.group.clone(), how };
    match at.is_last() {
        false => StageBox::new(layer),
        true => StageBox::with_loss(layer, |y: Tensor<2>, t: Tensor<2>| (y - t).square().mean()),
    }
}

fn builder(how: How, split: SplitBackward) -> Builder {
    builder_over(how, split, 2)
}

/// Two pipeline ranks with groups of these sizes.
pub(crate) fn builder_over(how: How, split: SplitBackward, sizes: impl Into<GroupSizes>) -> Builder {
    Pipeline::builder()
        .schedule("ZBH1", Size::new(2, 4))
        .devices(vec![Device::flex()])
        .stages(move |at| layer(at, if at.index == 1 && at.group.member() == 1 { how } else { How::Nothing }))
        .optimizer(|| SgdConfig::new().init())
        .split(split)
        .timeout(TIMEOUT)
        .tensor_parallel(sizes)
}

pub(crate) fn batch() -> Batch {
    let x = Tensor::<2>::ones([8, 4], &Device::flex());
    Batch::new(x.clone()).target(x)
}

/// Returns the error of a step, which must come well before the watchdog's. The next step fails in the same way,
/// unless the rank was silent: then the pipeline is closed.
fn fails(how: How, split: SplitBackward) -> (String, Duration) {
    fails_over(how, split, 2)
}

pub(crate) fn fails_over(how: How, split: SplitBackward, sizes: impl Into<GroupSizes>) -> (String, Duration) {
    let mut pipeline = builder_over(how, split, sizes).build().unwrap();
    let began = Instant::now();
    let error = pipeline.step(batch(), 0.1).unwrap_err().to_string();
    let took = began.elapsed();
    println!("{how:?}, {split:?}, {took:?}: {error}\n");
    assert!(took < 3 * TIMEOUT, "{how:?}: {took:?}");
    match pipeline.step(batch(), 0.1).unwrap_err() {
        PipelineError::Closed(_) => assert_eq!(how, How::Stall),
        again => assert!(matches!(again, PipelineError::Undone { .. }), "{again}"),
    }
    (error, took)
}

/// The members of a captured stage compare their first forwards; here one fails before it can compare.
#[test]
fn a_member_that_panics_once_leaves_no_trace() {
    let values = |pipeline: &mut Pipeline| -> Vec<f32> {
        let weights = pipeline.weights().unwrap().concat();
        weights.iter().flat_map(|weight| weight.to_data().unwrap().iter::<f32>().collect::<Vec<_>>()).collect()
    };
    for split in [SplitBackward::Eager, SplitBackward::Auto, SplitBackward::Captured] {
        for (failing, member) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
            let stages = move |at: &StageContext| {
                let fails = at.index == failing && at.group.member() == member;
                layer(at, if fails { How::PanicForAWhile } else { How::Nothing })
            };
            let make = || builder(How::Nothing, split).stages(stages).timeout(Duration::from_secs(30)).build().unwrap();
            let (mut pipeline, mut twin) = (make(), make());
            BROKEN.store(true, Ordering::SeqCst);
            for _ in 0..2 {
                let error = pipeline.step(batch(), 0.1).unwrap_err();
                assert!(matches!(error, PipelineError::Undone { dropped: true, .. }), "{error}");
                assert!(error.to_string().contains("a broken forward"), "{error}");
                assert!(matches!(pipeline.eval(batch()), Err(PipelineError::Undone { dropped: false, .. })));
            }
            BROKEN.store(false, Ordering::SeqCst);
            for one in [&mut pipeline, &mut twin] {
                (0..2).for_each(|_| drop(one.step(batch(), 0.1).unwrap()));
            }
            assert!(values(&mut pipeline) == values(&mut twin), "{split:?}, stage {failing}, member {member}");
        }
    }
}

#[test]
fn a_member_that_panics_is_named_at_once() {
    for split in [SplitBackward::Eager, SplitBackward::Auto] {
        let (error, took) = fails(How::Panic, split);
        assert!(
            error.starts_with("rank 3, stage 1, microbatch 0, F: the stage's code panicked: a broken forward"),
            "{error}"
        );
        assert!(took < TIMEOUT, "{took:?}");
    }
    let (error, took) = fails(How::PanicInBackward, SplitBackward::Eager);
    assert!(
        error.starts_with("rank 3, stage 1, microbatch 0, I: the stage's code panicked: a broken backward"),
        "{error}"
    );
    assert!(took < TIMEOUT, "{took:?}");
}

#[test]
fn a_member_that_stalls_is_named_at_the_timeout() {
    let (error, _) = fails(How::Stall, SplitBackward::Eager);
    assert!(error.contains("rank 3") && error.contains("did not answer"), "{error}");
}

#[test]
fn members_in_other_collectives_are_named_with_both() {
    for (how, words) in [
        (How::OtherOrder, "1F0, all-gather along axis 1 of [2, 2] F32"),
        (How::OtherShape, "1F0, all-reduce of [1, 1] F32"),
    ] {
        let (error, took) = fails(how, SplitBackward::Eager);
        assert!(error.contains("1F0, all-reduce of [2, 4] F32") && error.contains(words), "{error}");
        assert!(took < TIMEOUT, "{took:?}");
    }
}

#[test]
fn members_that_record_other_collectives_are_refused_before_any_of_them_runs() {
    let (sum, first, second) = ("`all-reduce over 2 ranks of [2, 4] F32`", "on member 0", "on member 1");
    for (how, place, words) in [
        (
            How::OtherOrder,
            "1F0: ranks of stage 1 call different collectives in F",
            [
                format!("number 1 is {sum} {first}"),
                format!("number 1 is `all-gather along axis 1 over 2 ranks of [2, 2] F32` {second}"),
            ],
        ),
        (
            How::OtherShape,
            "1F0",
            [
                format!("number 1 is {sum} {first}"),
                format!("number 1 is `all-reduce over 2 ranks of [1, 1] F32` {second}"),
            ],
        ),
        (How::OneMore, "1F0", [format!("there is no number 2 {first}"), format!("number 2 is {sum} {second}")]),
        (How::OneLayerMore, "1F0", [format!("there is no number 2 {first}"), format!("number 2 is {sum} {second}")]),
        (
            How::NoCopy,
            "1I0: ranks of stage 1 call different collectives in I",
            [format!("number 1 is {sum} {first}"), format!("there is no number 1 {second}")],
        ),
    ] {
        for compile in [false, true] {
            let mut pipeline = builder(how, SplitBackward::Captured).compile(compile).build().unwrap();
            let began = Instant::now();
            let error = pipeline.step(batch(), 0.1).unwrap_err().to_string();
            println!("{how:?}, compiled {compile}, {:?}: {error}\n", began.elapsed());
            let ranks = error.contains("ranks [2, 3]") || error.contains("ranks [3, 2]");
            let said = ranks && error.contains(place) && words.iter().all(|words| error.contains(words));
            assert!(said, "{how:?}: {error}");
            // Nobody waits for what never comes.
            assert!(began.elapsed() < TIMEOUT / 2, "{:?}", began.elapsed());
        }
    }
}

#[test]
fn one_collective_too_many_is_an_error() {
    let (error, _) = fails(How::OneMore, SplitBackward::Eager);
    assert!(error.contains("rank 2") && error.contains("rank 3"), "{error}");
}

#[test]
fn one_collective_too_many_at_the_end_of_a_row_is_an_error_at_once() {
    for (how, trains) in [(How::OneMoreInBackward, true), (How::OneMore, false)] {
        // One microbatch: no other collective follows in the row.
        let builder = builder(how, SplitBackward::Eager).schedule("GPipe", Size::new(2, 1));
        let mut pipeline = builder.build().unwrap();
        let began = Instant::now();
        let error = match trains {
            true => pipeline.step(batch(), 0.1).map(drop).unwrap_err(),
            false => pipeline.eval(batch()).map(drop).unwrap_err(),
        };
        let (error, took) = (error.to_string(), began.elapsed());
        println!("{how:?}, {took:?}: {error}\n");
        let words = ["rank 2", "rank 3", "the end of its row", "a member of the same group"];
        assert!(words.iter().all(|words| error.contains(words)), "{error}");
        assert!(took < TIMEOUT / 2, "{took:?}");
    }
}

#[test]
fn members_whose_losses_differ_are_refused() {
    for (how, split) in [
        (How::RandomUnseen, SplitBackward::Eager),
        (How::NoReduce, SplitBackward::Eager),
        (How::NoReduce, SplitBackward::Captured),
    ] {
        // Both members draw their own numbers, or omit the sum.
        let mut pipeline = builder(how, split)
            .stages(move |at| layer(at, if at.is_last() { how } else { How::Nothing }))
            .build()
            .unwrap();
        let error = pipeline.step(batch(), 0.1).unwrap_err().to_string();
        assert!(
            error.contains("ranks 2 and 3 of the last stage's tensor-parallel group computed the losses"),
            "{error}"
        );
    }
}

#[test]
fn members_whose_weights_would_drift_are_refused_in_the_first_step() {
    for split in [SplitBackward::Eager, SplitBackward::Captured] {
        // The last stage omits the sum of its input's gradient over members, so the first stage's biases differ. No
        // loss shows it.
        let mut pipeline = builder(How::Nothing, split)
            .stages(move |at| layer(at, if at.is_last() { How::NoCopy } else { How::Nothing }))
            .build()
            .unwrap();
        let error = pipeline.step(batch(), 0.1).unwrap_err().to_string();
        let words = "ranks 0 and 1 of stage 0's tensor-parallel group computed different gradients of `";
        assert!(error.contains(words) && error.contains("bias"), "{error}");
        let again = pipeline.step(batch(), 0.1).unwrap_err().to_string();
        assert!(again.contains(words), "{again}");
    }
}

#[test]
fn a_factory_that_panics_or_a_layer_that_cannot_be_cut_ends_all_ranks() {
    let built = |columns: usize| {
        let builder = builder(How::Nothing, SplitBackward::Eager).stages(move |at| {
            assert!(columns != 4 || at.rank != 1, "a broken factory");
            let up = ColumnLinear::cut(LinearConfig::new(4, columns).init(&at.device), &at.group);
            let down = RowLinear::cut(LinearConfig::new(columns, 4).init(&at.device), &at.group);
            StageBox::new(Layer { up, down, group: at.group.clone(), how: How::Nothing })
        });
        builder.build().unwrap_err().to_string()
    };
    let error = built(4);
    assert!(error.contains("rank 1") && error.contains("a broken factory"), "{error}");
    let error = built(5);
    assert!(error.contains("cannot be cut evenly over the 2 ranks of a group"), "{error}");
}

#[test]
fn a_process_that_leaves_a_group_over_tcp_is_named() {
    let threads = Threads::new(4);
    let errors: Vec<String> = std::thread::scope(|scope| {
        let rank = |rank: usize| {
            let threads = threads.clone();
            scope.spawn(move || {
                let mut first = threads.link(rank, Device::flex());
                let link = TcpLink::by_link(&mut first, Device::flex(), Duration::from_secs(20)).unwrap();
                let builder = builder(How::Nothing, SplitBackward::Auto);
                let mut pipeline = builder.build_rank(Box::new(link)).unwrap();
                // A slower rank may learn of the failure in its first step, when others are in their second.
                let steps = if rank == 3 { 1 } else { 2 };
                let error = (0..steps).find_map(|_| pipeline.step(batch(), 0.1).err());
                error.map(|error| error.to_string()).unwrap_or_default()
            })
        };
        let ranks: Vec<_> = (0..4).map(rank).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    });
    for error in &errors[..3] {
        assert!(error.contains("rank 3"), "{error}");
    }
}
