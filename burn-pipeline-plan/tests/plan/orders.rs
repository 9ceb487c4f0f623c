//! Properties of every schedule's order, at every size that it accepts.

use crate::event::{Costs, run};
use burn_pipeline_plan::plan::{Op, Plan, StageId};
use burn_pipeline_plan::schedule::{Chunks, Gis, Interleaved1F1B, Schedule, ScheduleError, Size, ZbAuto, all, by_name};
use proptest::prelude::{Strategy, prop_assert, prop_assert_eq, proptest};

/// Every schedule, with every option of those that have options.
fn schedules(ranks: usize, group: usize) -> Vec<Box<dyn Schedule>> {
    let mut schedules = all();
    schedules.push(Box::new(Interleaved1F1B { group: Some(group) }));
    for delayed_weight in [false, true] {
        schedules.push(Box::new(Gis { group: Some(group), delayed_weight }));
        schedules.push(Box::new(Gis { group: None, delayed_weight }));
    }
    schedules.push(Box::new(ZbAuto { limit: Some(f64::INFINITY), ..ZbAuto::uniform(1.0, 1.2, 0.8, 0.1) }));
    schedules.push(Box::new(ZbAuto { limit: Some(2.0 * ranks as f64), ..ZbAuto::default() }));
    schedules.push(Box::new(ZbAuto { limit: Some(1.0), ..ZbAuto::default() }));
    schedules
}

/// The numbers of chunks that a schedule can have, up to four.
fn chunks_of(schedule: &dyn Schedule) -> std::ops::RangeInclusive<usize> {
    match schedule.info().chunks {
        Chunks::Exactly(n) => n..=n,
        _ => 1..=4,
    }
}

/// For each stage and microbatch: one F, and one B or one I and one W, all on the stage's rank.
fn assert_complete(plan: &Plan) {
    let width = plan.microbatches().iter().copied().max().unwrap();
    let mut counts = vec![[0_u8; 4]; plan.placement().slots() * width];
    for rank in 0..plan.ranks() {
        for task in plan.tasks(rank) {
            let (stage, m) = (task.stage(), task.microbatch().unwrap());
            assert_eq!(plan.placement().rank_of(stage), rank, "{}: {task} is on the wrong rank", plan.name());
            assert!(m < plan.microbatches()[stage.route()], "{}: {task} has no such microbatch", plan.name());
            let op =
                [Op::Forward, Op::BackwardInput, Op::BackwardWeight, Op::Backward].iter().position(|&o| o == task.op());
            counts[plan.placement().slot(stage) * width + m][op.unwrap()] += 1;
        }
    }
    let whole: &[[u8; 4]] = if plan.has_backward() { &[[1, 1, 1, 0], [1, 0, 0, 1]] } else { &[[1, 0, 0, 0]] };
    for stage in plan.placement().all_stages() {
        for m in 0..plan.microbatches()[stage.route()] {
            let count = counts[plan.placement().slot(stage) * width + m];
            assert!(whole.contains(&count), "{}: stage {stage} runs F, I, W, B of {m} {count:?} times", plan.name());
        }
    }
}

/// Asserts that the plan is complete and runs to its end, with fused pairs one after the other and as one.
fn assert_sound(plan: &Plan) {
    assert_complete(plan);
    let serial = Costs::new(1.0, 1.0, 1.0, 0.0);
    for costs in [serial, Costs { fused: Some(2.5), ..serial }] {
        if let Err(deadlock) = run(plan, costs) {
            panic!("m={:?} p={}: {deadlock}", plan.microbatches(), plan.ranks());
        }
    }
}

#[test]
fn every_schedule_is_sound_at_every_small_size() {
    let mut plans = 0;
    for ranks in 1..=6 {
        for microbatches in 1..=14 {
            for schedule in schedules(ranks, ranks) {
                for chunks in chunks_of(schedule.as_ref()) {
                    match schedule.build(Size { ranks, chunks, microbatches }) {
                        Ok(plan) => assert_sound(&plan),
                        Err(error) => assert!(ranks % 2 == 1 && error.to_string().contains("even number"), "{error}"),
                    }
                    plans += 1;
                }
            }
        }
    }
    println!("{plans} sizes of schedules tried");
}

#[test]
fn the_building_blocks_collide_on_no_number_of_ranks() {
    for ranks in 1..=70 {
        for name in ["VHalf", "VMin", "1F1B-V"] {
            assert_complete(&by_name(name).unwrap().build(Size::new(ranks, 7).with_chunks(2)).unwrap());
        }
    }
}

fn sizes() -> impl Strategy<Value = (usize, usize, usize, usize)> {
    (1..=16_usize, 1..=4_usize, 1..=64_usize, 1..=20_usize)
}

proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(96))]

    #[test]
    fn every_schedule_is_sound_at_random_sizes((ranks, chunks, microbatches, group) in sizes()) {
        for schedule in schedules(ranks, group) {
            let chunks = match schedule.info().chunks { Chunks::Exactly(n) => n, _ => chunks };
            match schedule.build(Size { ranks, chunks, microbatches }) {
                Ok(plan) => {
                    assert_sound(&plan);
                    prop_assert_eq!(plan.total_microbatches(), microbatches);
                }
                Err(ScheduleError::Unsupported { accepts, .. }) => {
                    let odd = ranks % 2 == 1 && accepts.contains("even number of ranks");
                    let short = group < ranks - 1 && accepts.contains("groups of at least");
                    prop_assert!(odd || short, "{}: {}", schedule.info().name, accepts);
                }
                Err(other) => prop_assert!(false, "{}", other),
            }
        }
    }

    #[test]
    fn the_heuristic_is_sound_and_keeps_its_limit_for_random_costs(
        (ranks, _, microbatches, _) in sizes(),
        costs in proptest::collection::vec((0.1..3.0_f64, 0.1..3.0_f64, 0.1..3.0_f64), 1..16),
        transfer in 0.0..1.0_f64,
        limit in 1.0..20.0_f64,
        kept in 0.0..=1.0_f64,
    ) {
        let costs = costs.into_iter().map(<[f64; 3]>::from).collect();
        let auto = ZbAuto { costs, transfer, weight_activation: kept, limit: Some(limit), ..ZbAuto::default() };
        let plan = auto.build(Size::new(ranks, microbatches)).unwrap();
        assert_sound(&plan);
        for rank in 0..ranks {
            let held = plan.tasks(rank).scan(0.0, |held, task| {
                *held += match task.op() {
                    Op::Forward => 1.0,
                    Op::BackwardInput => kept - 1.0,
                    _ => -kept,
                };
                Some(*held)
            });
            let peak = held.fold(0.0, f64::max);
            prop_assert!(peak <= limit + 1e-6, "rank {} holds {} of {}", rank, peak, limit);
        }
    }
}

#[test]
fn crossed_rows_deadlock_in_the_reference_simulator() {
    // The reference must be able to refuse: rank 1 needs a backward that rank 0 runs only after rank 1's next
    // forward.
    let rows = [["0F0", "0B0", "0F1", "0B1"], ["1F0", "1F1", "1B0", "1B1"]];
    let parse = |row: &[&str; 4]| row.iter().map(|cell| cell.parse().unwrap()).collect();
    let plan = Plan::infer("crossed", rows.iter().map(parse).collect()).unwrap();
    let message = run(&plan, Costs::new(1.0, 1.0, 1.0, 0.0)).unwrap_err();
    assert!(message.contains("rank 0 waits for ever at [0B0]"), "{message}");
}

#[test]
#[should_panic(expected = "stage 1 runs F, I, W, B of 0 [1, 1, 0, 0] times")]
fn the_reference_finds_a_row_that_lacks_an_operation() {
    let mut rows = by_name("ZBH1").unwrap().build(Size::new(2, 2)).unwrap().rows().to_vec();
    rows[1].retain(|action| action.to_string() != "1W0");
    assert_complete(&Plan::infer("W forgotten", rows).unwrap());
}

#[test]
fn groups_shorter_than_the_ring_are_refused_because_they_would_deadlock() {
    let group = |group| Interleaved1F1B { group: Some(group) };
    let size = Size::new(4, 8).with_chunks(2);
    let message = group(2).build(size).unwrap_err().to_string();
    assert!(message.contains("groups of at least 3"), "{message}");
    assert!(group(0).build(size).is_err());
    assert_sound(&group(3).build(size).unwrap());
    assert_sound(&group(2).build(Size::new(4, 2).with_chunks(2)).unwrap());
    let gis = |group| Gis { group: Some(group), delayed_weight: false };
    assert!(gis(1).build(size).unwrap_err().to_string().contains("groups of at least 2"));
    assert_sound(&gis(2).build(size).unwrap());
}

#[test]
fn megatrons_group_of_all_microbatches_is_breadth_first_in_its_forwards() {
    let size = Size::new(4, 8).with_chunks(2);
    let grouped = Interleaved1F1B { group: Some(8) }.build(size).unwrap();
    let breadth_first = by_name("LoopedBFS").unwrap().build(size).unwrap();
    for rank in 0..4 {
        let forwards = |plan: &Plan| plan.tasks(rank).filter(|t| t.op() == Op::Forward).collect::<Vec<_>>();
        assert_eq!(forwards(&grouped), forwards(&breadth_first));
    }
}

#[test]
fn an_odd_microbatch_goes_the_first_way() {
    for name in ["DualPipe", "Chimera"] {
        let plan = by_name(name).unwrap().build(Size::new(4, 7)).unwrap();
        assert_eq!(plan.microbatches(), [4, 3]);
        let alone = by_name(name).unwrap().build(Size::new(4, 1)).unwrap();
        assert_eq!(alone.microbatches(), [1, 0]);
        assert!(!alone.any_task(|task| task.stage().route() == 1));
    }
    let first = StageId::in_route(0, 0);
    let plan = by_name("DualPipe").unwrap().build(Size::new(4, 7)).unwrap();
    assert_eq!(plan.index_in_batch(StageId::in_route(1, 0), 0), plan.index_in_batch(first, 3) + 1);
}

#[test]
fn sizes_that_cannot_be_are_refused_in_words_that_say_what_can() {
    let message = |name: &str, ranks, chunks, microbatches| {
        by_name(name).unwrap().build(Size { ranks, chunks, microbatches }).unwrap_err().to_string()
    };
    for schedule in all() {
        let name = schedule.info().name;
        let chunks = *chunks_of(schedule.as_ref()).start();
        assert!(message(name, 0, chunks, 1).contains("at least one rank"));
        assert!(message(name, 2, 0, 1).contains("at least one chunk"));
        assert!(message(name, 2, chunks, 0).contains("at least one microbatch"));
        assert!(message(name, 100_000, chunks, 1).contains("at most 65535 stages"));
        assert!(message(name, 2, chunks, 1 << 30).contains("at most 134217728 forwards"));
        assert!(message(name, 2, chunks, usize::MAX).contains("at most 4294967294 microbatches"));
    }
    assert!(message("DualPipeV", 30_000, 2, 1).contains("it builds for 60000 microbatches first"));
    assert!(message("1F1B", 2, 2, 4).contains("exactly 1 chunk per rank"));
    assert!(message("1F1B", 1, 2, 1).contains("for 1 rank, 2 chunks per rank and 1 microbatch:"));
    assert!(message("VHalf", 2, 1, 4).contains("for 2 ranks, 1 chunk per rank and 4 microbatches:"));
    assert!(message("VHalf", 2, 1, 4).contains("exactly 2 chunks per rank"));
    assert!(message("Chimera", 3, 1, 4).contains("an even number of ranks"));
}

#[test]
fn the_heuristic_refuses_costs_and_memory_that_mean_nothing() {
    let refusal = |auto: ZbAuto| auto.build(Size::new(4, 8)).unwrap_err().to_string();
    let auto = ZbAuto::default;
    assert!(refusal(ZbAuto { costs: vec![], ..auto() }).contains("finite costs"));
    assert!(refusal(ZbAuto { transfer: f64::NAN, ..auto() }).contains("finite costs"));
    assert!(refusal(ZbAuto::uniform(1.0, -1.0, 1.0, 0.0)).contains("finite costs"));
    assert!(refusal(ZbAuto::uniform(0.0, 0.0, 0.0, 0.0)).contains("not all of them 0"));
    assert!(refusal(ZbAuto { activation: 0.0, ..auto() }).contains("above 0"));
    assert!(refusal(ZbAuto { weight_activation: 1.5, ..auto() }).contains("at most 1"));
    assert!(refusal(ZbAuto { limit: Some(0.5), ..auto() }).contains("memory limit of at least 1"));
    assert!(refusal(ZbAuto { limit: Some(f64::NAN), ..auto() }).contains("memory limit"));
}
