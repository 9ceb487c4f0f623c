//! Parameter groups with their own optimizers and learning rates are declared by the model's names.

use crate::cases::{Case, Text};
use crate::checkpoint::on_each_rank;
use crate::parity::builder;
use burn::lr_scheduler::module_lr_scheduler::{ModuleLearningRate, ModuleLrScheduler};
use burn::module::ParamGroup;
use burn::tensor::Device;
use burn_pipeline::Pipeline;
use burn_pipeline::link::Threads;
use burn_pipeline::schedule::{OneFOneB, Size};
use burn_pipeline::train::{BuildError, PipelineError};

fn blocks() -> ParamGroup {
    ParamGroup::from_predicate("blocks.3.")
}

#[test]
fn a_declared_group_that_matches_nothing_is_refused_with_its_name() {
    let builder = || builder::<Text>(&OneFOneB, Size::new(2, 2)).parameter_group(blocks());
    assert!(builder().build().is_ok());
    let error = builder().parameter_group(ParamGroup::from_predicate("block.3.")).build().unwrap_err();
    let BuildError::EmptyGroup { .. } = &error else { panic!("{error}") };
    let said = error.to_string();
    assert!(said.contains("block.3.") && said.contains("`blocks.0."), "{said}");
}

#[test]
fn processes_with_other_rates_for_a_group_are_told_so() {
    let threads = Threads::new(2);
    let run = |rank: usize| {
        let mut pipeline = builder::<Text>(&OneFOneB, Size::new(2, 2))
            .build_rank(Box::new(threads.link(rank, Device::flex())))
            .unwrap();
        let rates = |rate| ModuleLrScheduler::new(1e-2).with_group(blocks(), rate).step();
        let alike = pipeline.step(Text::new(2).batch(), rates(0.5)).map(drop);
        let unlike = pipeline.step(Text::new(2).batch(), rates([0.5, 0.25][rank])).map(drop);
        (alike, unlike)
    };
    let run = &run;
    let outcomes: Vec<_> = std::thread::scope(|scope| {
        let ranks: Vec<_> = (0..2).map(|rank| scope.spawn(move || run(rank))).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    });
    for (alike, unlike) in outcomes {
        alike.unwrap();
        let said = unlike.unwrap_err().to_string();
        assert!(said.contains("at others for") && said.contains("all processes must make the same calls"), "{said}");
    }
}

#[test]
fn a_learning_rate_without_a_rate_is_refused_and_the_pipeline_trains_on() {
    let builder = || builder::<Text>(&OneFOneB, Size::new(2, 2));
    let step = |pipeline: &mut Pipeline| pipeline.step(Text::new(2).batch(), 1e-2).unwrap().loss;
    let (mut refusing, mut other) = (builder().build().unwrap(), builder().build().unwrap());
    assert_eq!(step(&mut refusing), step(&mut other));
    let error = refusing.step(Text::new(2).batch(), ModuleLearningRate::default()).unwrap_err();
    assert!(matches!(error, PipelineError::NoLearningRate), "{error}");
    assert!(error.to_string().contains("give a number, or what `ModuleLrScheduler::step` returns"), "{error}");
    let expected = step(&mut other);
    assert_eq!(step(&mut refusing), expected);
    // One process refuses for all.
    let after = on_each_rank(&builder(), 2, |rank, pipeline| {
        step(pipeline);
        let rate = if rank == 1 { ModuleLearningRate::default() } else { 1e-2.into() };
        let error = pipeline.step(Text::new(2).batch(), rate).unwrap_err().to_string();
        assert!(error.contains("give a number, or what"), "{error}");
        step(pipeline)
    });
    assert_eq!(after, [expected; 2]);
}
