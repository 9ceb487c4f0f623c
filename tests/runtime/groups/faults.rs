//! A failure in one replica ends all replicas, with the rank of the job that failed.

use super::{RATE, replicated};
use crate::cases::{Case, Text};
use crate::faulty::{Fault, How, batch, faulty};
use crate::groups::control::{Tamper, on_links};
use crate::watchdog::{quiet_ranks, within};
use burn::tensor::Device;
use burn_pipeline::link::Threads;
use burn_pipeline::train::{BuildError, PipelineError};
use std::time::Duration;

#[test]
fn a_failing_stage_of_any_replica_is_named_by_its_rank_of_the_job() {
    quiet_ranks();
    for (how, words) in [
        (How::PanicInForward, "a broken forward"),
        (How::PanicInBackward, "a broken backward"),
        (How::LossPanics, "a broken loss"),
    ] {
        for stage in [0, 1] {
            if how == How::LossPanics && stage == 0 {
                continue;
            }
            // Microbatches 0 to 3 are replica 0's, 4 to 7 replica 1's.
            for microbatch in [1, 6] {
                within(20, &format!("{how:?} on stage {stage}, microbatch {microbatch}"), move || {
                    let fault = Fault { stage, microbatch, how };
                    let builder = replicated::<Text>(("1F1B", 1), 4, 2).stages(faulty(Some(fault)));
                    let mut pipeline = builder.build().unwrap();
                    let error = pipeline.step(batch(8), RATE).unwrap_err();
                    let rank = 2 * stage + microbatch / 4;
                    let place = format!("rank {rank}, stage {stage}, microbatch {}", microbatch % 4);
                    let error = error.to_string();
                    assert!(error.starts_with(&place) && error.contains(words), "{error} does not say {place}");
                    assert!(error.contains(&format!(" of replica {}", microbatch / 4)), "{error}");
                    let again = pipeline.step(batch(8), RATE).unwrap_err();
                    assert!(matches!(again, PipelineError::Undone { .. }), "{again}");
                    assert!(again.to_string().starts_with(&place), "{again} does not say {place}");
                });
            }
        }
    }
}

#[test]
fn lost_gradients_are_missed_by_the_replica_that_waits_for_them() {
    quiet_ranks();
    within(60, "lost gradients", || {
        let case = Text::new(8);
        let builder = replicated::<Text>(("1F1B", 1), 4, 2).timeout(Duration::from_secs(2));
        // Rank 2 is pipeline rank 1 of replica 0; rank 3, of replica 1, waits for its gradients in vain.
        let errors = on_links(&builder, Tamper::Lose { rank: 2 }, |pipeline| {
            pipeline.step(case.batch(), RATE).unwrap_err().to_string()
        });
        let said = "a replica's gradients of stage 1 from rank 2";
        assert!(errors[3].contains(said), "{}", errors[3]);
        for error in errors {
            assert!(error.contains("rank 2") || error.contains("rank 3"), "{error}");
        }
    });
}

#[test]
fn lost_shards_are_missed_where_they_are_used() {
    quiet_ranks();
    within(60, "lost shards", || {
        let case = Text::new(8);
        let builder = replicated::<Text>(("1F1B", 1), 4, 2).sharded(true).timeout(Duration::from_secs(2));
        // Rank 1 is pipeline rank 0 of replica 1; rank 0, of replica 0, needs its shards for its first forward.
        let errors = on_links(&builder, Tamper::LoseShards { rank: 1 }, |pipeline| {
            pipeline.step(case.batch(), RATE).unwrap_err().to_string()
        });
        let said = "a replica's shard of stage 0 from rank 1";
        assert!(errors[0].contains("rank 0, at 0F0") && errors[0].contains(said), "{}", errors[0]);
        for error in errors {
            assert!(error.contains("rank 0") || error.contains("rank 1"), "{error}");
        }
    });
}

#[test]
fn links_of_another_number_of_ranks_are_refused() {
    let threads = Threads::new(3);
    let link = Box::new(threads.link(0, Device::flex()));
    let error = replicated::<Text>(("1F1B", 1), 4, 2).build_rank(link).unwrap_err();
    assert!(matches!(error, BuildError::Replicas { ranks: 2, all: 4, linked: 3 }), "{error}");
    assert!(error.to_string().contains("start 4 processes"), "{error}");
}
