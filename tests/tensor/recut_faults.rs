//! Failures in groups of different sizes name their rank, and differences that only a smaller group could hide are
//! found.

use crate::faults::{How, TIMEOUT, batch, builder_over, fails_over, layer};
use burn::tensor::Device;
use burn_pipeline::link::{TcpLink, Threads};
use burn_pipeline::stage::SplitBackward;
use burn_pipeline::{Builder, StageContext};
use std::time::Duration;

/// Two stages in groups of these sizes, with a fault for each.
fn builder(sizes: [usize; 2], how: impl Fn(&StageContext) -> How + Send + Sync + 'static) -> Builder {
    builder_over(How::Nothing, SplitBackward::Eager, sizes).stages(move |at| layer(at, how(at)))
}

#[test]
fn a_member_of_a_larger_or_smaller_group_that_fails_is_named_by_its_rank_in_the_job() {
    for (sizes, rank) in [([1, 2], 2), ([2, 4], 3), ([4, 2], 5)] {
        for split in [SplitBackward::Eager, SplitBackward::Auto] {
            let (error, took) = fails_over(How::Panic, split, sizes);
            let words = format!("rank {rank}, stage 1, microbatch 0, F: the stage's code panicked: a broken forward");
            assert!(error.starts_with(&words), "{sizes:?}: {error}");
            assert!(took < TIMEOUT, "{took:?}");
        }
        let (error, took) = fails_over(How::PanicInBackward, SplitBackward::Eager, sizes);
        assert!(error.starts_with(&format!("rank {rank}, stage 1, microbatch 0, I: ")), "{sizes:?}: {error}");
        assert!(took < TIMEOUT, "{took:?}");
    }
}

#[test]
fn a_member_that_stalls_is_named_by_its_rank_in_the_job() {
    let (error, _) = fails_over(How::Stall, SplitBackward::Eager, [1, 2]);
    assert!(error.contains("rank 2") && error.contains("did not answer"), "{error}");
}

#[test]
fn members_of_the_last_group_whose_losses_differ_are_named() {
    for (sizes, words) in [([1, 2], "ranks 1 and 2"), ([2, 4], "ranks 2 and 3")] {
        let broken = builder(sizes, |at| if at.is_last() { How::NoReduce } else { How::Nothing });
        let error = broken.build().unwrap().step(batch(), 0.1).unwrap_err().to_string();
        assert!(
            error.contains(&format!("{words} of the last stage's tensor-parallel group computed the losses")),
            "{error}"
        );
    }
}

#[test]
fn an_activation_that_is_not_whole_is_found_though_a_smaller_group_takes_one_members() {
    // No loss could show it: the last stage is on one rank.
    let broken = || builder([2, 1], |at| if at.is_first() { How::NoReduce } else { How::Nothing }).build().unwrap();
    for error in [broken().step(batch(), 0.1).unwrap_err().to_string(), broken().eval(batch()).unwrap_err().to_string()]
    {
        assert!(
            error.starts_with(
                "rank 2, stage 1, microbatch 0, F: ranks 0 and 1 are members of the tensor-parallel group at the"
            ),
            "{error}"
        );
        assert!(error.contains("gave different values of float F32 [2, 4], which is whole on both of them"), "{error}");
    }
}

#[test]
fn a_gradient_that_is_not_whole_is_found_though_a_smaller_group_takes_one_members() {
    // No gradient of a weight could show it: the first stage is on one rank.
    let broken = builder([1, 2], |at| if at.is_last() { How::NoCopy } else { How::Nothing });
    let error = broken.build().unwrap().step(batch(), 0.1).unwrap_err().to_string();
    assert!(
        error.starts_with(
            "rank 0, stage 0, microbatch 0, I: ranks 1 and 2 are members of the tensor-parallel group at the"
        ),
        "{error}"
    );
    assert!(error.contains("gave different values of float F32 [2, 4]"), "{error}");
}

#[test]
fn gradients_that_are_not_whole_are_found_by_each_rank_that_gets_one() {
    let broken = builder([2, 4], |at| if at.is_last() { How::NoCopy } else { How::Nothing });
    let error = broken.build().unwrap().step(batch(), 0.1).unwrap_err().to_string();
    let found = |rank: usize, first: usize, other: usize| {
        let words = format!("rank {rank}, stage 0, microbatch 0, I: ranks {first} and {other} are members of");
        error.starts_with(&words)
    };
    assert!(found(0, 2, 3) || found(1, 4, 5), "{error}");
}

#[test]
fn a_process_that_leaves_groups_of_different_sizes_over_tcp_is_named() {
    let threads = Threads::new(3);
    let errors: Vec<String> = std::thread::scope(|scope| {
        let rank = |rank: usize| {
            let threads = threads.clone();
            scope.spawn(move || {
                let mut first = threads.link(rank, Device::flex());
                let link = TcpLink::by_link(&mut first, Device::flex(), Duration::from_secs(20)).unwrap();
                let builder = builder_over(How::Nothing, SplitBackward::Auto, [1, 2]);
                let mut pipeline = builder.build_rank(Box::new(link)).unwrap();
                // A slower rank may learn of the failure in its first step, when others are in their second.
                let steps = if rank == 2 { 1 } else { 2 };
                let error = (0..steps).find_map(|_| pipeline.step(batch(), 0.1).err());
                error.map(|error| error.to_string()).unwrap_or_default()
            })
        };
        let ranks: Vec<_> = (0..3).map(rank).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    });
    for error in &errors[..2] {
        assert!(error.contains("rank 2"), "{error}");
    }
}
