//! Interleaved 1F1B, compared with Megatron's formulas for it (`get_schedule_table`, warm-up counts, virtual stages).

use burn_pipeline_plan::plan::{Op, Placement, StageId, Task};
use burn_pipeline_plan::schedule::{Interleaved1F1B, Schedule, Size};

/// Sizes that Megatron accepts.
fn sizes() -> impl Iterator<Item = Size> {
    let rounds = (1..=6usize).flat_map(|p| (1..=4usize).flat_map(move |v| (1..=4usize).map(move |n| (p, v, n))));
    rounds.map(|(p, v, n)| Size::new(p, p * n).with_chunks(v))
}

/// The first microbatch of each group of this many, and their number at the end. A rest below p joins the last group.
fn groups(size: Size, group: usize) -> Vec<usize> {
    let rest = size.microbatches % group;
    let count = size.microbatches / group + usize::from(rest >= size.ranks);
    (0..count.max(1)).map(|first| first * group).chain([size.microbatches]).collect()
}

/// Microbatch and chunk of each forward: the groups go chunk by chunk.
fn table(size: Size, groups: &[usize]) -> Vec<(usize, usize)> {
    let chunks = groups.windows(2).flat_map(|group| (0..size.chunks).map(move |chunk| (group[0]..group[1], chunk)));
    chunks.flat_map(|(group, chunk)| group.map(move |m| (m, chunk))).collect()
}

#[test]
fn forwards_and_backwards_follow_the_table_after_the_warm_up() {
    let options = || std::iter::once(None).chain((1..=9).map(Some));
    for (size, group) in sizes().flat_map(|size| options().map(move |group| (size, group))) {
        let groups = groups(size, group.unwrap_or(size.ranks));
        let largest = groups.windows(2).map(|group| group[1] - group[0]).max().unwrap();
        let least = if size.chunks > 1 { (size.ranks - 1).min(size.microbatches) } else { 1 };
        let Ok(plan) = (Interleaved1F1B { group }).build(size) else {
            assert!(group.unwrap() < least, "{group:?} {size:?}");
            continue;
        };
        let table = table(size, &groups);
        for rank in 0..size.ranks {
            let of = |op| plan.tasks(rank).filter(move |t| t.op() == op);
            let chunk = |stage: StageId| stage.index() / size.ranks;
            let forwards: Vec<_> = of(Op::Forward).map(|t| (t.microbatch().unwrap(), chunk(t.stage()))).collect();
            assert_eq!(forwards, table, "{group:?} {size:?}");
            let reversed = |t: Task| (t.microbatch().unwrap(), size.chunks - 1 - chunk(t.stage()));
            assert_eq!(of(Op::Backward).map(reversed).collect::<Vec<_>>(), table, "{group:?} {size:?}");
            let warm_up = (2 * (size.ranks - 1 - rank) + (size.chunks - 1) * largest).min(table.len());
            let before = plan.tasks(rank).take_while(|t| t.op() == Op::Forward).count();
            assert_eq!(before, warm_up + usize::from(warm_up < table.len()), "{group:?} {size:?} rank {rank}");
        }
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
