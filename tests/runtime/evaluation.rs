//! Evaluation before, between and after training steps; and its outputs on the ranks that ask.

use crate::cases::{Case, Text, range, read, sizes};
use crate::parity::builder;
use burn::module::Module;
use burn::tensor::Device;
use burn_pipeline::execute::{Executor, FusedActions, ReplicaShare, RunOptions};
use burn_pipeline::link::Threads;
use burn_pipeline::plan::{CheckOptions, CheckedPlan, Placement};
use burn_pipeline::schedule::{Chunks, ForwardOnly, Size, by_name};
use burn_pipeline::stage::{Accumulation, AnyTensor, Boundary, Microbatches, Reduction, Stage};
use burn_pipeline::train::{Pipeline, Rank, StageContext};
use pipeline_examples::gpt::{Signal, next_token_loss};
use pipeline_tests::reference::Reference;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

const RATE: f64 = 1e-2;
const SAMPLES: usize = 6;

fn scores(signal: Signal) -> Vec<f32> {
    let (Signal::Logits(scores) | Signal::Hidden(scores)) = signal else { panic!("tokens came out") };
    read(&AnyTensor::new(scores))
}

/// Outputs and loss of the plain model over the pieces of a batch, without autodiff.
fn plain(case: &Text, reference: &Reference<<Text as Case>::Model>) -> (Vec<f32>, f64) {
    let (model, sizes) = (reference.model.valid(), sizes(SAMPLES, SAMPLES));
    let (mut outputs, mut sum) = (Vec::new(), 0.0);
    for i in 0..SAMPLES {
        let [tokens, next] = case.tokens(range(&sizes, i));
        let output = model.forward(Signal::Tokens(tokens), ());
        sum += next_token_loss(output.clone(), next).into_scalar::<f32>() as f64;
        outputs.extend(scores(output));
    }
    (outputs, sum / SAMPLES as f64)
}

fn evaluated(case: &Text, pipeline: &mut Pipeline) -> (Vec<f32>, f64) {
    let report = pipeline.eval(case.batch()).unwrap();
    (scores(report.output().unwrap()), report.loss.unwrap())
}

#[test]
fn evaluations_before_between_and_after_steps_are_the_plain_model_s_and_change_nothing() {
    let case = Text::new(SAMPLES);
    for name in ["GPipe", "1F1B", "Interleaved1F1B", "ZBVZeroBubble"] {
        for ranks in 1..=4 {
            let schedule = by_name(name).unwrap();
            let chunks = match schedule.family().chunks {
                Chunks::Exactly(chunks) => chunks,
                Chunks::Any => 2,
            };
            let size = Size { ranks, chunks, microbatches: SAMPLES };
            let builder = builder::<Text>(schedule.as_ref(), size).accumulation(Accumulation::Ordered);
            let (mut pipeline, mut reference) = (builder.build().unwrap(), Reference::new(case.model()));
            for step in 0..3 {
                let place = format!("{name} on {ranks} ranks, step {step}");
                let expected = plain(&case, &reference);
                assert!(evaluated(&case, &mut pipeline) == expected, "{place}");
                // Between the batches of one step, too: half of the gradients are gathered then.
                pipeline.accumulate(case.batch()).unwrap();
                assert!(evaluated(&case, &mut pipeline) == expected, "{place}");
                let report = pipeline.step(case.batch(), RATE).unwrap();
                let twice: Vec<usize> = sizes(SAMPLES, SAMPLES).repeat(2);
                let of = |model: &_, i: usize| case.loss(model, range(&twice[..SAMPLES], i % SAMPLES));
                assert_eq!(report.loss, reference.step(&twice, RATE, None, of).loss, "{place}");
            }
        }
    }
}

#[test]
fn a_pipeline_that_only_goes_forward_evaluates_and_holds_nothing() {
    let case = Text::new(SAMPLES);
    let expected = plain(&case, &Reference::new(case.model()));
    for ranks in 1..=4 {
        let mut pipeline = builder::<Text>(&ForwardOnly, Size::new(ranks, SAMPLES)).build().unwrap();
        assert!(evaluated(&case, &mut pipeline) == expected, "{ranks} ranks");
        assert!(pipeline.take_gradients().unwrap().iter().flatten().all(Option::is_none));
    }
}

/// What a rank gets: the loss, and outputs by microbatch.
type Given = (f64, Vec<(usize, Vec<f32>)>);

/// What each rank gets of an evaluation whose outputs some ranks ask for.
fn on_ranks(plan: &CheckedPlan, batch: &Microbatches, asking: &BTreeSet<usize>) -> Vec<Given> {
    let (placement, threads) = (plan.plan().placement(), Threads::new(plan.plan().ranks()));
    std::thread::scope(|scope| {
        let rank = |rank: usize| {
            let threads = threads.clone();
            scope.spawn(move || {
                let device = Device::flex();
                let mut stages = BTreeMap::new();
                for stage in placement.stages_of(rank) {
                    let at = StageContext {
                        index: stage.index(),
                        stages: placement.stages(),
                        rank,
                        device: device.clone().autodiff(),
                    };
                    stages.insert(stage, Text::stage(&at).into_inner());
                }
                let options = RunOptions {
                    timeout: Duration::from_secs(30),
                    synchronize: false,
                    merge_weights: false,
                    fused: FusedActions::default(),
                };
                let link = Box::new(threads.link(rank, device.clone()));
                let executor = Executor::new(link, stages, device, options);
                let mut rank = Rank::new(executor, placement.clone(), Reduction::Mean).unwrap();
                let outcome = rank.evaluate_for(plan, batch, Instant::now(), ReplicaShare::default(), asking).unwrap();
                let read = |(sample, payload)| (sample, scores(Signal::from_payload(payload).unwrap()));
                (outcome.loss, outcome.outputs.into_iter().map(read).collect())
            })
        };
        let ranks: Vec<_> = (0..placement.ranks()).map(rank).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

#[test]
fn the_ranks_that_ask_get_all_outputs_and_every_rank_the_loss() {
    let case = Text::new(SAMPLES);
    let (outputs, loss) = plain(&case, &Reference::new(case.model()));
    let batch = case.batch().cut(SAMPLES).unwrap();
    let counts = |routes| if routes == 1 { vec![SAMPLES] } else { vec![SAMPLES / 2; 2] };
    for placement in [Placement::looped(3, 1), Placement::looped(2, 2), Placement::v(2), Placement::bidirectional(2)] {
        let placement = placement.unwrap();
        let plan = ForwardOnly::over(placement.clone(), counts(placement.routes())).unwrap();
        let plan = burn_pipeline::pass::insert_transfers(&plan).unwrap().check(&CheckOptions::default()).unwrap();
        let ranks = placement.ranks();
        for asked in 0..1 << ranks {
            let asking: BTreeSet<usize> = (0..ranks).filter(|rank| asked >> rank & 1 == 1).collect();
            for (rank, (got, given)) in on_ranks(&plan, &batch, &asking).into_iter().enumerate() {
                let place = format!("rank {rank} of {:?}, {asking:?} ask", placement.kind());
                assert_eq!(got, loss, "{place}");
                let samples: Vec<usize> = given.iter().map(|(sample, _)| *sample).collect();
                let expected: Vec<usize> = if asking.contains(&rank) { (0..SAMPLES).collect() } else { vec![] };
                assert_eq!(samples, expected, "{place}");
                if asking.contains(&rank) {
                    assert_eq!(
                        given.into_iter().flat_map(|(_, scores)| scores).collect::<Vec<_>>(),
                        outputs,
                        "{place}"
                    );
                }
            }
        }
    }
}
