//! Mixture of depths: which tokens take the block, and what happens to the others.

use crate::cases::noise;
use burn::tensor::{Device, Int, Tensor};
use burn_pipeline::stage::init_seeded;
use burn_pipeline_moe::layers::{
    AttentionConfig, Block, BlockConfig, BlockKind, MixtureOfDepths, MixtureOfExpertsConfig,
};

const D: usize = 8;

fn config(capacity: f64) -> BlockConfig {
    let attention = AttentionConfig::new(D, 2);
    BlockConfig::new(attention, 16, MixtureOfExpertsConfig::new(D, 8, 4)).with_depth_capacity(capacity)
}

fn block(kind: BlockKind, capacity: f64) -> Block {
    init_seeded(11, &Device::flex(), |device| config(capacity).init(kind, device))
}

fn x(batch: usize, seq: usize) -> Tensor<3> {
    Tensor::<1>::from_floats(&*noise(9, batch * seq * D), &Device::flex()).reshape([batch, seq, D])
}

fn floats<const R: usize>(tensor: Tensor<R>) -> Vec<f32> {
    tensor.into_data().iter::<f32>().collect()
}

#[test]
fn tokens_that_are_no_number_are_chosen_last_and_reach_the_output() {
    for kind in [BlockKind::DenseDepths, BlockKind::ExpertsDepths] {
        let x = x(2, 4);
        let nan = Tensor::<3>::full([1, 2, D], f32::NAN, &Device::flex());
        let x = x.slice_assign([0..1, 0..2, 0..D], nan);
        let documents = Tensor::<2, Int>::zeros([2, 4], &Device::flex());
        let (y, _) = block(kind, 0.5).forward(x.clone(), &documents.into());
        let (before, after) = (floats(x), floats(y));
        let changed: Vec<bool> = before.chunks(D).zip(after.chunks(D)).map(|(a, b)| a != b && !b[0].is_nan()).collect();
        assert_eq!(changed[..4], [false, false, true, true], "{kind:?}");
        assert!(after[..2 * D].iter().all(|value| value.is_nan()), "{kind:?}");
    }
}

#[test]
fn tokens_that_are_not_chosen_go_around_untouched_and_as_many_as_there_is_room_for_do_not() {
    for (capacity, taken) in [(0.5, 4), (0.01, 1), (0.8, 6), (1.0, 7)] {
        for kind in [BlockKind::DenseDepths, BlockKind::ExpertsDepths] {
            let documents = Tensor::<2, Int>::zeros([3, 7], &Device::flex());
            let (y, auxiliary) = block(kind, capacity).forward(x(3, 7), &documents.into());
            let (before, after) = (floats(x(3, 7)), floats(y));
            let changed: Vec<bool> = before.chunks(D).zip(after.chunks(D)).map(|(a, b)| a != b).collect();
            for row in changed.chunks(7) {
                assert_eq!(row.iter().filter(|&&changed| changed).count(), taken, "{kind:?} at {capacity}");
            }
            assert!(auxiliary.depth_router.is_some());
            assert_eq!(auxiliary.load_balance.is_some(), kind == BlockKind::ExpertsDepths);
            if let Some(load) = auxiliary.load {
                let routed: i64 = load.into_data().iter::<i64>().sum();
                assert_eq!(routed as usize, 3 * taken * 2, "two choices for each token that takes the block");
            }
        }
    }
}

#[test]
fn with_room_for_all_it_is_the_block_with_its_change_gated() {
    let Block::All(inner) = block(BlockKind::Dense, 1.0) else { panic!("expected a plain block") };
    let depths = MixtureOfDepths::new(inner.clone(), D, 1.0, &Device::flex());
    let documents = Tensor::<2, Int>::zeros([2, 5], &Device::flex());
    let inner = inner.forward(x(2, 5), &documents.clone().into()).0;
    let (y, _) = depths.forward(x(2, 5), &documents.into());
    let (before, all, gated) = (floats(x(2, 5)), floats(inner), floats(y));
    for token in 0..10 {
        let at = |values: &[f32], i: usize| values[token * D + i];
        let gate = |i| (at(&gated, i) - at(&before, i)) / (at(&all, i) - at(&before, i));
        let clear: Vec<usize> = (0..D).filter(|&i| (at(&all, i) - at(&before, i)).abs() > 1e-3).collect();
        assert!(!clear.is_empty());
        // One gate per token, the sigmoid of a small score.
        assert!(clear.iter().all(|&i| (gate(i) - gate(clear[0])).abs() < 1e-2 && (0.3..0.7).contains(&gate(i))));
    }
}

#[test]
fn chosen_tokens_see_only_chosen_tokens_of_their_document() {
    let block = block(BlockKind::DenseDepths, 1.0);
    let documents = Tensor::<2, Int>::from_ints([[0, 0, 1, 1, 1]], &Device::flex());
    let one = floats(block.forward(x(1, 5), &documents.clone().into()).0);
    let mut changed = floats(x(1, 5));
    // Changes one feature only: a norm removes what all features share.
    changed[0] += 1.0;
    let changed = Tensor::<1>::from_floats(&*changed, &Device::flex()).reshape([1, 5, D]);
    let other = floats(block.forward(changed, &documents.into()).0);
    assert_ne!(one[D..2 * D], other[D..2 * D], "the second token sees the first");
    assert_eq!(one[2 * D..], other[2 * D..], "the second document does not");
}
