//! Ranks that each hold a pipeline, as processes do: what they exchange, compare and request.

use burn::optim::SgdConfig;
use burn::store::IdentityAdapter;
use burn::tensor::{Device, Int, Tensor};
use burn_pipeline::link::Threads;
use burn_pipeline::train::{CheckpointError, Checkpoints, Export, PipelineError};
use burn_pipeline::{Batch, Builder, Pipeline, Size};
use pipeline_tests::mlp::{WIDTH, stage};
use tempfile::tempdir;

const SAMPLES: usize = 8;

fn builder() -> Builder {
    let builder = Pipeline::builder().schedule("1F1B", Size::new(2, 4)).stages(stage).devices(vec![Device::flex()]);
    builder.optimizer(|| SgdConfig::new().init())
}

/// Numbers and ids for `mlp`; one number is `odd`.
fn batch(odd: f32) -> Batch {
    let device = Device::flex();
    let numbers = Tensor::<1, Int>::arange(0..(SAMPLES * WIDTH) as i64, &device).float().reshape([SAMPLES, WIDTH]);
    let numbers = numbers.sin().slice_assign([3..4, 1..2], Tensor::from_floats([[odd]], &device));
    let ids = Tensor::<1, Int>::arange(0..SAMPLES as i64, &device).reshape([SAMPLES, 1]).remainder_scalar(3);
    Batch::new((numbers.clone(), ids)).target(numbers.cos())
}

/// The results of two ranks, with their numbers.
fn each<T: Send>(builder: impl Fn(usize) -> Builder, run: impl Fn(usize, &mut Pipeline) -> T + Sync) -> [T; 2] {
    let links = Threads::new(2);
    std::thread::scope(|scope| {
        let rank = |number: usize| {
            let (builder, link, run) = (builder(number), links.link(number, Device::flex()), &run);
            scope.spawn(move || run(number, &mut builder.build_rank(Box::new(link)).unwrap()))
        };
        [rank(0), rank(1)].map(|rank| rank.join().unwrap())
    })
}

type Output = (Tensor<2>, Tensor<2, Int>);

#[test]
fn outputs_of_steps_go_to_the_processes_that_asked_for_them_and_to_no_other() {
    let rows = |pipeline: &mut Pipeline| {
        let outputs: Vec<Output> = pipeline.step(batch(0.5), 0.1).unwrap().outputs().unwrap();
        outputs
            .into_iter()
            .flat_map(|(scores, _)| scores.into_data().iter::<f32>().collect::<Vec<_>>())
            .collect::<Vec<f32>>()
    };
    let expected = rows(&mut builder().outputs(true).build().unwrap());
    assert_eq!(expected.len(), SAMPLES * WIDTH);
    for wanting in [[true, false], [false, true], [true, true], [false, false]] {
        let got = each(|rank| builder().outputs(wanting[rank]), |_, pipeline| rows(pipeline));
        let wanted = wanting.map(|wants| if wants { expected.clone() } else { Vec::new() });
        assert!(got == wanted, "{wanting:?}");
    }
}

#[test]
fn a_process_needs_of_a_batch_only_what_its_stages_read() {
    let run = |batch: &dyn Fn() -> Batch, pipeline: &mut Pipeline| {
        let mut losses: Vec<f64> = (0..2).map(|_| pipeline.step(batch(), 0.1).unwrap().loss).collect();
        losses.extend(pipeline.eval(batch()).unwrap().loss);
        losses
    };
    let whole = each(|_| builder(), |_, pipeline| run(&|| batch(0.5), pipeline));
    let device = Device::flex();
    let numbers = || Tensor::<2>::zeros([SAMPLES, 1], &device);
    let own = each(
        |_| builder(),
        |rank, pipeline| match rank {
            0 => run(&|| batch(0.5).target(numbers()), pipeline),
            _ => {
                let target = Tensor::<1, Int>::arange(0..(SAMPLES * WIDTH) as i64, &device).float();
                let target = target
                    .reshape([SAMPLES, WIDTH])
                    .sin()
                    .slice_assign([3..4, 1..2], Tensor::from_floats([[0.5]], &device));
                run(&|| Batch::new(numbers_of(SAMPLES)).target(target.clone().cos()), pipeline)
            }
        },
    );
    assert_eq!(own, whole);
    assert!(whole[0] == whole[1] && whole[0][0] != whole[0][1]);
    // Fewer samples are another batch.
    let fewer = each(
        |_| builder(),
        |rank, pipeline| {
            let batch = if rank == 0 {
                batch(0.5)
            } else {
                Batch::new(numbers_of(4)).target(Tensor::<2>::zeros([4, 1], &device))
            };
            pipeline.step(batch, 0.1).unwrap_err().to_string()
        },
    );
    assert!(fewer.iter().all(|error| error.contains("8") && error.contains("4")), "{fewer:?}");
}

/// A placeholder with this many samples, of another width.
fn numbers_of(samples: usize) -> (Tensor<2>, Tensor<2, Int>) {
    (Tensor::zeros([samples, 1], &Device::flex()), Tensor::zeros([samples, 1], &Device::flex()))
}

#[test]
fn every_process_gets_the_values_of_all_in_the_order_of_ranks() {
    let exchanged = each(|_| builder(), |rank, pipeline| pipeline.exchange((rank, "of its own".to_owned())).unwrap());
    assert_eq!(exchanged.map(|rows| rows.into_iter().map(|(rank, _)| rank).collect::<Vec<_>>()), [[0, 1], [0, 1]]);
    assert_eq!(builder().build().unwrap().exchange(7).unwrap(), [7], "threads are one process");
}

#[test]
fn batches_that_differ_in_one_number_are_refused_before_anything_runs_where_they_are_compared() {
    let compared = |compare: bool, run: &(dyn Fn(&mut Pipeline, Batch) -> Result<(), PipelineError> + Sync)| {
        each(
            |_| builder().compare_batches(compare),
            |rank, pipeline| {
                let refused = run(pipeline, batch([0.5, 0.25][rank]));
                (refused, run(pipeline, batch(0.5)))
            },
        )
    };
    let train = |pipeline: &mut Pipeline, batch| pipeline.step(batch, 0.1).map(drop);
    let evaluate = |pipeline: &mut Pipeline, batch| pipeline.eval(batch).map(drop);
    for (run, says) in [
        (&train as &(dyn Fn(&mut Pipeline, Batch) -> _ + Sync), "training 1F1B"),
        (&evaluate, "evaluating ForwardOnly"),
    ] {
        for (refused, equal) in compared(true, run) {
            let message = refused.unwrap_err().to_string();
            assert!(message.starts_with(&format!("rank 1 is {says} over")), "{message}");
            assert!(message.contains("in 4 microbatches with values #"), "{message}");
            equal.unwrap();
        }
        for (unseen, _) in compared(false, run) {
            unseen.unwrap();
        }
    }
}

#[test]
fn processes_that_save_over_different_bases_are_refused_and_what_is_saved_stays() {
    let folder = tempdir().unwrap();
    let [first, second, saved] = ["first", "second", "saved"].map(|name| Checkpoints::new(folder.path().join(name)));
    let saved = saved.keep(1);
    let run = |rank: usize, pipeline: &mut Pipeline| {
        pipeline.save(&first, &()).unwrap();
        pipeline.step(batch(0.5), 0.1).unwrap();
        pipeline.save(&second, &()).unwrap();
        let [over_first, over_second] = [&first, &second].map(|base| saved.clone().over(&base.latest().unwrap()));
        let good = pipeline.save(&over_first, &()).unwrap();
        for odd in [&over_second, &saved] {
            let error = pipeline.save([&over_first, odd][rank], &()).unwrap_err();
            let diverged = matches!(&error, CheckpointError::Pipeline(PipelineError::Diverged { rank: 1, .. }));
            assert!(diverged, "{error}");
            let says = "others are writing a checkpoint over the checkpoint step-00000000, step 0, #";
            assert!(error.to_string().contains(says), "{error}");
        }
        let complete = saved.all().unwrap();
        assert_eq!(complete, std::slice::from_ref(&good));
        // No rank saves before both have looked.
        pipeline.exchange(()).unwrap();
        pipeline.step(batch(0.5), 0.1).unwrap();
        pipeline.save(&over_first, &()).unwrap();
        saved.latest().unwrap().verify().unwrap();
    };
    each(|_| builder(), run);
    let names = std::fs::read_dir(folder.path().join("saved")).unwrap();
    let names: Vec<String> = names.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect();
    assert!(names.iter().all(|name| ["LATEST", "LOCK", "step-00000002"].contains(&name.as_str())), "{names:?}");
}

#[test]
fn processes_that_load_or_export_otherwise_than_the_others_are_refused() {
    let folder = tempdir().unwrap();
    let saved = Checkpoints::new(folder.path().join("saved"));
    let refused = |result: Result<(), CheckpointError>, says: &str| {
        let error = result.unwrap_err();
        assert!(matches!(&error, CheckpointError::Pipeline(PipelineError::Diverged { rank: 1, .. })), "{error}");
        assert!(error.to_string().contains(says), "{error}");
    };
    let run = |rank: usize, pipeline: &mut Pipeline| {
        pipeline.save(&saved, &()).unwrap();
        let last = saved.latest().unwrap();
        let loaded = match rank {
            0 => pipeline.load(&last),
            _ => pipeline.load_weights(&last),
        };
        refused(loaded, "reading a checkpoint");
        let path = folder.path().join("model.safetensors");
        let exported = match rank {
            0 => pipeline.export(&path),
            _ => pipeline.export_as(&path, Export::from(IdentityAdapter).merged()),
        };
        refused(exported, "exporting the model");
        assert!(!path.exists());
        pipeline.load(&last).unwrap();
        pipeline.export(&path).unwrap();
        pipeline.step(batch(0.5), 0.1).unwrap();
    };
    each(|_| builder(), run);
}
