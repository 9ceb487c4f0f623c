//! Side data: document ids, and that every microbatch reads its own piece of what is split with the samples, and all of
//! what is replicated, in any order of execution.

use burn::module::{Module, Param};
use burn::tensor::{Device, Int, Tensor};
use burn_pipeline::schedule::{Size, all};
use burn_pipeline::stage::{Batch, LOSS_SEED, Loss, Split, Stage, StageBox};
use burn_pipeline::train::Pipeline;
use burn_pipeline_moe::extras::document_ids;

#[test]
fn documents_grow_at_every_first_token() {
    let tokens = Tensor::<2, Int>::from_ints([[7, 1, 1, 7, 2], [1, 7, 7, 7, 7], [7, 7, 7, 7, 7]], &Device::flex());
    let found: Vec<i64> = document_ids(tokens, 7).into_data().iter::<i64>().collect();
    assert_eq!(found, [1, 1, 1, 2, 2, 0, 1, 2, 3, 4, 1, 2, 3, 4, 5]);
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
        let batch = Batch::new((x, wrong.clone())).target(wrong).extra("ids", count(8));
        let batch = batch.extra("table", Tensor::<2>::zeros([5, 1], &device));
        let report = pipeline.accumulate(batch.split_extra("table", vec![Split::Replicate])).unwrap();
        let observed: Vec<f64> = report.observed.concat();
        assert_eq!(observed, [0.0; 8], "{name}: a sample got the side data of another one");
    }
}
