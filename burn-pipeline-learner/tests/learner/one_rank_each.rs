//! Two threads that each have a learner and a training, as processes do: what rank 0 decides for both, and what is
//! refused.

use crate::classifier::{Classifier, Cut, points};
use crate::ranks::{DEADLINE, other_model, slowing, train};
use crate::training::{
    Training, adam, assert_equal, assert_same_weights, device, is_untrained, learner, message, metrics, model, training,
};
use burn::lr_scheduler::constant::ConstantLr;
use burn::optim::SgdConfig;
use burn::tensor::Device;
use burn_pipeline::link::{Link, Threads};
use burn_train::checkpoint::KeepLastNCheckpoints;
use burn_train::metric::AccuracyMetric;
use burn_train::metric::store::{Aggregate, Direction, Split};
use burn_train::{Learner, LearningResult, MetricEarlyStoppingStrategy, StoppingCondition, TrainingError};
use std::time::Instant;
use tempfile::{TempDir, tempdir};

/// The results of two ranks, as threads that each have their own training.
fn each_rank(
    rank: impl Fn(Box<dyn Link>) -> (TempDir, LearningResult<Classifier>) + Sync,
) -> [(TempDir, LearningResult<Classifier>); 2] {
    let links = Threads::new(2);
    std::thread::scope(|scope| {
        let start = |number| {
            let (link, rank) = (links.link(number, Device::flex()), &rank);
            scope.spawn(move || rank(Box::new(link)))
        };
        [start(0), start(1)].map(|rank| rank.join().unwrap())
    })
}

/// Asserts that both ranks' trainings ended with errors that contain these texts.
fn assert_refused(ranks: [(TempDir, LearningResult<Classifier>); 2], says: [&str; 2]) {
    for (rank, (_, result)) in ranks.iter().enumerate() {
        for part in says {
            let message = message(result);
            assert!(message.contains(part), "rank {rank}, `{part}` in: {message}");
        }
    }
}

#[test]
fn running_statistics_come_back_on_every_rank() {
    let one = tempdir().unwrap();
    let expected = training(one.path()).launch(slowing(model().with_norm(&device())));
    // With one microbatch, the statistics are those of the whole batch.
    let ranks = each_rank(|link| {
        let model = other_model(link.rank()).with_norm(&device());
        train(link, ("GPipe", 1), |training| training, slowing(model))
    });
    assert_equal("rank 0", (&one, &expected), (&ranks[0].0, &ranks[0].1));
    assert_same_weights("rank 1", &expected, &ranks[1].1);
}

#[test]
fn the_first_ranks_early_stopping_and_number_of_epochs_count_for_all() {
    let stopping = |training: Training| {
        let condition = StoppingCondition::NoImprovementSince { n_epochs: 1 };
        let (mean, highest) = (Aggregate::Mean, Direction::Highest);
        let strategy = MetricEarlyStoppingStrategy::new(&AccuracyMetric::new(), mean, highest, Split::Valid, condition);
        training.num_epochs(30).early_stopping(strategy)
    };
    let descending = || Learner::new(model(), SgdConfig::new().init(), ConstantLr::new(0.1));
    let one = tempdir().unwrap();
    let expected = stopping(training(one.path())).launch(descending());
    let ranks = each_rank(|link| {
        let first = link.rank() == 0;
        train(link, ("1F1B", 4), |training| if first { stopping(training) } else { training }, descending())
    });
    assert!((2..30).contains(&(metrics(one.path()).len() / 4)), "it stops early");
    assert_equal("rank 0", (&one, &expected), (&ranks[0].0, &ranks[0].1));
    assert_same_weights("rank 1", &expected, &ranks[1].1);
}

#[test]
fn a_training_goes_on_from_the_first_ranks_checkpoint_where_the_others_have_none() {
    let (whole, saved) = (tempdir().unwrap(), tempdir().unwrap());
    let expected = training(whole.path()).num_epochs(4).launch(slowing(model()));
    let saving = |training: Training| {
        training.with_default_checkpointers().with_checkpointing_strategy(KeepLastNCheckpoints::new(2))
    };
    saving(training(saved.path()).num_epochs(2)).launch(slowing(model()));
    let ranks = each_rank(|link| {
        let (rank, first) = (link.rank(), link.rank() == 0);
        let resumed =
            |own: Training| if first { saving(training(saved.path()).num_epochs(4)).checkpoint(2) } else { own };
        train(link, ("1F1B", 4), resumed, slowing(other_model(100 + rank)))
    });
    assert_equal("rank 0", (&whole, &expected), (&saved, &ranks[0].1));
    assert_same_weights("rank 1", &expected, &ranks[1].1);
    assert!(!ranks[1].0.path().join("checkpoint").exists(), "rank 1 saves nothing");
}

#[test]
fn an_interruption_of_any_rank_stops_all_after_the_same_item() {
    for interrupted in [0, 1] {
        let one = tempdir().unwrap();
        let stop = |training: Training| {
            training.interrupter().stop(Some("enough"));
            training
        };
        let expected = stop(training(one.path())).launch(slowing(model()));
        let ranks = each_rank(|link| {
            let own = link.rank() == interrupted;
            train(link, ("1F1B", 4), |training| if own { stop(training) } else { training }, slowing(model()))
        });
        assert_equal("rank 0", (&one, &expected), (&ranks[0].0, &ranks[0].1));
        assert_same_weights("rank 1", &expected, &ranks[1].1);
        for (_, result) in ranks {
            assert_eq!(result.interrupted.and_then(|stop| stop.reason).as_deref(), Some("enough"));
        }
    }
}

#[test]
fn data_loaders_that_give_other_items_are_refused_before_a_step() {
    let ranks = each_rank(|link| {
        // Both classes and coordinates differ.
        let loader = points(40, 12, 0.2 * link.rank() as f32);
        let shuffled = |_: Training| {
            Training::new(tempdir().unwrap().path(), loader, points(20, 8, 0.0)).with_application_logger(None)
        };
        train(link, ("1F1B", 4), shuffled, slowing(model()))
    });
    assert!(ranks.iter().all(|(_, result)| is_untrained(&result.model)));
    assert_refused(
        ranks,
        ["rank 1 is training 1F1B over 12 samples in 4 microbatches with values #", "while others are"],
    );
}

#[test]
fn other_learning_rates_are_refused_with_both() {
    let ranks = each_rank(|link| {
        let rate = [0.01, 0.02][link.rank()];
        train(link, ("1F1B", 4), |training| training, learner(model(), ConstantLr::new(rate)))
    });
    assert_refused(
        ranks,
        [
            "rank 1 is after item 1 of epoch 1 at learning rate 0.02",
            "rank 0 is after item 1 of epoch 1 at learning rate 0.01",
        ],
    );
}

#[test]
fn other_optimizers_are_refused_by_the_weights_that_they_give() {
    let ranks = each_rank(|link| {
        let optimizer = if link.rank() == 0 { adam() } else { SgdConfig::new().init() };
        train(link, ("1F1B", 4), |training| training, Learner::new(model(), optimizer, ConstantLr::new(0.01)))
    });
    assert_refused(ranks, ["rank 1 is at the end of epoch 1 with weights #", "while rank 0 is at the end of epoch 1"]);
}

#[test]
fn a_model_of_another_shape_is_refused_by_every_rank() {
    let ranks = each_rank(|link| {
        let odd = link.rank() == 1;
        let model = if odd { model().with_norm(&device()) } else { model() };
        train(link, ("1F1B", 4), |training| training, slowing(model))
    });
    assert_refused(ranks, ["rank 0's learner cannot be loaded", "norm"]);
}

#[test]
fn a_panic_of_one_ranks_stage_and_a_cut_that_leaves_out_a_layer_end_all() {
    let panics = || model().that_panics();
    let leaves_out = || model().cut(Cut::LeavesOut);
    for (broken, says) in [
        (&panics as &(dyn Fn() -> Classifier + Sync), ["rank 1", "this layer is broken"]),
        (&leaves_out, ["no stage holds", "layers.2.weight"]),
    ] {
        let began = Instant::now();
        let ranks = each_rank(|link| train(link, ("1F1B", 4), |training| training, slowing(broken())));
        assert!(ranks.iter().all(|(_, result)| is_untrained(&result.model)));
        for (_, result) in ranks.iter().filter(|_| says[0] == "rank 1") {
            let Some(TrainingError::Workers(failures)) = result.error.as_deref() else { panic!("{}", message(result)) };
            assert_eq!(failures[0].device_id, 1, "both name the rank that failed");
        }
        assert_refused(ranks, says);
        assert!(began.elapsed() < DEADLINE / 2, "it did not wait for its timeout");
    }
}
