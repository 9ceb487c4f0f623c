//! A failure in one replica ends all of them with an error that names it. Features that do not work with expert
//! parallelism are refused.

use super::{on, parallel_config};
use burn::grad_clipping::GradientClippingConfig;
use burn::module::Module;
use burn::optim::SgdConfig;
use burn::tensor::{Device, Tensor};
use burn_pipeline::link::{TcpLink, Threads};
use burn_pipeline::stage::{Accumulation, SplitBackward, Stage, StageBox};
use burn_pipeline::tensor_parallel::TensorGroup;
use burn_pipeline::train::{AutoOptions, PipelineError};
use burn_pipeline::{AutoPipeline, Batch, Builder, Pipeline, Size, StageContext};
use burn_pipeline_moe::layers::{MixtureOfExperts, MixtureOfExpertsConfig};
use burn_pipeline_moe::router::Capacity;
use std::time::{Duration, Instant};

const TIMEOUT: Duration = Duration::from_secs(4);

/// What replica 1 of stage 1 does wrong.
#[derive(Clone, Copy, Debug, PartialEq)]
enum How {
    Nothing,
    Panic,
    Stall,
    OneMore,
}

#[derive(Module, Debug)]
struct Layer {
    experts: MixtureOfExperts,
    #[module(skip)]
    replicas: TensorGroup,
    #[module(skip)]
    how: How,
}

impl Stage for Layer {
    type Input = Tensor<3>;
    type Extra = ();
    type Output = Tensor<3>;

    fn forward(&self, x: Tensor<3>, (): ()) -> Tensor<3> {
        match self.how {
            How::Nothing => {}
            How::Panic => panic!("a broken forward"),
            How::Stall => std::thread::sleep(3 * TIMEOUT),
            How::OneMore => drop(self.replicas.all_to_all(x.clone(), 1)),
        }
        x.clone() + self.experts.forward(x).0
    }

    fn skip_capture(&self) -> Option<&'static str> {
        self.experts.skip_capture()
    }
}

fn layer(at: &StageContext, capacity: Capacity, how: How) -> Layer {
    let config = MixtureOfExpertsConfig::new(4, 4, 4).with_capacity(capacity);
    let experts = config.init(&at.device).cut(&at.group).expert_parallel(&at.replicas);
    let how = if at.index == 1 && at.replicas.member() == 1 { how } else { How::Nothing };
    Layer { experts, replicas: at.replicas.clone(), how }
}

fn stage(at: &StageContext, layer: Layer) -> StageBox {
    match at.is_last() {
        false => StageBox::new(layer),
        true => StageBox::with_loss(layer, |y: Tensor<3>, t: Tensor<3>| (y - t).square().mean()),
    }
}

/// Two replicas of two pipeline ranks, four microbatches in all.
fn small(capacity: Capacity, how: How) -> Builder {
    Pipeline::builder()
        .schedule("ZBH1", Size::new(2, 2))
        .devices(vec![Device::flex()])
        .stages(move |at| stage(at, layer(at, capacity, how)))
        .optimizer(|| SgdConfig::new().init())
        .timeout(TIMEOUT)
        .data_parallel(2)
}

const FULL: Capacity = Capacity::Factor(2.0);

fn batch(samples: usize) -> Batch {
    let x = Tensor::<3>::ones([samples, 4, 4], &Device::flex());
    Batch::new(x.clone()).target(x)
}

/// Returns the error of a step, which must come well before the watchdog's. The next step fails in the same way,
/// unless the rank was silent: then the pipeline is closed.
fn fails(builder: Builder, samples: usize) -> (String, Duration) {
    let mut pipeline = builder.build().unwrap();
    let began = Instant::now();
    let error = pipeline.step(batch(samples), 0.1).unwrap_err().to_string();
    let took = began.elapsed();
    println!("{took:?}: {error}\n");
    assert!(took < 3 * TIMEOUT, "{took:?}");
    match pipeline.step(batch(samples), 0.1).unwrap_err() {
        PipelineError::Closed(_) => assert!(error.contains("did not answer"), "{error}"),
        again => assert!(matches!(again, PipelineError::Undone { .. }), "{again}"),
    }
    (error, took)
}

#[test]
fn a_replica_that_panics_is_named_at_once() {
    for (capacity, split) in [(FULL, SplitBackward::Auto), (Capacity::Dropless, SplitBackward::Eager)] {
        let (error, took) = fails(small(capacity, How::Panic).split(split), 8);
        let words = "rank 3, stage 1, microbatch 0, F: the stage's code panicked: a broken forward";
        assert!(error.starts_with(words), "{error}");
        assert!(took < TIMEOUT, "{took:?}");
    }
}

#[test]
fn a_replica_that_stalls_is_named_at_the_timeout() {
    let (error, _) = fails(small(FULL, How::Stall), 8);
    assert!(error.contains("rank 3") && error.contains("did not answer"), "{error}");
}

#[test]
fn replicas_in_other_exchanges_are_named_with_both() {
    let (error, took) = fails(small(FULL, How::OneMore), 8);
    let words = [
        "1F0: ranks of stage 1 call different collectives in F",
        "`all-to-all along axis 0 over 2 replicas of [4, 8, 4] F32` on member 0 of replica 0",
        "`all-to-all along axis 1 over 2 replicas of [2, 4, 4] F32` on member 0 of replica 1",
    ];
    assert!(words.iter().all(|words| error.contains(words)), "{error}");
    assert!(took < TIMEOUT, "{took:?}");
}

#[test]
fn with_a_capacity_microbatches_of_other_sizes_are_named_with_both() {
    // Replica 0 has microbatches of two samples, replica 1 of one.
    for (split, over) in [(SplitBackward::Auto, " over 2 replicas"), (SplitBackward::Eager, "")] {
        let (error, took) = fails(small(FULL, How::Nothing).split(split), 6);
        let words = [
            format!("all-to-all along axis 0{over} of [4, 8, 4] F32"),
            format!("all-to-all along axis 0{over} of [4, 4, 4] F32"),
            "replicas need equally many".to_owned(),
        ];
        let words = match split {
            SplitBackward::Auto => &words[..],
            _ => &words[..2],
        };
        assert!(words.iter().all(|words| error.contains(words)) && error.contains("equally many"), "{error}");
        assert!(took < TIMEOUT, "{took:?}");
    }
    small(Capacity::Dropless, How::Nothing).build().unwrap().step(batch(6), 0.1).unwrap();
}

#[test]
fn a_process_that_leaves_its_replicas_over_tcp_is_named() {
    let threads = Threads::new(4);
    let errors: Vec<String> = std::thread::scope(|scope| {
        let rank = |rank: usize| {
            let threads = threads.clone();
            scope.spawn(move || {
                let mut first = threads.link(rank, Device::flex());
                let link = TcpLink::by_link(&mut first, Device::flex(), Duration::from_secs(20)).unwrap();
                let mut pipeline = small(Capacity::Dropless, How::Nothing).build_rank(Box::new(link)).unwrap();
                // A slower rank may learn of the failure in its first step, when others are in their second.
                let steps = if rank == 3 { 1 } else { 2 };
                let error = (0..steps).find_map(|_| pipeline.step(batch(8), 0.1).err());
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

#[test]
fn unequal_shares_are_refused_and_the_pipeline_goes_on() {
    let mut pipeline = small(Capacity::Dropless, How::Nothing).build().unwrap();
    let errors = [pipeline.step(batch(3), 0.1).unwrap_err(), pipeline.eval(batch(1)).unwrap_err()];
    for (error, microbatches) in errors.iter().zip([3, 1]) {
        let words = format!("{microbatches} microbatches cannot be shared evenly by 2 data-parallel replicas");
        assert!(error.to_string().starts_with(&words), "{error}");
    }
    pipeline.step(batch(4), 0.1).unwrap();
    pipeline.eval(batch(2)).unwrap();
}

#[test]
fn choices_that_do_not_work_with_spread_experts_are_refused_at_the_start() {
    let grid = (1, 2, 1);
    let built = |change: fn(Builder) -> Builder| {
        change(on(&parallel_config(Capacity::Dropless), ("1F1B", 1), grid)).build().unwrap_err().to_string()
    };
    let clipping = |builder: Builder| {
        let clipping = || SgdConfig::new().with_gradient_clipping(Some(GradientClippingConfig::Norm(0.1))).init();
        builder.optimizer(clipping)
    };
    for (error, words) in [
        (built(|builder| builder.accumulation(Accumulation::Ordered)), "`Accumulation::Ordered` cannot add one by one"),
        (built(clipping), "does not step each element by itself"),
        (built(|builder| builder.data_parallel(3)), "cannot be cut evenly over the 3 ranks of a group"),
    ] {
        assert!(error.contains(words), "{error}");
    }
    let backwards = small(FULL, How::Nothing).tensor_parallel(2).stages(|at| {
        let experts = MixtureOfExpertsConfig::new(4, 4, 4).init(&at.device);
        let experts = experts.expert_parallel(&at.replicas).cut(&at.group);
        stage(at, Layer { experts, replicas: at.replicas.clone(), how: How::Nothing })
    });
    let error = backwards.build().unwrap_err().to_string();
    assert!(error.contains("call `cut` before `expert_parallel`"), "{error}");
    for (other_way, words) in [
        (
            (|experts, at| MixtureOfExperts::expert_parallel(experts, &at.group))
                as fn(MixtureOfExperts, &StageContext) -> MixtureOfExperts,
            "give it `StageContext::replicas`",
        ),
        (|experts, at| MixtureOfExperts::cut(experts, &at.replicas), "give it `StageContext::group`"),
    ] {
        let swapped = small(FULL, How::Nothing).tensor_parallel(2).stages(move |at| {
            let experts = other_way(MixtureOfExpertsConfig::new(4, 4, 4).init(&at.device), at);
            stage(at, Layer { experts, replicas: at.replicas.clone(), how: How::Nothing })
        });
        let error = swapped.build().unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
    let auto = AutoPipeline::new(small(FULL, How::Nothing), Size::new(2, 2), AutoOptions::default());
    let error = auto.err().unwrap().to_string();
    assert!(error.contains("`AutoPipeline` does not work with a weight cut over data-parallel replicas"), "{error}");
}

#[test]
fn calls_that_need_whole_experts_are_refused_and_the_pipeline_goes_on() {
    let mut pipeline = small(FULL, How::Nothing).build().unwrap();
    let said = [
        pipeline.replace_module(0, |layer: Layer, _| layer).unwrap_err().to_string(),
        pipeline.step_to(Default::default(), Vec::new()).unwrap_err().to_string(),
    ];
    for (said, what) in said.iter().zip(["`Pipeline::replace_module`", "`Pipeline::step_to`"]) {
        assert!(said.contains(what) && said.contains("cut over data-parallel replicas"), "{said}");
    }
    pipeline.step(batch(8), 0.1).unwrap();
}
