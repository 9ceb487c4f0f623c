//! Evaluations before, between and after training steps, and their outputs on the ranks that request them.

use crate::cases::{Case, Text, range, read, sizes};
use crate::parity::builder;
use burn::module::Module;
use burn_pipeline::link::Threads;
use burn_pipeline::payload::AnyTensor;
use burn_pipeline::plan::{Placement, Plan};
use burn_pipeline::schedule::{Chunks, ForwardOnly, Size, by_name};
use burn_pipeline::stage::{Accumulation, Stage};
use burn_pipeline::train::{EvalResults, Pipeline};
use pipeline_examples::gpt::{Signal, next_token_loss};
use pipeline_tests::device::{device, few};
use pipeline_tests::reference::Reference;

const RATE: f64 = 1e-2;
const SAMPLES: usize = 6;

fn scores(signal: Signal) -> Vec<f32> {
    let (Signal::Logits(scores) | Signal::Hidden(scores)) = signal else { panic!("tokens came out") };
    read(&AnyTensor::new(scores))
}

/// The outputs and loss of the plain model over the pieces of a batch, without autodiff.
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
    let mut reference = Reference::new(case.model());
    let twice: Vec<usize> = sizes(SAMPLES, SAMPLES).repeat(2);
    // The plain model's evaluation before each step, and the step's loss.
    let expected: Vec<_> = (0..2)
        .map(|_| {
            let evaluated = plain(&case, &reference);
            let of = |model: &_, i: usize| case.loss(model, range(&twice[..SAMPLES], i % SAMPLES));
            (evaluated, reference.step(&twice, RATE, None, of).loss)
        })
        .collect();
    let after = plain(&case, &reference);
    for name in few(vec!["GPipe", "1F1B", "Interleaved1F1B", "ZBVZeroBubble"], 1) {
        for ranks in few(vec![1, 3, 4, 2], 1) {
            let schedule = by_name(name).unwrap();
            let chunks = match schedule.info().chunks {
                Chunks::Exactly(chunks) => chunks,
                Chunks::Any => 2,
            };
            let size = Size { ranks, chunks, microbatches: SAMPLES };
            let builder = builder::<Text>(schedule.as_ref(), size).accumulation(Accumulation::Ordered);
            let mut pipeline = builder.build().unwrap();
            for (step, (expected, loss)) in expected.iter().enumerate() {
                let place = format!("{name} on {ranks} ranks, step {step}");
                assert!(evaluated(&case, &mut pipeline) == *expected, "{place}");
                // Also between the batches of one step, when half of the gradients are accumulated.
                pipeline.accumulate(case.batch()).unwrap();
                assert!(evaluated(&case, &mut pipeline) == *expected, "{place}");
                assert_eq!(pipeline.step(case.batch(), RATE).unwrap().loss, *loss, "{place}");
            }
            assert!(evaluated(&case, &mut pipeline) == after, "{name} on {ranks} ranks, after all steps");
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

/// What each rank gets from evaluations whose outputs some ranks request, given as bits: the loss, and the outputs'
/// scores.
fn on_ranks(case: &Text, plan: &Plan, wanted: usize) -> Vec<(f64, Vec<f32>)> {
    let threads = Threads::new(plan.ranks());
    std::thread::scope(|scope| {
        let rank = |rank: usize| {
            let threads = threads.clone();
            scope.spawn(move || {
                let builder = Pipeline::builder().plan(plan.clone()).devices(vec![device()]).stages(Text::stage);
                let link = Box::new(threads.link(rank, device()));
                let mut pipeline = builder.build_rank(link).unwrap();
                let results = if wanted >> rank & 1 == 1 { EvalResults::All } else { EvalResults::Loss };
                let report = pipeline.eval_for(case.batch(), results).unwrap();
                let outputs = report.outputs::<Signal>().unwrap();
                (report.loss.unwrap(), outputs.into_iter().flat_map(scores).collect())
            })
        };
        let ranks: Vec<_> = (0..plan.ranks()).map(rank).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

#[test]
fn the_ranks_that_ask_get_all_outputs_and_every_rank_the_loss() {
    let case = Text::new(SAMPLES);
    let (outputs, loss) = plain(&case, &Reference::new(case.model()));
    let counts = |routes| if routes == 1 { vec![SAMPLES] } else { vec![SAMPLES / 2; 2] };
    for placement in [Placement::looped(3, 1), Placement::looped(2, 2), Placement::v(2), Placement::bidirectional(2)] {
        let placement = placement.unwrap();
        let plan = ForwardOnly::over(placement.clone(), counts(placement.routes())).unwrap();
        for wanted in 0..1 << placement.ranks() {
            for (rank, got) in on_ranks(&case, &plan, wanted).into_iter().enumerate() {
                let expected = if wanted >> rank & 1 == 1 { outputs.clone() } else { Vec::new() };
                assert!(got == (loss, expected), "rank {rank} of {:?}, {wanted:b} want outputs", placement.kind());
            }
        }
    }
}
