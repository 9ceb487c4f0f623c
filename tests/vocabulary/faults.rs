//! A failure in one rank ends all ranks in time, with an error that names the rank.

use crate::model::{BOTH, HEAD, TIED, batch, builder, stage_or_broken};
use crate::plain::{SEQUENCE, VOCABULARY, WIDTH, data, token};
use burn::nn::LinearConfig;
use burn::tensor::{Device, Int, Tensor};
use burn_pipeline::link::{TcpLink, Threads};
use burn_pipeline::train::PipelineError;
use burn_pipeline::{Batch, Builder, Pipeline, Vocabulary};
use std::time::{Duration, Instant};

const TIMEOUT: Duration = Duration::from_secs(5);

/// Returns the error of a step, which must come before the timeout. The next step fails in the same way, unless the
/// rank was silent: then the pipeline is closed.
fn fails(builder: Builder, samples: Batch) -> String {
    let mut pipeline = builder.timeout(TIMEOUT).build().unwrap();
    let began = Instant::now();
    let error = pipeline.step(samples.clone(), 0.1).unwrap_err();
    println!("{:?}: {error}\n", began.elapsed());
    assert!(began.elapsed() < TIMEOUT);
    assert!(matches!(error, PipelineError::Undone { dropped: true, .. }), "{error}");
    // Either rank may report first.
    let place =
        |error: &PipelineError| error.to_string().split_once(", ").unwrap().1.lines().next().unwrap().to_owned();
    assert_eq!(place(&pipeline.step(samples, 0.1).unwrap_err()), place(&error));
    error.to_string()
}

#[test]
fn a_stage_that_panics_is_named_by_all_that_wait_for_the_vocabulary() {
    for (schedule, ranks, broken) in [(("1F1B", 1), 3, 1), (("ZBVZeroBubble", 2), 2, 3), (("1F1B", 1), 2, 0)] {
        let builder = builder(BOTH, schedule, ranks, 4).stages(move |at| stage_or_broken(BOTH, Some(broken), at));
        let error = fails(builder, batch(8));
        let named = format!("stage {broken}, microbatch 0, F: the stage's code panicked: a broken forward");
        assert!(error.contains(&named), "{error}");
    }
}

#[test]
fn an_id_outside_of_the_vocabulary_is_named_with_its_operation() {
    let wrong = || Tensor::<2, Int>::full([8, SEQUENCE], VOCABULARY as i64, &Device::flex());
    let error = fails(builder(BOTH, ("1F1B", 1), 2, 4), Batch::new(wrong()).target(data(8).1));
    let id = format!("id {VOCABULARY} is outside of the vocabulary of {VOCABULARY} words");
    assert!(error.starts_with(&format!("rank 1, stage 0, microbatch 0, IF: {id}")), "{error}");
    let error = fails(builder(BOTH, ("1F1B", 1), 2, 4), Batch::new(data(8).0).target(wrong()));
    assert!(error.starts_with(&format!("rank 1, stage 1, microbatch 0, S: {id}")), "{error}");
    let below = Tensor::<2, Int>::full([8, SEQUENCE], -1, &Device::flex());
    let error = fails(builder(BOTH, ("1F1B", 1), 2, 4), Batch::new(data(8).0).target(below));
    assert!(error.starts_with("rank 0, stage 1, microbatch 0, S: id -1 is outside of the vocabulary"), "{error}");
}

#[test]
fn a_batch_with_an_id_outside_of_the_vocabulary_leaves_no_trace() {
    let device = Device::flex();
    let values = |pipeline: &mut Pipeline| -> Vec<f32> {
        let weights = pipeline.weights().unwrap().concat();
        weights.iter().flat_map(|weight| weight.to_data().unwrap().iter::<f32>().collect::<Vec<_>>()).collect()
    };
    for (parallel, schedule, ranks) in [(BOTH, ("1F1B", 1), 3), (TIED, ("ZBVZeroBubble", 2), 2), (HEAD, ("1F1B", 1), 2)]
    {
        let make = || builder(parallel, schedule, ranks, 6).build().unwrap();
        let (mut pipeline, mut twin) = (make(), make());
        for _ in 0..2 {
            for row in [0, 5, 11] {
                let one = Tensor::<2, Int>::full([1, SEQUENCE], VOCABULARY as i64, &device);
                let wrong = |ids: Tensor<2, Int>| ids.slice_assign([row..row + 1, 0..SEQUENCE], one.clone());
                let ((tokens, targets), microbatch) = (data(12), format!("microbatch {}", row / 2));
                let in_targets = Batch::new(tokens.clone()).target(wrong(targets.clone()));
                let error = pipeline.step(in_targets, 0.1).unwrap_err();
                assert!(matches!(error, PipelineError::Undone { dropped: true, .. }), "{error}");
                assert!(error.to_string().contains(&microbatch), "{error}");
                if parallel.embedding {
                    let error = pipeline.step(Batch::new(wrong(tokens)).target(targets), 0.1).unwrap_err();
                    assert!(error.to_string().contains(&microbatch), "{error}");
                }
            }
            for one in [&mut pipeline, &mut twin] {
                one.step(batch(12), 0.1).unwrap();
            }
        }
        assert!(values(&mut pipeline) == values(&mut twin), "{parallel:?}, {schedule:?}");
    }
}

#[test]
fn a_head_of_another_width_than_the_last_stages_output_is_named() {
    let head = |device: &Device| LinearConfig::new(WIDTH + 1, VOCABULARY).with_bias(false).init(device);
    let vocabulary = Vocabulary::new().embedding("token", token).head("scores", head);
    let error = fails(builder(BOTH, ("1F1B", 1), 2, 4).vocabulary(vocabulary), batch(8));
    let said =
        format!("the last stage's output has width {WIDTH}, but the vocabulary-parallel head takes {}", WIDTH + 1);
    assert!(error.contains(&said) && error.contains("stage 1, microbatch 0, S: "), "{error}");
}

#[test]
fn a_target_of_another_length_than_the_output_is_named() {
    let (tokens, targets) = data(8);
    let batch = Batch::new(tokens).target(targets.narrow(1, 0, SEQUENCE - 1));
    let error = fails(builder(BOTH, ("1F1B", 1), 2, 4), batch);
    assert!(error.contains("the target has 8 ids, but the last stage's output has 10 rows"), "{error}");
}

#[test]
fn a_process_that_leaves_is_named() {
    let threads = Threads::new(3);
    let errors: Vec<String> = std::thread::scope(|scope| {
        let rank = |rank: usize| {
            let threads = threads.clone();
            scope.spawn(move || {
                let mut first = threads.link(rank, Device::flex());
                let link = TcpLink::by_link(&mut first, Device::flex(), Duration::from_secs(20)).unwrap();
                let mut pipeline = builder(BOTH, ("1F1B", 1), 3, 6).build_rank(Box::new(link)).unwrap();
                let steps = if rank == 2 { 1 } else { 2 };
                let error = (0..steps).find_map(|_| pipeline.step(batch(12), 0.1).err());
                error.map(|error| error.to_string()).unwrap_or_default()
            })
        };
        let ranks: Vec<_> = (0..3).map(rank).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    });
    assert!(errors[..2].iter().all(|error| error.contains("rank 2")), "{errors:?}");
}
