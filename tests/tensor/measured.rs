//! Measurements with tensor-parallel groups: the links between pipeline ranks, whole layers, and the stages of one
//! rank.

use crate::model::{batch, builder_with};
use crate::plain::SIZED;
use burn::module::Module;
use burn_pipeline::train::MemoryMeter;

/// Counts nothing: the test looks only at shapes.
pub(crate) struct Nothing;

impl MemoryMeter for Nothing {
    fn allocated(&self) -> usize {
        0
    }

    fn take_peak(&self) -> usize {
        0
    }
}

#[test]
fn links_are_measured_between_pipeline_ranks_whatever_the_groups() {
    for (sizes, replicas) in [(vec![2, 2], 1), (vec![1, 2], 1), (vec![4, 2], 2), (vec![1, 2, 1], 1)] {
        let mut pipeline = builder_with(SIZED, ("1F1B", 1), (sizes.len(), replicas), sizes.clone()).build().unwrap();
        let links = pipeline.measure_links().unwrap().between;
        let mut found: Vec<_> = links.iter().map(|link| (link.from, link.to)).collect();
        found.sort_unstable();
        let mut expected: Vec<_> = (1..sizes.len()).flat_map(|rank| [(rank - 1, rank), (rank, rank - 1)]).collect();
        expected.sort_unstable();
        assert_eq!(found, expected, "{sizes:?}");
        assert!(links.iter().all(|link| link.latency > 0.0), "{links:?}");
        // Training continues afterwards.
        pipeline.step(batch(&SIZED, 8), 0.1).unwrap();
    }
}

#[test]
fn layers_are_measured_whole_whatever_the_groups() {
    // The factory puts the embedding into the first block's stage and the head into the last one's.
    let measured = |members: usize| {
        let builder = builder_with(SIZED, ("1F1B", 1), (2, 1), members);
        builder.measure_layers(batch(&SIZED, 2), &['L'; 6], 0).unwrap().layers
    };
    assert_eq!(measured(2), measured(1));
    let parameters: u64 = measured(2).all().iter().map(|layer| layer.parameters).sum();
    assert_eq!(parameters, SIZED.plain().num_params() as u64);
}

#[test]
fn a_stage_is_measured_as_each_of_its_ranks_holds_it() {
    for sequence in [false, true] {
        let config = crate::plain::Config { sequence, ..SIZED };
        let of = |sizes: [usize; 3]| {
            let builder = builder_with(config, ("1F1B", 1), (3, 1), sizes);
            builder.measure_memory(batch(&config, 2), &Nothing).unwrap().stages().to_vec()
        };
        let (one, groups) = (of([1, 1, 1]), of([1, 4, 2]));
        // Of 2 x 8 positions of 8 features, each member receives its piece.
        let hidden = (2 * 8 * 8 * 4) as f64;
        let share = |ranks: f64| if sequence { hidden / ranks } else { hidden };
        assert_eq!([0, 1].map(|stage| one[stage].message_bytes), [hidden, hidden]);
        assert_eq!([0, 1].map(|stage| groups[stage].message_bytes), [share(4.0), share(2.0)], "in pieces: {sequence}");
        assert_eq!(one[0].weight_bytes, groups[0].weight_bytes);
        // Norms, and the biases of layers cut by rows, are whole.
        let (cut, whole) = (one[1].weight_bytes - groups[1].weight_bytes, one[1].weight_bytes);
        assert!((whole * 0.6..whole * 0.75).contains(&cut), "{cut} of {whole} bytes are on other ranks");
    }
}
