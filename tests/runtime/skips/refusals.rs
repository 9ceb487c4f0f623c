//! Skip edges that differ between stages and pipeline are refused, with the stage.

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::{Device, Tensor};
use burn_pipeline::execute::ExecuteError;
use burn_pipeline::payload::Skips;
use burn_pipeline::plan::{CheckError, PlanError, SkipEdge};
use burn_pipeline::schedule::{GPipe, Schedule, Size};
use burn_pipeline::stage::{Batch, Stage, StageBox, StageError};
use burn_pipeline::train::{BuildError, Builder, Pipeline, StageContext};

/// Sends a given number of skips, and takes all that arrive.
#[derive(Module, Debug)]
struct Loose {
    linear: Linear,
    gives: usize,
}

impl Stage for Loose {
    type Input = (Tensor<2>, Skips<Tensor<2>>);
    type Extra = ();
    type Output = (Tensor<2>, Skips<Tensor<2>>);

    fn forward(&self, (x, past): Self::Input, (): ()) -> Self::Output {
        let y = past.0.into_iter().fold(self.linear.forward(x), |y, past| y + past);
        (y.clone(), Skips(vec![y; self.gives]))
    }
}

fn builder(gives: &'static [usize]) -> Builder {
    let stage = |at: &StageContext, gives: usize| {
        let loose = Loose { linear: LinearConfig::new(2, 2).init(&at.device), gives };
        match at.is_last() {
            true => StageBox::with_loss(loose, |(y, _): (Tensor<2>, Skips<Tensor<2>>), t: Tensor<2>| (y - t).mean()),
            false => StageBox::new(loose),
        }
    };
    let builder = Pipeline::builder().schedule(GPipe, Size::new(gives.len(), 2));
    builder.devices(vec![Device::flex()]).stages(move |at| stage(at, gives[at.index]))
}

fn batch() -> Batch {
    let x = Tensor::<2>::ones([2, 2], &Device::flex());
    Batch::new((x.clone(), Skips::<Tensor<2>>(vec![]))).target(x)
}

#[test]
fn a_stage_that_puts_out_more_or_fewer_values_than_edges_is_refused() {
    for (gives, got, expected) in [(&[0, 0, 0], 0, 1), (&[2, 0, 0], 2, 1)] {
        let mut pipeline = builder(gives).skip(0, 2).build().unwrap();
        let error = pipeline.accumulate(batch()).unwrap_err();
        let of_rank = error.of_rank().unwrap();
        let ExecuteError::Stage { stage, source, .. } = of_rank.cause() else { panic!("{error}") };
        assert_eq!((stage.index(), source), (0, &StageError::SkipCount { got, expected }));
    }
    let mut pipeline = builder(&[0, 1, 0]).build().unwrap();
    let error = pipeline.eval(batch()).unwrap_err();
    assert!(error.to_string().contains("return one `Skip` for each `Builder::skip`"), "{error}");
    builder(&[1, 0, 0]).skip(0, 2).build().unwrap().accumulate(batch()).unwrap();
}

#[test]
fn edges_that_are_none_are_refused_when_the_pipeline_is_built() {
    let assert_refused = |from, to, part: &str| match builder(&[0, 0, 0]).skip(from, to).build() {
        Err(BuildError::Plan(PlanError::Skip { edge, reason })) => {
            assert!(edge == SkipEdge { from, to } && reason.contains(part), "{edge} {reason}");
        }
        other => panic!("{other:?}"),
    };
    assert_refused(0, 1, "leads to the next stage");
    assert_refused(2, 0, "does not lead to a later stage");
    assert_refused(0, 3, "needs a stage 3, but the plan has 3");
}

#[test]
fn a_given_plan_brings_its_edges_or_lacks_their_transfers() {
    let plan = GPipe.build(Size::new(3, 2)).unwrap();
    let with_edge = plan.clone().with_skips(vec![(0, 2).into()]).unwrap();
    builder(&[1, 0, 0]).plan(with_edge).build().unwrap().accumulate(batch()).unwrap();
    let lowered = plan.with_transfers().unwrap();
    let error = builder(&[1, 0, 0]).plan(lowered).skip(0, 2).build().unwrap_err();
    assert!(matches!(&error, BuildError::Check(error) if matches!(**error, CheckError::Unmet { .. })), "{error}");
}
