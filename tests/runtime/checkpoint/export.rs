//! The whole model in one safetensors file that any other tool can read.

use super::{Cut, RATE, SAMPLES};
use crate::cases::{Case, Text, read};
use burn::tensor::Device;
use burn_pipeline::link::Threads;
use burn_pipeline::stage::Accumulation;
use burn_pipeline::train::{Builder, CheckpointError, Checkpoints, Pipeline};
use safetensors::{Dtype, SafeTensors};
use tempfile::tempdir;

#[test]
fn an_exported_model_holds_every_weight_under_its_name_whatever_the_cut() {
    let folder = tempdir().unwrap();
    let mut files = Vec::new();
    for (place, (schedule, ranks)) in [("GPipe", 1), ("1F1B", 3), ("ZBVZeroBubble", 2)].into_iter().enumerate() {
        let chunks = if schedule == "ZBVZeroBubble" { 2 } else { 1 };
        let mut pipeline = Cut { schedule, ranks, chunks }.pipeline();
        pipeline.step(Text::new(SAMPLES).batch(), RATE).unwrap();
        let checkpoints = Checkpoints::new(folder.path().join(place.to_string()));
        pipeline.save(&checkpoints, &()).unwrap();
        let (direct, stored) =
            (folder.path().join(format!("{place}-direct")), folder.path().join(format!("{place}-stored")));
        pipeline.export(&direct).unwrap();
        checkpoints.latest().unwrap().export(&stored).unwrap();
        files.extend([std::fs::read(direct).unwrap(), std::fs::read(stored).unwrap()]);
        let tensors = SafeTensors::deserialize(&files[0]).unwrap();
        let mut held = 0;
        for weight in pipeline.named_weights().unwrap().into_iter().flatten() {
            let tensor = tensors.tensor(&weight.names[0]).unwrap();
            let bytes: Vec<u8> = read(&weight.value).iter().flat_map(|x| x.to_le_bytes()).collect();
            assert_eq!((tensor.dtype(), tensor.data()), (Dtype::F32, &*bytes), "{:?}", weight.names);
            assert_eq!(tensor.shape(), weight.value.shape().to_vec());
            held += 1;
        }
        assert_eq!(tensors.len(), held);
    }
    let missing =
        Cut { schedule: "GPipe", ranks: 1, chunks: 1 }.pipeline().export(folder.path().join("no/such/folder/model"));
    assert!(missing.unwrap_err().to_string().contains("no/such/folder/model"));
    assert!(files.windows(2).all(|pair| pair[0] == pair[1]), "the file depends on the cut");
}

/// Builds one pipeline per rank, as in processes; returns the result of each call.
pub(crate) fn on_each_rank<T: Send>(
    builder: &Builder,
    ranks: usize,
    run: impl Fn(usize, &mut Pipeline) -> T + Sync,
) -> Vec<T> {
    let (threads, run) = (Threads::new(ranks), &run);
    std::thread::scope(|scope| {
        let rank = |rank| {
            let (link, builder) = (threads.link(rank, Device::flex()), builder.clone());
            scope.spawn(move || run(rank, &mut builder.build_rank(Box::new(link)).unwrap()))
        };
        let running: Vec<_> = (0..ranks).map(rank).collect();
        running.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

#[test]
fn ranks_that_are_apart_export_the_file_of_threads_byte_for_byte() {
    for (schedule, ranks, chunks, replicas, sharded) in [
        ("1F1B", 3, 1, 1, false),
        ("ZBVZeroBubble", 2, 2, 1, false),
        ("DualPipe", 2, 1, 1, false),
        ("1F1B", 2, 1, 2, false),
        ("GPipe", 2, 1, 2, true),
    ] {
        let folder = tempdir().unwrap();
        let mut builder = Cut { schedule, ranks, chunks }.builder().data_parallel(replicas);
        if sharded {
            builder = builder.sharded(true).accumulation(Accumulation::AsTheyCome);
        }
        let mut together = builder.clone().build().unwrap();
        together.step(Text::new(SAMPLES).batch(), RATE).unwrap();
        together.export(folder.path().join("together")).unwrap();
        let expected: Vec<Vec<String>> = names(&mut together);
        let reported = on_each_rank(&builder, ranks * replicas, |rank, pipeline| {
            pipeline.step(Text::new(SAMPLES).batch(), RATE).unwrap();
            // The first rank's path is used.
            let name = if rank == 0 { "apart" } else { "no/such/folder" };
            pipeline.export(folder.path().join(name)).unwrap();
            names(pipeline)
        });
        let place = format!("{schedule}, {replicas} replicas, sharded: {sharded}");
        assert!(reported.iter().all(|reported| *reported == expected), "{place}");
        let read = |name: &str| std::fs::read(folder.path().join(name)).unwrap();
        assert!(read("apart") == read("together"), "{place}: another file");
    }
}

/// Each weight's names, path and value, by stage.
fn names(pipeline: &mut Pipeline) -> Vec<Vec<String>> {
    let weights = pipeline.named_weights().unwrap();
    let said = |weight: &burn_pipeline::stage::NamedWeight| {
        format!("{:?} at {}: {:?}", weight.names, weight.path, read(&weight.value))
    };
    weights.iter().map(|stage| stage.iter().map(said).collect()).collect()
}

#[test]
fn a_file_that_cannot_be_written_is_an_error_on_every_rank_and_the_pipeline_goes_on() {
    let folder = tempdir().unwrap();
    let builder = Cut { schedule: "1F1B", ranks: 3, chunks: 1 }.builder();
    let errors = on_each_rank(&builder, 3, |_, pipeline| {
        let error = pipeline.export(folder.path().join("no/such/folder/model")).unwrap_err();
        pipeline.step(Text::new(SAMPLES).batch(), RATE).unwrap();
        pipeline.export(folder.path().join("model")).unwrap();
        error
    });
    assert!(matches!(&errors[0], CheckpointError::Io { .. }), "{}", errors[0]);
    for error in &errors[1..] {
        assert!(matches!(error, CheckpointError::Elsewhere { rank: 0, .. }), "{error}");
        assert!(error.to_string().contains("no/such/folder/model"), "{error}");
    }
    assert!(SafeTensors::deserialize(&std::fs::read(folder.path().join("model")).unwrap()).is_ok());
}
