//! A step's report: the loss of each microbatch, compared with the plain model's; and how its time is divided.

use crate::checkpoint::on_each_rank;
use crate::contract::{Data, builder, pieces};
use burn::tensor::{Device, Tensor};
use burn_pipeline::plan::StageId;
use burn_pipeline::schedule::Size;
use burn_pipeline::simulate::IdleCause;
use burn_pipeline::stage::{Batch, Reduction, StageBox};
use burn_pipeline::train::{EvalResults, MicrobatchLoss, Pipeline};
use pipeline_tests::mlp;
use pipeline_tests::reference::whole;

const SAMPLES: usize = 7;
const REDUCTIONS: [Reduction; 3] = [Reduction::Mean, Reduction::Sum, Reduction::Weighted];

/// Each microbatch's loss and weight, from the plain model.
fn plain(data: &Data, reduction: Reduction) -> Vec<(f64, f64)> {
    let model = mlp::part(&whole());
    let of = |piece: &std::ops::Range<usize>| {
        let loss = data.loss(&model, piece.clone(), reduction).into_scalar::<f32>() as f64;
        let weight = match reduction {
            Reduction::Mean => piece.len() as f64,
            Reduction::Sum => 1.0,
            Reduction::Weighted => data.weight(piece.clone()),
        };
        (loss, weight)
    };
    #[allow(clippy::single_range_in_vec_init, reason = "a list of ranges may hold one")]
    pieces(&[0..SAMPLES], 4).iter().map(of).collect()
}

/// Where each microbatch's loss is computed: rank and route.
fn places(losses: &[MicrobatchLoss]) -> Vec<(usize, StageId)> {
    losses.iter().map(|loss| (loss.rank, loss.stage)).collect()
}

fn assert_plain(losses: &[MicrobatchLoss], plain: &[(f64, f64)], place: &str) {
    assert!(losses.iter().map(|loss| loss.index).eq(0..plain.len()), "{place}");
    for (loss, (value, weight)) in losses.iter().zip(plain) {
        assert!((loss.loss - value).abs() <= 1e-6 * value.abs(), "{place}: {loss:?} for {value}");
        assert_eq!(loss.weight, *weight, "{place}");
    }
}

#[test]
fn losses_are_those_of_the_plain_model_s_microbatches_with_rank_and_route() {
    let data = Data::new(SAMPLES);
    for reduction in REDUCTIONS {
        let expected = plain(&data, reduction);
        for (schedule, ranks, ends) in [
            ("1F1B", 2, vec![(1, StageId::new(1)); 4]),
            ("ZBVZeroBubble", 2, vec![(0, StageId::new(3)); 4]),
            // Each route takes half of the microbatches, and ends where the other one begins.
            ("DualPipe", 2, [[(1, StageId::new(1)); 2], [(0, StageId::in_route(1, 1)); 2]].concat()),
        ] {
            let place = format!("{schedule}, {reduction:?}");
            let mut pipeline = builder(schedule, ranks, 4, reduction).build().unwrap();
            // Before the weights are stepped, like everything below.
            let evaluated = pipeline.eval(data.batch(0..SAMPLES)).unwrap();
            assert_plain(&evaluated.losses, &expected, &place);
            let trained = pipeline.accumulate(data.batch(0..SAMPLES)).unwrap();
            assert_plain(&trained.losses, &expected, &place);
            assert_eq!(places(&trained.losses), ends, "{place}");
            let others = pipeline.eval_for(data.batch(0..SAMPLES), EvalResults::Nothing).unwrap();
            assert!(others.losses.is_empty() && others.loss.is_none());

            let apart = on_each_rank(&builder(schedule, ranks, 4, reduction), ranks, |_, pipeline| {
                pipeline.accumulate(data.batch(0..SAMPLES)).unwrap().losses
            });
            assert!(apart.iter().all(|losses| *losses == trained.losses), "{place}");
        }
    }
}

#[test]
fn replicas_losses_are_those_of_their_samples() {
    let data = Data::new(SAMPLES + 1);
    let mut one = builder("1F1B", 2, 4, Reduction::Mean).build().unwrap();
    let mut two = builder("1F1B", 2, 2, Reduction::Mean).data_parallel(2).build().unwrap();
    let [one, two] =
        [&mut one, &mut two].map(|pipeline| pipeline.accumulate(data.batch(0..SAMPLES + 1)).unwrap().losses);
    assert_eq!(two.iter().map(|loss| loss.rank).collect::<Vec<_>>(), [2, 2, 3, 3]);
    assert!(one.iter().zip(&two).all(|(one, two)| (one.index, one.loss) == (two.index, two.loss)), "{one:?} {two:?}");
}

#[test]
fn the_time_of_a_step_is_computing_and_idling_and_nothing_else() {
    for (schedule, ranks) in [("GPipe", 1), ("1F1B", 3), ("ZBVZeroBubble", 2), ("DualPipe", 2)] {
        let mut pipeline = builder(schedule, ranks, 6, Reduction::Mean).build().unwrap();
        let report = pipeline.step(Data::new(12).batch(0..12), 1e-3).unwrap();
        let (end, idle) = (report.timeline.end(), report.idle());
        assert_eq!((idle.len(), report.exposed_seconds().len()), (ranks, ranks));
        let idled: f64 = idle.iter().flatten().map(|period| period.end - period.start).sum();
        assert!((report.bubble_rate() - idled / (ranks as f64 * end)).abs() < 1e-9, "{schedule}");
        assert!((0.0..1.0).contains(&report.bubble_rate()));
        assert!((report.samples_per_second() * report.seconds - 12.0).abs() < 1e-9 && report.seconds >= end);
        // Only the rank with the last stage waits for no gradient.
        if schedule == "1F1B" {
            assert!(idle[ranks - 1].iter().all(|period| period.cause != IdleCause::Gradient), "{idle:?}");
        }
        for (rank, exposed) in report.exposed_seconds().into_iter().enumerate() {
            let rank: f64 = idle[rank].iter().map(|period| period.end - period.start).sum();
            assert!((0.0..=rank + 1e-9).contains(&exposed), "{schedule}: {exposed} of {rank}");
        }
    }
}

#[test]
fn outputs_are_joined_along_the_dimension_of_their_samples() {
    /// Puts samples second, as recurrent models do.
    #[derive(burn::module::Module, Debug)]
    struct Turned;
    impl burn_pipeline::stage::Stage for Turned {
        type Input = Tensor<2>;
        type Extra = ();
        type Output = Tensor<2>;
        fn forward(&self, x: Tensor<2>, _: ()) -> Tensor<2> {
            x.transpose()
        }
    }
    let size = Size::new(1, 2);
    let builder = Pipeline::builder().schedule("GPipe", size).devices(vec![Device::flex()]);
    let mut pipeline = builder.stages(|_| StageBox::new(Turned)).build().unwrap();
    let x = Tensor::<1>::from_floats([0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0], &Device::flex()).reshape([3, 3]);
    let report = pipeline.eval(Batch::new(x.clone())).unwrap();
    assert_eq!(report.output_along::<Tensor<2>>(&[1]).unwrap().into_data(), x.transpose().into_data());
    for dims in [[0].as_slice(), &[2], &[1, 1], &[]] {
        let error = report.output_along::<Tensor<2>>(dims).unwrap_err().to_string();
        assert!(error.contains("read them with `outputs`"), "{error}");
    }
    // With one microbatch, the missing dimension is an error too.
    let one = pipeline.eval(Batch::new(Tensor::<2>::ones([1, 3], &Device::flex()))).unwrap();
    assert!(one.output_along::<Tensor<2>>(&[2]).is_err() && one.output_along::<Tensor<2>>(&[1]).is_ok());
}
