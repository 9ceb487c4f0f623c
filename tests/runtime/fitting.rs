//! Stages that do not fit together are refused when the pipeline is built: their shares of layers, and the types at
//! their boundaries.

use burn::module::{Module, Param};
use burn::tensor::{Device, Int, Tensor};
use burn_pipeline::cost::{Partition, PartitionError};
use burn_pipeline::execute::ExecuteError;
use burn_pipeline::link::Threads;
use burn_pipeline::payload::Skip;
use burn_pipeline::schedule::Size;
use burn_pipeline::stage::{Stage, StageBox};
use burn_pipeline::train::{BuildError, Builder, Pipeline, PipelineError, StageContext};
use std::panic::{AssertUnwindSafe, catch_unwind};

type Rows = Tensor<2>;
type Sent = (Rows, Skip<Tensor<3>>);

/// A module that is built but never run.
trait Made: Stage {
    fn made(weight: Param<Tensor<1>>) -> Self;
}

macro_rules! modules {
    ($($name:ident: $input:ty => $output:ty;)*) => {$(
        #[derive(Module, Debug)]
        struct $name {
            weight: Param<Tensor<1>>,
        }

        impl Stage for $name {
            type Input = $input;
            type Extra = ();
            type Output = $output;

            fn forward(&self, _: $input, (): ()) -> $output {
                unreachable!("it is never run")
            }
        }

        impl Made for $name {
            fn made(weight: Param<Tensor<1>>) -> Self {
                Self { weight }
            }
        }
    )*};
}

modules! {
    Plain: Rows => Rows;
    Single: (Rows,) => Rows;
    OfThree: Tensor<3> => Rows;
    Ids: Rows => Tensor<2, Int>;
    Perhaps: Option<Rows> => Rows;
    Beside: Rows => (Rows, f64);
    Sends: Rows => Sent;
    Takes: Sent => Rows;
    TakesRows: (Rows, Skip<Rows>) => Rows;
}

fn typed<M: Made>(device: &Device) -> StageBox {
    StageBox::new(M::made(Param::from_tensor(Tensor::ones([2], device))))
}

/// Two, three or four stages.
fn builder(stages: usize) -> Builder {
    let builder = Pipeline::builder().schedule("GPipe", Size::new(stages, 2)).devices(vec![Device::flex()]);
    builder.stages(|at| typed::<Plain>(&at.device))
}

/// A model whose stages request their share of a number of layers, which may depend on the stage.
fn layered(stages: usize, layers: impl Fn(usize) -> usize + Send + Sync + 'static) -> Builder {
    builder(stages).stages(move |at| {
        assert!(!at.layers(layers(at.index)).is_empty(), "no stage is empty");
        typed::<Plain>(&at.device)
    })
}

/// A rank's error about layers that cannot be cut.
fn refused(builder: Builder) -> PartitionError {
    let error = builder.build().map(drop).unwrap_err();
    match &error {
        BuildError::Layers(source) => source.clone(),
        BuildError::Stages(stages) => match &**stages {
            PipelineError::Rank(ExecuteError::Layers { source, .. }) => source.clone(),
            other => panic!("{other}"),
        },
        other => panic!("{other}"),
    }
}

#[test]
fn fewer_layers_than_stages_are_refused_as_by_an_even_cut() {
    for layers in [0, 1, 3] {
        assert_eq!(refused(layered(4, move |_| layers)), Partition::even(layers, 4).unwrap_err());
    }
    layered(4, |_| 4).build().unwrap();
    let said = layered(4, |_| 3).build().map(drop).unwrap_err().to_string();
    assert!(said.contains("building stage") && said.contains("3 layers cannot be cut into 4 stages"), "{said}");
}

#[test]
fn a_cut_of_other_layers_or_stages_is_refused_and_not_replaced_by_another() {
    let with = |layers, stages| layered(3, |_| 6).cut(Partition::even(layers, stages).unwrap());
    assert_eq!(refused(with(7, 3)), PartitionError::Size { what: "layers", cut: 7, given: 6 });
    for stages in [2, 4] {
        assert_eq!(refused(with(6, stages)), PartitionError::Size { what: "stages", cut: stages, given: 3 });
        // Also if the factory never requests layers.
        let silent = builder(3).cut(Partition::even(6, stages).unwrap());
        assert_eq!(refused(silent), PartitionError::Size { what: "stages", cut: stages, given: 3 });
    }
    with(6, 3).build().unwrap();
}

#[test]
fn stages_that_ask_for_other_numbers_of_layers_are_refused() {
    let error = layered(3, |index| if index == 2 { 7 } else { 6 }).build().map(drop).unwrap_err();
    assert!(matches!(error, BuildError::OtherLayers { stage: 0, differs: 2, .. }), "{error}");
    assert!(error.to_string().contains("6 layers") && error.to_string().contains("of 7"), "{error}");
    // A stage that requests none is not compared, and each of several layer lists has its own number.
    layered(3, |_| 6).stages(|at| typed::<Plain>(&at.device)).build().unwrap();
    let twice = |at: &StageContext| {
        let _ = (at.layers(6), at.layers(9));
        typed::<Plain>(&at.device)
    };
    builder(3).stages(twice).build().unwrap();
}

#[test]
fn outside_of_a_factory_a_share_that_there_is_not_is_a_panic_with_a_text() {
    let at = StageContext { stages: 4, ..pipeline_tests::reference::whole() };
    let panic = catch_unwind(AssertUnwindSafe(|| at.layers(3))).unwrap_err();
    assert!(panic.downcast_ref::<String>().is_some_and(|text| text.contains("3 layers cannot be cut into 4 stages")));
}

/// The stages that do not fit, and what the error says about them.
fn boundary(builder: Builder) -> Option<(usize, usize, String)> {
    match builder.build() {
        Ok(_) => None,
        Err(BuildError::Boundary { from, to, given, taken }) => Some((from.index(), to.index(), given + " " + &taken)),
        Err(other) => panic!("{other}"),
    }
}

#[test]
fn a_stage_that_takes_something_else_than_the_one_before_gives_is_refused() {
    let of = |middle: fn(&Device) -> StageBox| {
        builder(3).stages(move |at| if at.index == 1 { middle(&at.device) } else { typed::<Plain>(&at.device) })
    };
    assert_eq!(boundary(of(typed::<Plain>)), None);
    assert_eq!(boundary(of(typed::<Single>)), None, "the same parts");
    let (from, to, says) = boundary(of(typed::<OfThree>)).unwrap();
    assert!((from, to) == (0, 1) && says.contains("Tensor<2") && says.contains("Tensor<3"), "{says}");
    assert_eq!(boundary(of(typed::<Ids>)).map(|(from, to, _)| (from, to)), Some((1, 2)));
    assert_eq!(boundary(of(typed::<Perhaps>)).map(|(from, to, _)| (from, to)), Some((0, 1)));
    assert_eq!(boundary(of(typed::<Beside>)).map(|(from, to, _)| (from, to)), Some((1, 2)));
}

#[test]
fn the_value_of_a_skip_edge_is_compared_too() {
    let ends = |last: fn(&Device) -> StageBox| {
        let stages = move |at: &StageContext| match at.index {
            0 => typed::<Sends>(&at.device),
            1 => typed::<Plain>(&at.device),
            _ => last(&at.device),
        };
        builder(3).stages(stages).skip(0, 2)
    };
    assert_eq!(boundary(ends(typed::<Takes>)), None);
    let (from, to, says) = boundary(ends(typed::<TakesRows>)).unwrap();
    assert!((from, to) == (0, 2) && says.contains("Tensor<3") && says.contains("Tensor<2"), "{says}");
}

#[test]
fn processes_compare_the_stages_of_all_and_say_both_numbers_of_microbatches() {
    let each = |builder: &(dyn Fn(usize) -> Builder + Sync)| {
        let links = Threads::new(2);
        std::thread::scope(|scope| {
            let rank = |number: usize| {
                let (builder, link) = (builder(number), links.link(number, Device::flex()));
                scope.spawn(move || builder.build_rank(Box::new(link)).map(drop).unwrap_err())
            };
            [rank(0), rank(1)].map(|rank| rank.join().unwrap())
        })
    };
    let unlike = |at: &StageContext| match at.index {
        0 => typed::<Plain>(&at.device),
        _ => typed::<OfThree>(&at.device),
    };
    for error in each(&|_| builder(2).stages(unlike)) {
        assert!(matches!(error, BuildError::Boundary { .. }), "{error}");
    }
    for error in each(&|rank| layered(2, move |_| 4 + rank)) {
        assert!(matches!(error, BuildError::OtherLayers { .. }), "{error}");
    }
    for error in each(&|rank| builder(2).schedule("GPipe", Size::new(2, 4 + 4 * rank))) {
        let said = error.to_string();
        assert!(said.contains("the number of microbatches: it has 8, and they have 4"), "{said}");
        assert_eq!(format!("{error:?}"), said, "what a program prints whose `main` returns it");
    }
}
