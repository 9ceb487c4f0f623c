//! Vocabulary-parallel plans are proved, priced and counted, and wrong ones are refused by name.

use super::any_schedule::plans;
use burn_pipeline_plan::cost::{LinkCost, LinkCosts, Profile, ProfileError, StageCost, UniformCosts, VocabularyCost};
use burn_pipeline_plan::pass::PassError;
use burn_pipeline_plan::plan::{Action, CheckError, CheckOptions, Op, Placement, PlacementKind, Plan, Transport};
use burn_pipeline_plan::schedule::{ForwardOnly, OneFOneB, Schedule, Size, by_name};
use burn_pipeline_plan::simulate::{SimulateError, SimulateOptions, Simulation, simulate};
use proptest::prelude::{ProptestConfig, any, prop, prop_assert, prop_assert_eq, prop_assume, proptest};

/// Pieces of a head that takes as long as `layers` stages of (1, 1, 1), over these ranks.
fn pieces(layers: f64, ranks: usize) -> VocabularyCost {
    let part = layers / ranks as f64;
    VocabularyCost {
        head_forward: part,
        head_input: part,
        head_weight: part,
        embedding_forward: 0.01,
        embedding_weight: 0.01,
        ..VocabularyCost::default()
    }
}

fn profile(plan: &Plan, layers: f64) -> Profile {
    let uniform = Profile::uniform(plan.placement(), UniformCosts::new(1.0, 1.0, 1.0)).unwrap();
    uniform.with_vocabulary(pieces(layers, plan.ranks())).unwrap()
}

fn one_f_one_b(ranks: usize, microbatches: usize) -> Plan {
    OneFOneB.build(Size::new(ranks, microbatches)).unwrap()
}

fn step(plan: &Plan, profile: &Profile) -> Simulation {
    simulate(plan, profile, &SimulateOptions::default()).unwrap()
}

fn check(plan: Plan) -> Result<(), Box<CheckError>> {
    plan.check(&CheckOptions::default()).map(|_| ())
}

#[test]
fn one_f_one_b_holds_one_extra_activation_at_most_as_the_paper_says() {
    // Yeung et al. 2024: with one barrier a microbatch, 1F1B holds p + 1 activations on its first rank.
    for ranks in [2, 4, 8] {
        let plan = one_f_one_b(ranks, 6 * ranks);
        let profile = profile(&plan, 2.0);
        let spread = plan.with_vocabulary(&profile).unwrap();
        let (before, after) = (step(&plan, &profile), step(&spread, &profile));
        assert_eq!(before.peak_activations(), ranks as f64);
        assert!(after.peak_activations() <= ranks as f64 + 1.0);
        for (one, other) in before.ranks.iter().zip(&after.ranks) {
            assert!(other.peak_activations <= one.peak_activations + 1.0);
        }
    }
}

#[test]
fn the_steady_state_of_one_f_one_b_has_no_bubble() {
    // A step of 1F1B takes (m + p - 1)(F + B). With the vocabulary parallel, each microbatch adds its pieces, and the
    // ends add less than one more microbatch.
    for (ranks, layers) in [(2, 1.0), (4, 2.0), (4, 6.0), (8, 2.0), (8, 8.0)] {
        let growth = |microbatches: usize| {
            let plan = one_f_one_b(ranks, microbatches);
            let profile = profile(&plan, layers);
            step(&plan.with_vocabulary(&profile).unwrap(), &profile).makespan
        };
        let turn = 3.0 + pieces(layers, ranks).seconds();
        let (short, long) = (growth(4 * ranks), growth(8 * ranks));
        let each = (long - short) / (4 * ranks) as f64;
        assert!(
            (each - turn).abs() < 0.02 * turn,
            "{ranks} ranks, head of {layers}: {each} a microbatch, {turn} of work"
        );
        let ends = long - turn * (8 * ranks) as f64;
        assert!(ends <= 3.0 * (ranks as f64 - 1.0) + 1.5 * turn, "{ranks} ranks, head of {layers}: {ends} at the ends");
    }
}

#[test]
fn speed_ups_are_those_of_the_paper() {
    // The paper's artifact: 8 GPUs, 32 layers of width 3,072, sequences of 2,048, 128 microbatches; model FLOPs
    // utilisation of the baseline, of layers redistributed over ranks, and of the parallel vocabulary with one
    // barrier. FLOPs as in the paper: 72 h^2 + 12 s h a layer and 6 h V the head, a token.
    let (hidden, sequence, ranks) = (3072.0, 2048.0, 8);
    for (vocabulary, baseline, redistributed, spread) in [
        (32e3, 47.52, 47.52, 52.56),
        (64e3, 40.82, 49.15, 52.36),
        (128e3, 33.70, 44.12, 51.95),
        (256e3, 17.29, 38.21, 51.20),
    ] {
        let head = 6.0 * hidden * vocabulary * 1.024 / (72.0 * hidden * hidden + 12.0 * sequence * hidden);
        let plan = one_f_one_b(ranks, 128);
        let stage = |layers: f64| {
            let part = layers / 3.0;
            StageCost { forward: part, input: Some(part), weight: Some(part), ..StageCost::default() }
        };
        let seconds = |layers: Vec<f64>| {
            let profile = Profile::new(layers.into_iter().map(stage).collect(), LinkCosts::default()).unwrap();
            step(&plan, &profile).makespan
        };
        let even = seconds([vec![4.0; 7], vec![4.0 + head]].concat());
        let best = (1..=4).map(|last| {
            let (others, more) = ((32 - last) / 7, (32 - last) % 7);
            let layers = (0..7).map(|rank| (others + usize::from(rank < more)) as f64);
            seconds(layers.chain([last as f64 + head]).collect())
        });
        let best = best.chain([seconds([vec![32.0 / 7.0; 7], vec![head]].concat())]).fold(f64::INFINITY, f64::min);
        let part = head / 3.0 / ranks as f64;
        let pieces =
            VocabularyCost { head_forward: part, head_input: part, head_weight: part, ..VocabularyCost::default() };
        let profile = Profile::new(vec![stage(4.0); 8], LinkCosts::default()).unwrap().with_vocabulary(pieces).unwrap();
        let ours = step(&plan.with_vocabulary(&profile).unwrap(), &profile).makespan;
        let close = |ours: f64, paper: f64| (ours / paper - 1.0).abs() < 0.15;
        // With 256k words, the paper's baseline runs at its memory limit, which costs it more than FLOPs suggest.
        assert!(close(even / ours, spread / baseline) || vocabulary > 2e5, "{vocabulary}: {} even", even / ours);
        assert!(close(best / ours, spread / redistributed), "{vocabulary}: {} redistributed", best / ours);
        assert!(even / ours <= spread / baseline * 1.1 && best >= ours * 0.99);
    }
}

#[test]
fn a_plan_is_read_back_and_drawn() {
    let plan = one_f_one_b(3, 4);
    let spread = plan.with_vocabulary(&profile(&plan, 1.0)).unwrap();
    for plan in [spread.clone(), spread.with_transfers().unwrap()] {
        let read = Plan::from_csv(plan.name(), &plan.to_csv()).unwrap();
        assert_eq!(read, plan);
        assert_eq!(serde_json::from_str::<Plan>(&serde_json::to_string(&plan).unwrap()).unwrap(), plan);
        assert!(check(read).is_ok());
        let step = step(&plan, &profile(&plan, 1.0));
        let drawing = step.track("spread").ascii(200);
        assert!(drawing.contains("2S0") || drawing.contains("S0"), "{drawing}");
    }
    assert_eq!(spread.with_vocabulary(&profile(&plan, 1.0)).unwrap(), spread);
}

#[test]
fn evaluation_has_no_gradients_of_pieces() {
    let plan = ForwardOnly.build(Size::new(3, 4)).unwrap();
    let profile = profile(&plan, 3.0);
    let spread = plan.with_vocabulary(&profile).unwrap();
    assert!(
        !spread.any_task(|task| matches!(task.op(), Op::HeadBackward | Op::EmbeddingBackward | Op::BroadcastGradient))
    );
    assert!(check(spread.with_transfers().unwrap()).is_ok());
    // `S` then computes no gradient.
    let simulated = step(&spread, &profile);
    let seconds = simulated.events.iter().find(|event| event.action.to_string() == "2S0").map(|e| e.end - e.start);
    assert!((seconds.unwrap() - 1.0).abs() < 1e-12);
    let mut rows = spread.rows().to_vec();
    rows[1].push("2T0".parse().unwrap());
    assert!(matches!(*check(spread.with_rows(rows)).unwrap_err(), CheckError::NoBackward { rank: 1, .. }));
}

#[test]
fn memory_has_pieces_and_what_collectives_bring() {
    let plan = one_f_one_b(2, 3);
    let bytes = VocabularyCost {
        head_forward: 1.0,
        head_weight: 1.0,
        embedding_forward: 1.0,
        embedding_weight: 1.0,
        head_activation_bytes: 64.0,
        weight_bytes: 1000.0,
        hidden_bytes: 4.0,
        embedded_bytes: 1.0,
        ..VocabularyCost::default()
    };
    let profile =
        Profile::new(vec![StageCost { forward: 1.0, ..StageCost::default() }; 2], LinkCosts::default()).unwrap();
    let profile = profile.with_vocabulary(bytes).unwrap();
    for lowered in [false, true] {
        let spread = plan.with_vocabulary(&profile).unwrap();
        let spread = if lowered { spread.with_transfers().unwrap() } else { spread };
        let step = step(&spread, &profile);
        for rank in &step.ranks {
            assert_eq!(rank.weight_bytes, 1000.0);
            let last = rank.memory.last().unwrap();
            assert!(last.total().abs() < 1e-9, "something is never released: {last:?}");
            assert!(rank.memory.iter().all(|point| point.total() > -1e-9));
            // Held at least: one softmax, its input, and a part of a gradient. At most: two softmaxes and all
            // messages.
            let most = rank.memory.iter().map(|point| point.total()).fold(0.0, f64::max);
            assert!((68.0..=2.0 * 64.0 + 4.0 * 5.0 + 4.0).contains(&most), "{most}");
        }
    }
}

#[test]
fn collectives_take_what_their_links_say() {
    let plan = one_f_one_b(4, 2);
    let pieces = VocabularyCost { hidden_bytes: 40.0, embedded_bytes: 20.0, statistics_bytes: 8.0, ..pieces(1.0, 4) };
    let links = LinkCosts { default: LinkCost { latency: 0.5, bandwidth: Some(10.0) }, between: Vec::new() };
    let stage = StageCost { forward: 1.0, input: Some(1.0), weight: Some(1.0), ..StageCost::default() };
    let profile = Profile::new(vec![stage; 4], links).unwrap().with_vocabulary(pieces).unwrap();
    let step = step(&plan.with_vocabulary(&profile).unwrap(), &profile);
    let seconds = |action: &str| {
        let event = step.events.iter().find(|event| event.action.to_string() == action).unwrap();
        event.end - event.start
    };
    // A chain of 4 ranks has 3 latencies and the bytes once; joining 8 bytes takes 6 steps of 2 bytes.
    assert!((seconds("3BCAST_S1") - (1.5 + 4.0)).abs() < 1e-9);
    assert!((seconds("3REDUCE_S1") - (1.5 + 4.0 + 6.0 * 0.7)).abs() < 1e-9);
    assert!((seconds("0REDUCE_IF1") - (1.5 + 2.0)).abs() < 1e-9);
    assert!((seconds("0BCAST_IB1") - (1.5 + 2.0)).abs() < 1e-9);
}

#[test]
fn what_cannot_be_spread_is_refused_by_name() {
    let plan = one_f_one_b(2, 2);
    let bare = Profile::uniform(plan.placement(), UniformCosts::new(1.0, 1.0, 1.0)).unwrap();
    let refused = |plan: &Plan, profile: &Profile| plan.with_vocabulary(profile).unwrap_err();
    assert_eq!(refused(&plan, &bare), PassError::Profile(ProfileError::NoVocabulary));
    let costs = profile(&plan, 1.0);
    assert!(matches!(refused(&plan.with_transfers().unwrap(), &costs), PassError::Vocabulary { .. }));
    let spread = plan.with_vocabulary(&costs).unwrap();
    let unpriced = simulate(&spread, &bare, &SimulateOptions::default()).unwrap_err();
    assert_eq!(unpriced, SimulateError::Profile(ProfileError::NoVocabulary));
    let both = by_name("DualPipe").unwrap().build(Size::new(2, 4)).unwrap();
    assert!(matches!(refused(&both, &profile(&both, 1.0)), PassError::Vocabulary { .. }));
    let stuck = Plan::from_csv("stuck", "0F0,0B0\n1B0,1F0\n").unwrap();
    assert!(matches!(refused(&stuck, &costs), PassError::Check(_)));
}

#[test]
fn wrong_vocabularies_are_refused_by_name() {
    let plan = one_f_one_b(2, 2);
    let spread = plan.with_vocabulary(&profile(&plan, 1.0)).unwrap().with_transfers().unwrap();
    let action = |text: &str| text.parse::<Action>().unwrap();
    let without = |rank: usize, text: &str| {
        let mut rows = spread.rows().to_vec();
        rows[rank].retain(|cell| *cell != action(text));
        *check(spread.with_rows(rows)).unwrap_err()
    };
    let missing = |error: CheckError, on: usize, text: &str| matches!(error, CheckError::Missing { rank, task, .. } if rank == on && task.to_string() == text);
    assert!(missing(without(1, "1T1"), 1, "1T1"));
    assert!(missing(without(0, "0IB0"), 0, "0IB0"));
    let unmet =
        |error: CheckError, text: &str| matches!(error, CheckError::Unmet { needs, .. } if needs.to_string() == text);
    assert!(unmet(without(0, "1BCAST_S0"), "1BCAST_S0"));
    assert!(unmet(without(1, "1REDUCE_S0"), "1REDUCE_S0"));
    assert!(unmet(without(0, "0REDUCE_IF1"), "0REDUCE_IF1"));
    assert!(unmet(without(1, "1S1"), "1S1"));
    assert!(unmet(without(1, "0IF1"), "0IF1"));
    let with = |rank: usize, text: &str| {
        let mut rows = spread.rows().to_vec();
        rows[rank].push(action(text));
        *check(spread.with_rows(rows)).unwrap_err()
    };
    assert!(matches!(with(0, "1S0"), CheckError::Duplicate { rank: 0, .. }));
    assert!(matches!(with(0, "0S0"), CheckError::VocabularyStage { rank: 0, .. }));
    assert!(matches!(with(1, "1IF0"), CheckError::VocabularyStage { rank: 1, .. }));
    assert!(matches!(with(1, "1S2"), CheckError::NoSuchMicrobatch { rank: 1, .. }));
    let placement = Placement::bidirectional(2).unwrap();
    let rows = vec![vec![action("1S0"); 2], vec![]];
    let both = Plan::new("both", placement, vec![1, 1], rows).unwrap();
    assert!(matches!(*check(both).unwrap_err(), CheckError::VocabularyRoutes { .. }));
}

#[test]
fn a_barrier_that_closes_a_circle_is_a_deadlock() {
    // Rank 0 starts the barrier of microbatch 1 only after a backward that needs the barrier of microbatch 0, while
    // rank 1 waits for both barriers first.
    let text = "0F0,0F1,1BCAST_S0,1BCAST_S1,1S0,1REDUCE_S0,0B0,0B1,1S1,1REDUCE_S1,1T0,1T1\n\
                1F0,1BCAST_S0,1F1,1BCAST_S1,1S0,1REDUCE_S0,1S1,1REDUCE_S1,1T1,1B0,1B1,1T0\n";
    let plan = Plan::from_csv("cycle", text).unwrap();
    let Err(error) = plan.check(&CheckOptions::default()) else { panic!("the plan hangs") };
    let CheckError::Deadlock { cycle, .. } = *error else { panic!("{error}") };
    assert_eq!(cycle.len(), 2);
    assert!(cycle.iter().any(|waiting| waiting.needs.to_string() == "1REDUCE_S1"), "{cycle:?}");
    // The same with transfers, under every transport.
    let text = text
        .replace("0B0,", "0RECV_B0,0B0,")
        .replace("0B1,", "0RECV_B1,0B1,")
        .replace("0F0,0F1", "0F0,0SEND_F0,0F1,0SEND_F1");
    let text = text.replace("1F0,", "1RECV_F0,1F0,").replace("1F1,", "1RECV_F1,1F1,");
    let text = text.replace("1B0,1B1", "1B0,1SEND_B0,1B1,1SEND_B1");
    for transport in [Transport::Rendezvous, Transport::Buffered(1), Transport::Unbounded] {
        let plan = Plan::from_csv("cycle", &text).unwrap();
        let Err(error) = plan.check(&CheckOptions { transport, ..CheckOptions::default() }) else { panic!("it hangs") };
        assert!(matches!(*error, CheckError::Deadlock { .. }), "{error}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn every_schedule_can_be_spread_and_loses_nothing(
        plan in plans(5, 3, 8), layers in 0.0..9.0f64, transfer in 0.0..0.3f64,
    ) {
        prop_assume!(plan.placement().kind() != PlacementKind::Bidirectional || plan.placement().routes() == 1);
        let costs = UniformCosts::new(1.0, 1.0, 1.0).with_transfer(transfer);
        let profile = Profile::uniform(plan.placement(), costs).unwrap();
        let profile = profile.with_vocabulary(pieces(layers, plan.ranks())).unwrap();
        let spread = plan.with_vocabulary(&profile).unwrap();
        let compute = |plan: &Plan, rank: usize, forward: bool| -> Vec<Action> {
            let of = |action: &&Action| action.tasks().any(|t| t.op().is_compute() && (t.op() == Op::Forward) == forward);
            plan.row(rank).iter().filter(of).copied().collect()
        };
        for rank in 0..plan.ranks() {
            for forward in [false, true] {
                prop_assert_eq!(compute(&plan, rank, forward), compute(&spread, rank, forward));
            }
        }
        let lowered = spread.with_transfers().unwrap();
        for transport in [Transport::Rendezvous, Transport::Buffered(2), Transport::Unbounded] {
            let checked = lowered.clone().check(&CheckOptions { transport, ..CheckOptions::default() });
            prop_assert!(checked.is_ok(), "{transport}");
        }
        prop_assert!(check(spread.clone()).is_ok());
        let (before, after) = (step(&plan, &profile), step(&spread, &profile));
        prop_assert!(after.peak_activations() <= before.peak_activations() + 1.0 + 1e-9);
        let all = pieces(layers, plan.ranks());
        let each = if plan.has_backward() { all.seconds() } else { all.head_forward + all.embedding_forward };
        let work = before.work + each * plan.total_microbatches() as f64;
        prop_assert!((after.work - work).abs() < 1e-6 * work);
        for rank in &after.ranks {
            prop_assert!(rank.memory.iter().all(|point| point.total() > -1e-9));
        }
    }

    #[test]
    fn two_collectives_swapped_on_one_rank_are_refused(
        ranks in 2usize..5, microbatches in 1usize..6, rank in 0usize..5, at in any::<prop::sample::Index>(), lowered: bool,
    ) {
        let plan = one_f_one_b(ranks, microbatches);
        let spread = plan.with_vocabulary(&profile(&plan, 2.0)).unwrap();
        let spread = if lowered { spread.with_transfers().unwrap() } else { spread };
        let (rank, mut rows) = (rank % ranks, spread.rows().to_vec());
        let collective = |action: &Action| action.tasks().any(|task| task.op().is_rank_collective());
        let places: Vec<usize> = (0..rows[rank].len()).filter(|&step| collective(&rows[rank][step])).collect();
        let first = at.index(places.len() - 1);
        rows[rank].swap(places[first], places[first + 1]);
        let error = check(spread.with_rows(rows)).unwrap_err();
        let named = matches!(*error, CheckError::CollectiveOrder { .. } | CheckError::Unmet { .. });
        prop_assert!(named, "{}", error);
    }
}
