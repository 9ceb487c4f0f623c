//! Interleaved 1F1B, compared with Megatron's formulas for it (`get_schedule_table`, warm-up counts, virtual stages).

use burn_pipeline_plan::plan::{Op, Placement, StageId, Task};
use burn_pipeline_plan::schedule::{Interleaved1F1B, Schedule, Size};

/// Sizes that Megatron accepts.
fn sizes() -> impl Iterator<Item = Size> {
    let rounds = (1..=6usize).flat_map(|p| (1..=4usize).flat_map(move |v| (1..=4usize).map(move |n| (p, v, n))));
    rounds.map(|(p, v, n)| Size::new(p, p * n).with_chunks(v))
}

/// Microbatch and chunk of each forward: groups of p microbatches go chunk by chunk.
fn table(size: Size) -> Vec<(usize, usize)> {
    let groups = (0..size.microbatches).step_by(size.ranks);
    let chunks = groups.flat_map(|first| (0..size.chunks).map(move |chunk| (first, chunk)));
    chunks.flat_map(|(first, chunk)| (first..first + size.ranks).map(move |m| (m, chunk))).collect()
}

#[test]
fn forwards_and_backwards_follow_the_table_after_the_warm_up() {
    for size in sizes() {
        let plan = Interleaved1F1B::default().build(size).unwrap();
        let table = table(size);
        for rank in 0..size.ranks {
            let of = |op| plan.tasks(rank).filter(move |t| t.op() == op);
            let chunk = |stage: StageId| stage.index() / size.ranks;
            let forwards: Vec<_> = of(Op::Forward).map(|t| (t.microbatch().unwrap(), chunk(t.stage()))).collect();
            assert_eq!(forwards, table, "{size:?}");
            assert_eq!(Interleaved1F1B::default().table(size).unwrap(), table);
            let reversed = |t: Task| (t.microbatch().unwrap(), size.chunks - 1 - chunk(t.stage()));
            assert_eq!(of(Op::Backward).map(reversed).collect::<Vec<_>>(), table, "{size:?}");
            let warm_up = (2 * (size.ranks - 1 - rank) + (size.chunks - 1) * size.ranks).min(table.len());
            let before = plan.tasks(rank).take_while(|t| t.op() == Op::Forward).count();
            assert_eq!(Interleaved1F1B::default().warm_up(size, rank).unwrap(), warm_up);
            assert_eq!(before, warm_up + usize::from(warm_up < table.len()), "{size:?} rank {rank}");
        }
    }
}

#[test]
fn the_table_of_any_groups_is_the_order_of_the_rows() {
    for (group, size) in (1..=9).flat_map(|group| sizes().map(move |size| (Some(group), size))) {
        let schedule = Interleaved1F1B { group };
        let Ok(plan) = schedule.build(size) else {
            assert!(schedule.table(size).is_err() && schedule.warm_up(size, 0).is_err());
            continue;
        };
        for rank in 0..size.ranks {
            let forwards = plan.tasks(rank).filter(|t| t.op() == Op::Forward);
            let forwards: Vec<_> =
                forwards.map(|t| (t.microbatch().unwrap(), t.stage().index() / size.ranks)).collect();
            assert_eq!(schedule.table(size).unwrap(), forwards, "{group:?} {size:?}");
            let before = plan.tasks(rank).take_while(|t| t.op() == Op::Forward).count();
            let warm_up = schedule.warm_up(size, rank).unwrap();
            assert_eq!(before, (warm_up + 1).min(forwards.len()), "{group:?} {size:?} rank {rank}");
        }
        assert!(schedule.warm_up(size, size.ranks).is_err());
    }
}

#[test]
fn virtual_stages_are_those_of_the_loop_placement() {
    for size in sizes() {
        let placement = Placement::looped(size.ranks, size.chunks).unwrap();
        for rank in 0..size.ranks {
            let placed: Vec<usize> = placement.stages_of(rank).into_iter().map(StageId::index).collect();
            assert_eq!(placed, (0..size.chunks).map(|chunk| chunk * size.ranks + rank).collect::<Vec<_>>());
        }
    }
}
