//! Over links that cannot look ahead, sums of gradients keep their turn between the exchanges of experts.

use super::parallel_config;
use crate::cases::{Text, builder, floats};
use burn::optim::SgdConfig;
use burn::tensor::{Device, Tensor};
use burn_pipeline::link::{Link, ThreadLink, Threads};
use burn_pipeline::payload::AnyTensor;
use burn_pipeline::schedule::{Size, by_name};
use burn_pipeline::stage::{named_weights, with_weights};
use burn_pipeline::train::{Builder, StageContext};
use burn_pipeline_moe::router::Capacity;
use pipeline_examples::moe::gpt::MoeGptConfig;
use pipeline_examples::moe::part::MoeGptPart;

const REPLICAS: usize = 3;
const RANKS: usize = 2 * REPLICAS;
const EXPERTS: usize = 2 * REPLICAS;

/// A link that cannot look ahead.
struct Blind {
    link: ThreadLink,
}

impl Link for Blind {
    burn_pipeline::forward_link!(link: rank, ranks, monitor, to_device, set_activity, send, receive, all_gather, abort);
}

/// A part whose routers choose only the experts of replica 1, so that the two other replicas exchange no rows.
fn one_sided(config: &MoeGptConfig, part: MoeGptPart, at: &StageContext) -> MoeGptPart {
    let weights = named_weights(&part, &config.names(at).unwrap()).into_iter();
    let biases = weights.filter(|weight| weight.names[0].ends_with("router.bias")).map(|weight| {
        let bias: Vec<f32> = (0..EXPERTS).map(|expert| if expert / 2 == 1 { 10.0 } else { 0.0 }).collect();
        (weight.id, AnyTensor::new(Tensor::<1>::from_floats(&*bias, &weight.value.device())))
    });
    let biases = biases.collect();
    with_weights(part, &biases)
}

/// The loss and weights of every rank after one step.
fn stepped(builder: &Builder, link: impl Fn(ThreadLink) -> Box<dyn Link> + Sync) -> Vec<(f64, Vec<Vec<f32>>)> {
    let threads = Threads::new(RANKS);
    std::thread::scope(|scope| {
        let rank = |rank: usize| {
            let (builder, link) = (builder.clone(), link(threads.link(rank, Device::flex())));
            scope.spawn(move || {
                let mut pipeline = builder.build_rank(link).unwrap();
                let loss = pipeline.step(Text::new(1, RANKS).batch(), 0.1).unwrap().loss;
                (loss, pipeline.weights().unwrap().iter().flatten().map(floats).collect())
            })
        };
        let ranks: Vec<_> = (0..RANKS).map(rank).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

#[test]
fn sums_do_not_overtake_exchanges_between_replicas_of_which_two_exchange_nothing() {
    // Two backwards follow the reduction of each rank's second stage.
    let size = Size { ranks: 2, chunks: 2, microbatches: 2 };
    let config = parallel_config(Capacity::Dropless).with_experts(EXPERTS).with_bias_rate(0.01);
    let model = config.clone();
    let builder = builder(by_name("Interleaved1F1B").unwrap().as_ref(), size, &config, move |part, at| {
        one_sided(&model, part, at)
    });
    let builder = builder.data_parallel(REPLICAS).optimizer(|| SgdConfig::new().init());
    let expected = stepped(&builder, |link| Box::new(link));
    let got = stepped(&builder, |link| Box::new(Blind { link }));
    assert!(got == expected, "{got:?}\n{expected:?}");
}
