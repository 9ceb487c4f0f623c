//! Replicas, both routes, and ranks in processes: who gets the gradients, and of what.

use super::{Contract, Data, Gradients, LAYERS, MICROBATCHES, RATE, builder, plain, whole};
use burn::tensor::Tensor;
use burn_pipeline::link::Threads;
use burn_pipeline::train::GradientError;
use burn_pipeline::{Builder, Size, StepReport};
use pipeline_tests::device::device;

#[test]
fn replicas_give_the_gradients_of_the_whole_batch() {
    let expected = plain(&whole(), &Data::new(0), &Contract::mean());
    for (sharded, trained) in [(false, &[][..]), (false, &[1]), (true, &[1])] {
        let builder = builder("1F1B", Size::new(LAYERS, MICROBATCHES / 2), trained).data_parallel(2).sharded(sharded);
        let report = builder.build().unwrap().accumulate(Data::new(0).batch()).unwrap();
        assert_eq!(Gradients::of(&report), expected, "sharded {sharded}, {trained:?} train");
    }
}

/// The report of each rank, as a process of its own.
fn each(ranks: usize, builder: impl Fn() -> Builder + Sync) -> Vec<StepReport> {
    let links = Threads::new(ranks);
    std::thread::scope(|scope| {
        let rank = |number| {
            let (link, builder) = (links.link(number, device()), &builder);
            scope.spawn(move || {
                let mut pipeline = builder().build_rank(Box::new(link)).unwrap();
                pipeline.step(Data::new(0).batch(), RATE).unwrap()
            })
        };
        let ranks: Vec<_> = (0..ranks).map(rank).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

#[test]
fn processes_with_a_copy_of_the_first_stage_get_those_of_the_whole_batch_and_no_other() {
    let expected = plain(&whole(), &Data::new(0), &Contract::mean());
    let four = Size::new(LAYERS, MICROBATCHES);
    let replicas = || builder("1F1B", Size::new(LAYERS, MICROBATCHES / 2), &[1]).data_parallel(2);
    let runs: [(Vec<StepReport>, &[usize]); 4] = [
        (each(LAYERS, || builder("1F1B", four, &[1])), &[0]),
        (each(2, || builder("ZBVZeroBubble", Size::new(2, MICROBATCHES).with_chunks(2), &[3])), &[0]),
        // Both routes' first stages.
        (each(LAYERS, || builder("DualPipe", four, &[1])), &[0, 3]),
        // Rank `p * replicas + r` of the job is rank `p` of replica `r`.
        (each(2 * LAYERS, replicas), &[0, 1]),
    ];
    for (run, (reports, first)) in runs.iter().enumerate() {
        for (rank, report) in reports.iter().enumerate() {
            match first.contains(&rank) {
                true => assert_eq!(Gradients::of(report), expected, "run {run}, rank {rank}"),
                false => {
                    let refused = report.input_gradient::<Tensor<2>>().unwrap_err();
                    assert_eq!(refused, GradientError::Elsewhere, "run {run}, rank {rank}");
                    assert_eq!(report.extra_gradient::<Tensor<2>>("shift").unwrap_err(), GradientError::Elsewhere);
                }
            }
        }
    }
}

#[test]
fn processes_that_chose_differently_do_not_start() {
    let links = Threads::new(2);
    let refused: Vec<String> = std::thread::scope(|scope| {
        let rank = |number: usize| {
            let link = links.link(number, device());
            let builder = builder("1F1B", Size::new(2, MICROBATCHES), &[1]).input_gradients(number == 0);
            scope.spawn(move || builder.build_rank(Box::new(link)).map(drop).unwrap_err().to_string())
        };
        let ranks = [rank(0), rank(1)];
        ranks.map(|rank| rank.join().unwrap()).into()
    });
    assert!(refused.iter().all(|error| error.contains("Builder::input_gradients")), "{refused:?}");
}
