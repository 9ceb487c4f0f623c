//! The planner with a parallel vocabulary, and with tensor-parallel groups.

use burn_pipeline_plan::cost::{
    Dtype, Layer, Layers, LinkCost, LinkCosts, LinkOverride, PartitionError, VocabularyCost,
};
use burn_pipeline_plan::plan::PlacementKind;
use burn_pipeline_plan::planner::{
    Candidate, Cut, PassChoice, PlannerError, Recompute, Request, Synthesis, Workload, best_plan,
};
use proptest::prelude::{ProptestConfig, prop, prop_assert, proptest};

/// Blocks of (1, 1, 1) between an embedding and a head that takes as long as `head` blocks.
fn model(blocks: usize, head: f64) -> Layers {
    let layer = |kind, seconds: f64| Layer {
        activation_bytes: 10.0,
        output_bytes: 2.0,
        summed_bytes: Some(4.0),
        ..Layer::new(kind).with_seconds(seconds, seconds, seconds).with_parameters(10, Dtype::F32)
    };
    let layers = [vec![layer('E', 0.1)], vec![layer('A', 1.0); blocks], vec![layer('L', head)]].concat();
    Layers::new(layers).unwrap()
}

fn links(latency: f64, bandwidth: f64) -> LinkCosts {
    LinkCosts { default: LinkCost { latency, bandwidth: Some(bandwidth) }, between: Vec::new() }
}

/// One copy of the model, with schedules and even or optimal cuts only, so that many requests are planned quickly.
fn request(layers: Layers, ranks: usize, microbatches: usize, links: LinkCosts) -> Request {
    Request {
        chunks: vec![1, 2],
        placements: Some(vec![PlacementKind::Loop, PlacementKind::V]),
        cuts: vec![Cut::Even, Cut::Optimal],
        recompute: vec![Recompute::Never],
        passes: vec![PassChoice::AsBuilt, PassChoice::MergeBackward],
        synthesis: None,
        unpipelined: false,
        ..Request::new(vec![Workload::new(microbatches, layers)], ranks, links)
    }
}

#[test]
fn a_head_that_outweighs_a_stage_is_spread() {
    // 8 blocks and a head of 8 on 4 ranks: no cut is better than 8 of 16; with a parallel vocabulary every rank has
    // 4.
    let request = request(model(8, 8.0), 4, 16, links(1e-3, 1e4));
    let alone = best_plan(&request).unwrap();
    let both = best_plan(&request.clone().with_vocabulary_parallel()).unwrap();
    assert!(!alone.best.vocabulary_parallel && both.best.vocabulary_parallel);
    assert!(both.best.to_string().contains("vocabulary parallel"), "{}", both.best);
    assert!(alone.best.seconds > 1.7 * both.best.seconds, "{} and {}", alone.best.seconds, both.best.seconds);
    assert!(both.plan.plan().has_vocabulary());
    assert!(both.bound <= both.best.seconds && both.best.seconds < 1.2 * both.bound);
    assert!((both.profile.vocabulary().unwrap().head_forward - 2.0).abs() < 1e-12);
}

#[test]
fn a_synthesised_schedule_is_spread_too() {
    let synthesis = Some(Synthesis { starts: 1, listing: 2_000, ..Synthesis::default() });
    let request = Request { synthesis, ..request(model(6, 3.0), 3, 6, links(1e-3, 1e4)) };
    let report = best_plan(&request.with_vocabulary_parallel()).unwrap();
    let made = report.candidates.iter().filter(|candidate| candidate.strategy.to_string() == "synthesised");
    assert!(made.clone().any(|candidate| candidate.vocabulary_parallel));
    assert!(made.clone().any(|candidate| !candidate.vocabulary_parallel));
}

#[test]
fn a_cap_counts_pieces_and_their_state() {
    let request = Request { state_factor: 4.0, ..request(model(4, 4.0), 2, 8, links(0.0, 1e6)) };
    let report = best_plan(&request.with_vocabulary_parallel()).unwrap();
    assert!(report.best.vocabulary_parallel);
    // Two blocks of 40 bytes, and halves of head and embedding, each with gradients and moments.
    assert!(report.simulation.ranks.iter().all(|rank| rank.weight_bytes == 4.0 * (2.0 * 40.0 + 20.0 + 20.0)));
    let capped = Request { cap: Some(report.best.peak_bytes - 1.0), ..request_of(&report.best, model(4, 4.0)) };
    if let Ok(capped) = best_plan(&capped.with_vocabulary_parallel()) {
        assert!(capped.best.peak_bytes < report.best.peak_bytes);
    }
}

fn request_of(best: &Candidate, layers: Layers) -> Request {
    Request { state_factor: 4.0, ..request(layers, 2, best.microbatches, links(0.0, 1e6)) }
}

#[test]
fn groups_pay_where_layers_are_few_and_links_fast() {
    // 3 blocks cannot be cut into 6 stages, but into 3 for pairs of ranks.
    let layers = || Layers::new(model(3, 1.0).all()[1..4].to_vec()).unwrap();
    let fast = request(layers(), 6, 6, links(1e-4, 1e6));
    assert!(matches!(best_plan(&fast), Err(PlannerError::NothingFits { .. })));
    let report = best_plan(&fast.with_tensor_groups(vec![2, 3, 4])).unwrap();
    let mut candidates = report.candidates.iter();
    let equal = candidates.clone().find(|candidate| candidate.groups.is_empty()).unwrap();
    assert_eq!((equal.members, equal.partition.stages()), (2, 3));
    assert!(equal.to_string().contains("each stage on 2 ranks"));
    // Groups of 4 and 2 have the same load, in fewer stages.
    assert!(report.best.groups == [4, 2] || report.best.groups == [2, 4], "{}", report.best);
    assert!(candidates.all(|candidate| [2, 3, 4].contains(&candidate.members)));
}

#[test]
fn slow_links_make_more_stages_better_than_groups() {
    let blocks = || Layers::new(model(8, 1.0).all()[1..9].to_vec()).unwrap();
    let members = |bandwidth: f64| {
        let request = request(blocks(), 4, 4, links(0.0, bandwidth));
        best_plan(&request.with_tensor_groups(vec![2, 4])).unwrap().best.members
    };
    // An all-reduce of 4 bytes between pairs takes the time of 4 bytes, twice a block.
    assert_eq!(members(0.5), 1);
    assert!(members(1e9) > 1);
    // Fast inside pairs, slow between them.
    let fast = [(0, 1), (1, 0), (2, 3), (3, 2)];
    let between = fast.map(|(from, to)| LinkOverride { from, to, latency: 0.0, bandwidth: Some(1e9) }).to_vec();
    let links = LinkCosts { default: LinkCost { latency: 0.0, bandwidth: Some(0.5) }, between };
    let report = best_plan(&request(blocks(), 4, 4, links).with_tensor_groups(vec![2, 4])).unwrap();
    assert_eq!(report.best.members, 2);
}

#[test]
fn what_cannot_be_spread_is_refused() {
    let two = Layers::new(vec![Layer::new('E'), Layer::new('L')]).unwrap();
    let error = best_plan(&request(two, 1, 1, links(0.0, 1.0)).with_vocabulary_parallel()).unwrap_err();
    assert_eq!(error, PlannerError::Layers(PartitionError::Vocabulary));
    let layers = model(2, 1.0).with_skips(vec![(0, 2).into()]).unwrap();
    assert_eq!(layers.vocabulary_parallel(2).unwrap_err(), PartitionError::Vocabulary);
    let inside = model(4, 1.0).with_skips(vec![(1, 3).into()]).unwrap();
    assert_eq!(inside.vocabulary_parallel(2).unwrap().0.skips(), [(0, 2).into()]);
}

#[test]
fn a_batch_cut_otherwise_scales_its_pieces() {
    let workload = Workload::new(4, model(2, 3.0)).vocabulary_parallel(3).unwrap();
    let pieces = workload.vocabulary.unwrap();
    let finer = workload.recut(8, 0.5).unwrap().vocabulary.unwrap();
    assert_eq!((pieces.head_forward, finer.head_forward), (1.0, 0.75));
    let half = VocabularyCost { hidden_bytes: pieces.hidden_bytes / 2.0, ..finer };
    assert_eq!((finer, finer.weight_bytes), (half, pieces.weight_bytes));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn new_choices_are_never_worse_than_none(
        blocks in 4usize..9, head in 0.1..12.0f64, ranks in 1usize..5, microbatches in 1usize..9, latency in 0.0..0.2f64,
        cap in prop::option::of(300.0..900.0f64),
    ) {
        let request = Request { cap, ..request(model(blocks, head), ranks, microbatches, links(latency, 100.0)) };
        let without = best_plan(&request);
        let with = best_plan(&request.with_vocabulary_parallel().with_tensor_groups(vec![2]));
        match (without, with) {
            (Ok(without), Ok(with)) => {
                prop_assert!(with.best.seconds <= without.best.seconds);
                prop_assert!(with.bound <= with.best.seconds * (1.0 + 1e-9));
                prop_assert!(cap.is_none_or(|cap| with.best.peak_bytes <= cap));
            }
            (Ok(_), Err(error)) => prop_assert!(false, "{error}"),
            (Err(_), _) => {}
        }
    }
}

/// A published model: blocks of one kind between an embedding and a head, in bfloat16.
struct Published {
    name: &'static str,
    blocks: usize,
    hidden: f64,
    /// Parameters of a block.
    block: f64,
    /// Total width of all attention heads.
    attention: f64,
    vocabulary: f64,
    sequence: f64,
}

/// A device's floating-point operations a second, and the bandwidth in bytes a second within a machine of eight and
/// between machines.
const RATE: f64 = 4e14;
const INSIDE: f64 = 4.5e11;
const BETWEEN: f64 = 5e10;

impl Published {
    fn all() -> [Self; 3] {
        [
            Self {
                name: "Llama 3 8B",
                blocks: 32,
                hidden: 4096.0,
                block: 4096.0 * (2.0 * 4096.0 + 2.0 * 1024.0 + 3.0 * 14336.0),
                attention: 4096.0,
                vocabulary: 128_256.0,
                sequence: 8192.0,
            },
            Self {
                name: "Llama 3 70B",
                blocks: 80,
                hidden: 8192.0,
                block: 8192.0 * (2.0 * 8192.0 + 2.0 * 1024.0 + 3.0 * 28672.0),
                attention: 8192.0,
                vocabulary: 128_256.0,
                sequence: 8192.0,
            },
            Self {
                name: "1B, 256k words",
                blocks: 26,
                hidden: 1152.0,
                block: 1152.0 * (2.0 * 1024.0 + 2.0 * 256.0 + 3.0 * 6912.0),
                attention: 1024.0,
                vocabulary: 262_144.0,
                sequence: 4096.0,
            },
        ]
    }

    /// The layers for microbatches of one sequence: FLOPs of matmuls and causal attention; 34 bytes of activations
    /// for each hidden value of a block (Korthikanti et al. 2022, with attention that keeps no scores), 4 bytes for
    /// each logit.
    fn layers(&self) -> Layers {
        let hidden_bytes = 2.0 * self.sequence * self.hidden;
        let layer = |kind, parameters: f64, flops: f64, activations: f64, sums: f64| Layer {
            activation_bytes: activations,
            output_bytes: hidden_bytes,
            summed_bytes: Some(sums * hidden_bytes),
            ..Layer::new(kind).with_parameters(parameters as u64, Dtype::Bf16).with_flops(flops).estimated(RATE)
        };
        let scores = 2.0 * self.sequence * self.sequence * self.attention;
        let block_flops = 2.0 * self.block * self.sequence + scores;
        let block = layer('A', self.block, block_flops, 34.0 * self.sequence * self.hidden, 2.0);
        let table = self.vocabulary * self.hidden;
        // The embedding's forward reads its table and its backward adds to the gradient: bytes, not FLOPs, at 2e12
        // bytes a second.
        let reading = 3.0 * hidden_bytes / 2e12;
        let embedding = layer('E', table, 0.0, 0.0, 1.0).with_seconds(reading, 0.0, reading);
        let head = layer('L', table, 2.0 * table * self.sequence, 4.0 * self.sequence * self.vocabulary, 1.0);
        Layers::new([vec![embedding], vec![block; self.blocks], vec![head]].concat()).unwrap()
    }
}

/// Machines of eight devices.
fn machines(ranks: usize) -> LinkCosts {
    let near = |from: usize| (from / 8 * 8..(from / 8 * 8 + 8).min(ranks)).filter(move |to| *to != from);
    let pairs = (0..ranks).flat_map(|from| near(from).map(move |to| (from, to)));
    let between = pairs.map(|(from, to)| LinkOverride { from, to, latency: 5e-6, bandwidth: Some(INSIDE) }).collect();
    LinkCosts { default: LinkCost { latency: 1.5e-5, bandwidth: Some(BETWEEN) }, between }
}

/// The table of benches/results: the gain of the new choices for published shapes, on devices with 400 TFLOP/s and 80
/// GB.
#[test]
#[ignore = "minutes of planning; benches/run.sh vocabulary runs it"]
fn published_shapes() {
    println!("| model | ranks | stages alone | vocabulary parallel | groups | both | gain | best |");
    println!("|---|---|---|---|---|---|---|---|");
    for model in Published::all() {
        for ranks in [8, 16, 32, 64] {
            // 16 bytes a parameter: weights, gradients, moments, and a 32-bit copy of the weights.
            let asked = Request {
                cap: Some(8e10),
                state_factor: 8.0,
                recompute: vec![Recompute::Never, Recompute::Everywhere],
                cuts: vec![Cut::Optimal],
                passes: vec![PassChoice::AsBuilt],
                ..request(model.layers(), ranks, 64, machines(ranks))
            };
            let report = match best_plan(&asked.with_vocabulary_parallel().with_tensor_groups(vec![2, 4, 8])) {
                Err(PlannerError::NothingFits { .. }) => {
                    println!("| {} | {ranks} | none fits | none fits | none fits | none fits | - | - |", model.name);
                    continue;
                }
                report => report.unwrap(),
            };
            let least = |fits: &dyn Fn(&Candidate) -> bool| {
                let seconds = report.candidates.iter().filter(|c| fits(c)).map(|c| c.seconds);
                seconds.min_by(f64::total_cmp)
            };
            let alone = least(&|c| c.members == 1 && !c.vocabulary_parallel);
            let columns = [alone, least(&|c| c.members == 1), least(&|c| !c.vocabulary_parallel), least(&|_| true)];
            let [one, two, three, four] =
                columns.map(|seconds| seconds.map_or("none fits".to_owned(), |seconds| format!("{seconds:.3}")));
            let gain =
                alone.map_or("-".to_owned(), |old| format!("{:.0} %", 100.0 * (old / report.best.seconds - 1.0)));
            let best = &report.best;
            let spread = if best.vocabulary_parallel { ", spread" } else { "" };
            let members = if best.members > 1 { format!(", groups of {}", best.members) } else { String::new() };
            let (strategy, placement, chunks) = (&best.strategy, best.placement, best.chunks);
            let best = format!("{strategy}, {placement} of {chunks} a rank{spread}{members}");
            println!("| {} | {ranks} | {one} | {two} | {three} | {four} | {gain} | {best} |", model.name);
        }
    }
}
