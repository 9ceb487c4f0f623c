//! Transfers between groups of different sizes: who sends what to whom, what metadata name, and what is refused.

use crate::boundary::{WIDTH, part, skipping, skipping_batch};
use crate::model::{batch, builder_with};
use crate::parity::RATE;
use crate::plain::{Config, SEQUENCE, SIZED};
use crate::watched::{Bytes, counted};
use burn::tensor::{Device, Tensor};
use burn_pipeline::payload::{PayloadSpec, Skips, Validate};
use burn_pipeline::stage::SplitBackward;
use burn_pipeline::tensor_parallel::Cut;
use burn_pipeline::train::GroupSizes;
use burn_pipeline::{Builder, Pipeline};

/// The bytes of the hidden states of a step's 8 samples.
const HIDDEN: usize = 8 * SIZED.seq * SIZED.width * 4;

fn step(config: Config) -> impl Fn(&mut Pipeline) + Sync {
    move |pipeline| drop(pipeline.step(batch(&config, 8), RATE).unwrap())
}

/// The bytes between two neighbouring groups and each member's counterparts, computed from the sizes alone.
fn expected(sizes: &[usize], sequence: bool) -> Bytes {
    let mut bytes = Bytes::new();
    let first = |pipeline_rank: usize| sizes[..pipeline_rank].iter().sum::<usize>();
    for (left, pair) in sizes.windows(2).enumerate() {
        let [a, b] = *pair else { unreachable!("a window of two") };
        for (kind, (from, senders), (to, receivers)) in
            [("activation", (left, a), (left + 1, b)), ("gradient", (left + 1, b), (left, a))]
        {
            for (sender, receiver) in (0..senders).flat_map(|s| (0..receivers).map(move |r| (s, r))) {
                // True if two members' pieces overlap, with the tensor cut into as many pieces as each group has
                // ranks.
                let meets =
                    sender * receivers < (receiver + 1) * senders && receiver * senders < (sender + 1) * receivers;
                if !meets {
                    continue;
                }
                let own = match (sequence, sender * receivers % senders) {
                    (true, _) => HIDDEN / senders.max(receivers),
                    // Only the first of the members, which all hold it, sends it.
                    (false, 0) => HIDDEN,
                    (false, _) => 0,
                };
                bytes.insert((first(from) + sender, first(to) + receiver, kind.to_owned()), own);
            }
        }
    }
    bytes
}

#[test]
fn each_rank_gets_what_is_whole_from_one_rank_and_of_pieces_its_own() {
    for sizes in [vec![1, 2], vec![2, 1], vec![2, 4], vec![4, 1], vec![1, 2, 4], vec![4, 2, 2]] {
        for sequence in [false, true] {
            let config = Config { sequence, ..SIZED };
            let build = || builder_with(config, ("1F1B", 1), (sizes.len(), 1), sizes.clone());
            let bytes = counted(sizes.iter().sum(), build, step(config));
            assert_eq!(bytes, expected(&sizes, sequence), "{sizes:?}, sequence: {sequence}");
            // Of each kind, each rank gets the whole once, or all ranks of a group together do.
            let of_first: usize = bytes.iter().filter(|(key, _)| key.1 < sizes[0]).map(|(_, bytes)| bytes).sum();
            assert_eq!(of_first, if sequence { HIDDEN } else { sizes[0] * HIDDEN }, "{sizes:?}, sequence: {sequence}");
        }
    }
}

#[test]
fn metadata_name_each_groups_piece_and_the_whole() {
    let mut pipeline = skipping([2, 1, 6], SplitBackward::Eager, false).build().unwrap();
    let metadata = pipeline.metadata(skipping_batch()).unwrap();
    let said = |spec: &Option<PayloadSpec>| spec.as_ref().unwrap().to_string();
    let piece = |size: usize, ranks: usize| {
        format!("float F32 [?, {size}, 6], a piece of [?, 6, 6] cut along axis 1 over {ranks} rank(s)")
    };
    for (said, words) in [
        (said(&metadata[0].1.output), piece(3, 2)),
        (said(&metadata[1].1.input), piece(6, 1)),
        (said(&metadata[2].1.input), piece(1, 6)),
    ] {
        assert!(said.contains(&words), "{words}: {said}");
    }
    // Gradients are pieces too, and arrive cut for the receiver.
    let gradients = said(&metadata[0].1.output_gradients);
    assert!(gradients.contains("float F32 [?, 3, 6]") && !gradients.contains("piece"), "{gradients}");
}

/// Stages that declare their boundaries, for microbatches of 2 samples.
fn declared(sizes: impl Into<GroupSizes>) -> Builder {
    skipping(sizes, SplitBackward::Eager, false).stages(|at| {
        let piece = || Cut::<3, 1>::new(Tensor::zeros([2, 6 / at.group.size(), WIDTH], &Device::flex()), &at.group);
        let none = || (None::<Tensor<3>>, None::<Cut<3, 1>>, Skips(Vec::<Cut<3, 1>>::new()));
        let first = (Some(Tensor::<3>::zeros([2, 6, WIDTH], &Device::flex())), none().1, none().2);
        let passed = |skips: Vec<Cut<3, 1>>| PayloadSpec::of((none().0, Some(piece()), Skips(skips)));
        let (input, output) = match at.index {
            0 => (PayloadSpec::of(first), Some(passed(vec![piece()]))),
            1 => (passed(Vec::new()), Some(passed(Vec::new()))),
            _ => (passed(vec![piece()]), None),
        };
        part(at, None).declare(input, output)
    })
}

#[test]
fn declared_pieces_hold_in_every_microbatch_between_groups_of_any_sizes() {
    for sizes in [[2, 2, 2], [1, 2, 6], [6, 3, 1], [2, 1, 2]] {
        let mut pipeline = declared(sizes).validate(Validate::EveryMicrobatch).build().unwrap();
        (0..2).for_each(|_| drop(pipeline.step(skipping_batch(), 0.1).unwrap()));
    }
}

#[test]
fn sizes_that_do_not_fit_are_refused_at_the_start() {
    let build = |sizes: Vec<usize>| {
        let schedule = (sizes.len().max(1), 1);
        builder_with(SIZED, ("1F1B", 1), schedule, sizes).build().unwrap_err().to_string()
    };
    let three = build(vec![2, 3]);
    assert!(three.contains("stage 0 is held by 2 rank(s) and sends to stage 1, held by 3"), "{three}");
    for none in [vec![], vec![0], vec![1, 0]] {
        assert!(build(none).contains("groups of 0 ranks were requested"));
    }
    let count = builder_with(SIZED, ("1F1B", 1), (3, 1), [1, 2]).build().unwrap_err().to_string();
    assert!(count.contains("2 group sizes were given for 3 pipeline rank(s)"), "{count}");
    // Neighbours fit, but a skip connects the first and the last.
    let skip = skipping([2, 1, 3], SplitBackward::Eager, false).build().unwrap_err().to_string();
    assert!(skip.contains("stage 0 is held by 2 rank(s) and sends to stage 2, held by 3"), "{skip}");
    // Interleaved stages wrap from the last rank to the first.
    let wrap = builder_with(SIZED, ("Interleaved1F1B", 2), (3, 1), [2, 6, 3]).build().unwrap_err().to_string();
    assert!(wrap.contains("stage 2 is held by 3 rank(s) and sends to stage 3, held by 2"), "{wrap}");
    let copies = builder_with(SIZED, ("DualPipe", 1), (2, 1), [1, 2]).build().unwrap_err().to_string();
    assert!(copies.contains("rank(s) and the second by 2; use the same group size"), "{copies}");
}

#[test]
fn both_copies_of_a_stage_may_be_held_by_groups_of_one_size() {
    // Two routes: the first one's stages are on ranks 0 to 3, the second one's on ranks 3 to 0.
    let build = || builder_with(Config { blocks: 4, ..SIZED }, ("DualPipe", 1), (4, 1), [1, 2, 2, 1]);
    let mut pipeline = build().build().unwrap();
    let config = Config { blocks: 4, ..SIZED };
    let expected = crate::parity::plain(config, 8);
    let loss = pipeline.step(batch(&config, 8), RATE).unwrap().loss;
    assert!((loss - expected.steps[0].0).abs() < 1e-5 * loss, "{loss} for {:?}", expected.steps);
}

#[test]
fn a_piece_that_cannot_be_cut_for_the_next_group_is_refused_where_it_is_made() {
    let config = Config { seq: 6, blocks: 2, ..SEQUENCE };
    let mut pipeline = builder_with(config, ("1F1B", 1), (2, 1), [1, 4]).build().unwrap();
    let error = pipeline.step(batch(&config, 8), RATE).unwrap_err().to_string();
    assert!(error.starts_with("rank 0, stage 0, microbatch 0, F: "), "{error}");
    assert!(
        error.contains("float F32 [2, 6, 8], a piece of [2, 6, 8] cut along axis 1 over 1 rank(s)")
            && error.contains("cannot be cut evenly over the 4 rank(s) that hold the stage at the other end"),
        "{error}"
    );
}

#[test]
fn a_piece_of_another_group_than_the_stages_own_is_refused_where_it_is_made() {
    let claims = burn_pipeline::tensor_parallel::TensorGroup::alone;
    let builder = skipping([2, 2, 1], SplitBackward::Eager, false);
    let mut pipeline = builder.stages(move |at| part(at, (at.index == 1).then(claims))).build().unwrap();
    let error = pipeline.step(skipping_batch(), 0.3).unwrap_err().to_string();
    assert!(error.contains("stage 1, microbatch 0, F: ") && error.contains("over 1 rank(s)"), "{error}");
    assert!(error.contains("was cut for another group size than this stage's 2"), "{error}");
}
