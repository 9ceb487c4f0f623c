//! The exact search ([`crate::exact`]), compared with instances solved by hand and with the enumeration of all
//! orders.

use crate::exact::{Search, Small, State, optimum};
use std::collections::HashMap;

#[test]
fn the_optimum_of_instances_that_can_be_done_by_hand() {
    let small = |ranks: Vec<usize>, microbatches, cap| {
        let seconds = vec![[1, 1, 1]; ranks.len()];
        Small { ranks, seconds, whole: None, latency: 0, microbatches: vec![microbatches], cap }
    };
    // One rank works without pause.
    assert_eq!(optimum(&small(vec![0], 3, 3), 1000, 1 << 20), Some(9));
    // Two ranks, memory for one activation: 0F 1F 1I 0I 0W, and again. Rank 0 cannot start before its W.
    assert_eq!(optimum(&small(vec![0, 1], 2, 1), 1000, 1 << 20), Some(10));
    // With enough memory, only the transfer to rank 1 is idle time there.
    assert_eq!(optimum(&small(vec![0, 1], 2, 2), 1000, 1 << 20), Some(7));
    assert_eq!(optimum(&small(vec![0, 1, 1, 0], 1, 2), 1000, 1 << 20), Some(9));
    // Two routes in opposite directions, a microbatch each: no rank waits. Both on one route take seven seconds.
    let both_ways = Small { microbatches: vec![1, 1], ..small(vec![0, 1, 1, 0], 1, 4) };
    assert_eq!(optimum(&both_ways, 1000, 1 << 20), Some(6));
    // Whole backwards at half the price: F B F B on one rank. With two ranks a single `I` would let rank 0 begin
    // sooner, but it costs more, and nothing fills the gap.
    let cheap = |ranks: Vec<usize>| Small { whole: Some(vec![1; ranks.len()]), ..small(ranks, 2, 2) };
    assert_eq!(optimum(&cheap(vec![0]), 1000, 1 << 20), Some(4));
    assert_eq!(optimum(&cheap(vec![0, 1]), 1000, 1 << 20), Some(6));
}

#[test]
fn branch_and_bound_agrees_with_looking_at_every_order() {
    // Two ranks, two or three microbatches: every pair of rows, timed directly.
    for (seconds, latency) in [([[1, 1, 1], [1, 1, 1]], 0), ([[2, 3, 1], [1, 2, 2]], 1), ([[3, 1, 2], [2, 2, 1]], 2)] {
        for microbatches in 1..=3 {
            for cap in 1..=microbatches {
                let (ranks, seconds) = (vec![0, 1], seconds.to_vec());
                let small = Small { ranks, seconds, whole: None, latency, microbatches: vec![microbatches], cap };
                let rows = words(microbatches, cap);
                let spans = rows.iter().flat_map(|a| rows.iter().filter_map(|b| span(&small, [a, b])));
                assert_eq!(optimum(&small, 1000, 1 << 22), spans.min(), "{small:?}");
            }
        }
    }
}

/// The least makespan over all orders: every step is appended to every rank's row. Of partial rows with the same
/// steps done, only those that no other beats in all times are kept. `None` if nothing fits.
fn every_order(small: &Small) -> Option<u32> {
    let search = Search::new(small, u32::MAX, u64::MAX);
    let (first, mut least) = (State::first(small), None);
    let mut parts: HashMap<Vec<[u8; 3]>, Vec<State>> = HashMap::from([(first.done.clone(), vec![first])]);
    while !parts.is_empty() {
        let mut next: HashMap<Vec<[u8; 3]>, Vec<State>> = HashMap::new();
        for state in parts.values().flatten() {
            if search.is_done(state) {
                let span = *state.clock.iter().max().unwrap();
                least = Some(least.map_or(span, |least: u32| least.min(span)));
            }
            for (at, stage, pass) in search.ready(state) {
                let (mut after, rank) = (search.after(state, at, stage, pass), small.ranks[stage]);
                after.back.fill(false);
                assert_eq!(after.clock[rank], at + small.seconds(stage, pass).unwrap());
                let alike = next.entry(after.done.clone()).or_default();
                let new = search.times(&after);
                let beaten = |a: &[u32], b: &[u32]| a.iter().zip(b).all(|(a, b)| b <= a);
                if !alike.iter().any(|other| beaten(&new, &search.times(other))) {
                    alike.retain(|other| !beaten(&search.times(other), &new));
                    alike.push(after);
                }
            }
        }
        parts = next;
    }
    least
}

/// Asserts that both searches agree under every cap, and that a larger cap never takes longer. Returns how often a
/// larger cap is faster.
fn agreed_under_every_cap(small: &Small) -> usize {
    let (mut binding, mut before) = (0, None);
    let stages = small.ranks.len() / small.microbatches.len();
    for cap in 1..=stages * small.microbatches.iter().sum::<usize>() {
        let small = Small { cap, ..small.clone() };
        let (every, branched) = (every_order(&small), optimum(&small, 1000, 1 << 22));
        assert_eq!(branched, Some(every.unwrap_or(1000)), "{small:?}");
        assert!(every.unwrap_or(1000) <= before.unwrap_or(1000));
        binding += usize::from(before.is_some() && before != every);
        before = every.or(before);
    }
    binding
}

/// Costs of stages that differ a little from one to the next.
fn uneven(ranks: &[usize], costs: [u32; 3]) -> Vec<[u32; 3]> {
    (0..ranks.len() as u32).map(|i| costs.map(|c| 1 + (c + i) % 4)).collect()
}

const UNEVEN: [([u32; 3], u32); 3] = [([1, 1, 1], 0), ([2, 3, 1], 1), ([3, 1, 2], 3)];

#[test]
fn under_a_cap_over_several_stages_a_rank_it_agrees_with_every_order() {
    let mut binding = 0;
    for (ranks, most) in [(vec![0, 0], 3), (vec![0, 0, 0], 2), (vec![0, 1, 1, 0], 2), (vec![0, 1, 0, 1], 2)] {
        for ((costs, latency), microbatches) in UNEVEN.into_iter().flat_map(|c| (1..=most).map(move |m| (c, m))) {
            let (seconds, microbatches) = (uneven(&ranks, costs), vec![microbatches]);
            let small = Small { ranks: ranks.clone(), seconds, whole: None, latency, microbatches, cap: 0 };
            binding += agreed_under_every_cap(&small);
        }
    }
    assert!(binding > 10, "caps made a difference {binding} times only");
}

#[test]
fn over_two_routes_it_agrees_with_every_order() {
    let mut binding = 0;
    for (ranks, costs) in [vec![0, 0], vec![0, 1, 1, 0]].iter().flat_map(|ranks| UNEVEN.map(|costs| (ranks, costs))) {
        for microbatches in [vec![1, 1], vec![2, 1]] {
            let (seconds, latency) = (uneven(ranks, costs.0), costs.1);
            let small = Small { ranks: ranks.clone(), seconds, whole: None, latency, microbatches, cap: 0 };
            binding += agreed_under_every_cap(&small);
        }
    }
    assert!(binding > 5, "caps made a difference {binding} times only");
}

#[test]
fn where_backwards_may_be_whole_it_agrees_with_every_order() {
    let (mut binding, mut cheaper) = (0, 0);
    for (ranks, most) in [(vec![0], 3), (vec![0, 1], 3), (vec![0, 0], 2), (vec![0, 1, 2], 2), (vec![0, 1, 1, 0], 1)] {
        for ((costs, latency), microbatches) in UNEVEN.into_iter().flat_map(|c| (1..=most).map(move |m| (c, m))) {
            for saved in [0, 1] {
                let (seconds, microbatches) = (uneven(&ranks, costs), vec![microbatches]);
                let whole = seconds.iter().map(|[_, i, w]| i + w - saved).collect();
                let small = Small { ranks: ranks.clone(), seconds, whole: Some(whole), latency, microbatches, cap: 0 };
                binding += agreed_under_every_cap(&small);
                let free = Small { cap: usize::MAX, ..small };
                let (whole, split) = (every_order(&free), every_order(&Small { whole: None, ..free }));
                assert!(whole <= split);
                cheaper += usize::from(whole < split);
            }
        }
    }
    assert!(binding > 10 && cheaper > 10, "{binding} {cheaper}");
}

/// Every row of passes with at most `cap` activations held.
fn words(microbatches: usize, cap: usize) -> Vec<Vec<usize>> {
    let mut words: Vec<(Vec<usize>, [usize; 3])> = vec![(Vec::new(), [0; 3])];
    for _ in 0..3 * microbatches {
        let next = words.iter().flat_map(|(word, done)| {
            let fits = [done[0] < microbatches && done[0] - done[2] < cap, done[1] < done[0], done[2] < done[1]];
            (0..3).filter(move |&pass| fits[pass]).map(move |pass| {
                let mut done = *done;
                done[pass] += 1;
                ([word.as_slice(), &[pass]].concat(), done)
            })
        });
        words = next.collect();
    }
    words.into_iter().map(|(word, _)| word).collect()
}

/// The makespan of two rows, found by running them until neither can go on.
fn span(small: &Small, rows: [&Vec<usize>; 2]) -> Option<u32> {
    let mut ends: [[Vec<u32>; 3]; 2] = Default::default();
    let (mut next, mut clock) = ([0; 2], [0; 2]);
    loop {
        let mut moved = false;
        for rank in 0..2 {
            let Some(&pass) = rows[rank].get(next[rank]) else { continue };
            let (n, c) = (ends[rank][pass].len(), small.latency);
            let ready = match (pass, rank) {
                (0, 0) => Some(0),
                (0, _) => ends[0][0].get(n).map(|end| end + c),
                (1, 0) => ends[1][1].get(n).map(|end| end + c),
                _ => Some(0),
            };
            if let Some(ready) = ready {
                clock[rank] = clock[rank].max(ready) + small.seconds[rank][pass];
                ends[rank][pass].push(clock[rank]);
                next[rank] += 1;
                moved = true;
            }
        }
        if !moved {
            let ended = (0..2).all(|rank| next[rank] == rows[rank].len());
            return ended.then(|| clock[0].max(clock[1]));
        }
    }
}
