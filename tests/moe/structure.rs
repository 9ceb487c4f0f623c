//! Side data: which tensors are split with the samples, which are replicated, and that every microbatch reads its
//! own piece in any order of execution.

use burn::module::{Module, Param};
use burn::tensor::{Device, Int, Tensor};
use burn_pipeline::payload::AnyTensor;
use burn_pipeline::schedule::{Size, all};
use burn_pipeline::stage::{Batch, LOSS_SEED, Loss, Split, Stage, StageBox};
use burn_pipeline::train::Pipeline;
use burn_pipeline_moe::extras::{BatchExtras, BatchExtrasError, document_ids};

fn floats<const D: usize>(shape: [usize; D]) -> AnyTensor {
    AnyTensor::new(Tensor::<D>::zeros(shape, &Device::flex()))
}

#[test]
fn documents_grow_at_every_first_token() {
    let tokens = Tensor::<2, Int>::from_ints([[7, 1, 1, 7, 2], [1, 7, 7, 7, 7], [7, 7, 7, 7, 7]], &Device::flex());
    let found: Vec<i64> = document_ids(tokens, 7).into_data().iter::<i64>().collect();
    assert_eq!(found, [1, 1, 1, 2, 2, 0, 1, 2, 3, 4, 1, 2, 3, 4, 5]);
}

#[test]
fn what_has_the_batchs_size_is_cut_and_the_rest_is_replicated() {
    let structure = BatchExtras::new()
        .with("table", floats([9, 3]))
        .with("ids", floats([6, 4]))
        .with("number", floats([1]))
        .with("by chance", floats([6, 2]))
        .whole("by chance too", floats([6, 2]))
        .by_sample("asked", floats([6]));
    let splits = structure.splits(6).unwrap();
    let cut = |name: &str| splits.iter().find(|(found, _)| *found == name).unwrap().1;
    // The first tensor is a table: the batch's size is not taken from it.
    assert_eq!([cut("table"), cut("number"), cut("by chance too")], [Split::Replicate; 3]);
    assert_eq!([cut("ids"), cut("by chance"), cut("asked")], [Split::Dim(0); 3]);
    let error = BatchExtras::new().by_sample("mask", floats([5, 2])).splits(6).unwrap_err();
    assert_eq!(error, BatchExtrasError::Samples { name: "mask".to_owned(), got: Some(5), samples: 6 });
    assert!(error.to_string().contains("`mask` has Some(5)"), "{error}");
}

/// Adds to a sum what it reads. On every stage, the sample's number in its input must equal that in its side data.
#[derive(Module, Debug)]
struct Reader {
    weight: Param<Tensor<1>>,
}

impl Stage for Reader {
    type Input = (Tensor<2>, Tensor<2>);
    type Extra = (Tensor<2, Int>, Tensor<2>, Tensor<1>);
    type Output = (Tensor<2>, Tensor<2>);

    fn extras(&self) -> Vec<&'static str> {
        vec!["ids", "table", LOSS_SEED]
    }

    fn forward(&self, (x, wrong): Self::Input, (ids, table, _): Self::Extra) -> Self::Output {
        assert_eq!(
            (ids.dims()[0], table.dims()),
            (x.dims()[0], [5, 1]),
            "ids are split with the samples, the table is whole"
        );
        let differs = (x.clone().detach() - ids.float()).abs();
        (x + (self.weight.val() * 0.0).unsqueeze::<2>(), wrong.detach() + differs)
    }
}

fn reader(pipeline: &burn_pipeline::train::StageContext) -> StageBox {
    let reader = Reader { weight: Param::from_tensor(Tensor::ones([1], &pipeline.device)) };
    match pipeline.is_last() {
        false => StageBox::new(reader),
        true => StageBox::with_loss(reader, |(x, wrong): (Tensor<2>, Tensor<2>), _: Tensor<2>| {
            let [samples, _] = wrong.dims();
            Loss::from(x.sum()).observing(wrong.reshape([samples]))
        }),
    }
}

#[test]
fn every_stage_reads_the_piece_of_the_microbatch_that_it_runs_in_every_schedule() {
    let device = Device::flex();
    let count = |n: i64| Tensor::<1, Int>::arange(0..n, &device).reshape([n as usize, 1]);
    for schedule in all().into_iter().filter(|schedule| schedule.info().name != "ForwardOnly") {
        let chunks = match schedule.info().chunks {
            burn_pipeline::schedule::Chunks::Exactly(n) => n,
            burn_pipeline::schedule::Chunks::Any => 2,
        };
        let name = schedule.info().name;
        let builder = Pipeline::builder().schedule(schedule, Size { ranks: 2, chunks, microbatches: 6 });
        let mut pipeline = builder.devices(vec![device.clone()]).stages(reader).build().unwrap();
        let (x, wrong) = (count(8).float(), Tensor::<2>::zeros([8, 1], &device));
        let structure = BatchExtras::new().with("table", floats([5, 1])).with("ids", AnyTensor::new(count(8)));
        let batch = Batch::new((x, wrong.clone())).target(wrong);
        let report = pipeline.accumulate(structure.attach(batch, 8).unwrap()).unwrap();
        let observed: Vec<f64> = report.observed.concat();
        assert_eq!(observed, [0.0; 8], "{name}: a sample got the side data of another one");
    }
}
