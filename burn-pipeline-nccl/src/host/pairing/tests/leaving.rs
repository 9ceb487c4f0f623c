//! Ranks that leave while others continue.

use super::{Action, Draw, Note, Pairing, World};
use std::collections::BTreeMap;

/// Returns true if the rank has nothing in its queue, nothing left to send, and is bound to no group.
fn may_leave(world: &World, offers: &BTreeMap<(usize, usize), u64>, rank: usize) -> bool {
    let launched = |way: &(usize, usize)| world.launched.get(way).map_or(0, |ends| ends[0]);
    let sent = |(way, count): (&(usize, usize), &u64)| {
        way.0 != rank || world.pairings[rank].has_left(way.1) || launched(way) == *count
    };
    world.pairings[rank].is_free() && world.queues[rank].is_empty() && offers.iter().all(sent)
}

#[test]
fn ranks_leave_whenever_they_may_and_what_the_others_send_each_other_is_launched() {
    let mut early = 0;
    for seed in 0..500 {
        let mut draw = Draw(seed);
        let ranks = 2 + draw.below(6);
        let mut world = World::new(ranks, vec![(0..ranks).collect()]);
        let mut sends: Vec<usize> = (0..ranks).map(|_| draw.below(15)).collect();
        let (mut offers, mut left, mut called) = (BTreeMap::new(), vec![false; ranks], vec![false; ranks]);
        loop {
            world.run();
            let (rank, to) = (draw.below(ranks), draw.below(ranks));
            match draw.below(6) {
                0 | 1 if !left[rank] && sends[rank] > 0 => {
                    sends[rank] -= 1;
                    if !world.pairings[rank].has_left(to) {
                        *offers.entry((rank, to)).or_default() += 1;
                        world.offer(rank, to);
                    }
                }
                // A sum over all ranks, which is never made if somebody leaves first.
                2 if !left[rank] && !called[rank] => {
                    called[rank] = true;
                    let members: Vec<usize> = (0..ranks).collect();
                    let actions = world.pairings[rank].ready(0, 0, &members, vec![rank as u8]);
                    world.act(rank, actions);
                }
                3 if !left[rank] && left.iter().filter(|left| !**left).count() > 1 => {
                    let may = may_leave(&world, &offers, rank);
                    if may {
                        early += usize::from(sends.iter().any(|&sends| sends > 0));
                        (left[rank], sends[rank]) = (true, 0);
                        let actions = world.pairings[rank].leave();
                        world.act(rank, actions);
                    }
                }
                // Messages to a rank that has left are not read.
                _ if !world.deliver_but(&mut draw, &left) && sends.iter().all(|&sends| sends == 0) => break,
                _ => {}
            }
        }
        let stays = |rank: &usize| !left[*rank];
        for rank in (0..ranks).filter(stays) {
            assert!(world.queues[rank].is_empty(), "seed {seed}, rank {rank}: {:?}", world.queues);
            assert!(world.pairings[rank].is_free(), "seed {seed}, rank {rank}");
        }
        for (way, offered) in offers.iter().filter(|((from, to), _)| stays(from) && stays(to)) {
            assert_eq!(world.launched.get(way), Some(&[*offered; 2]), "seed {seed}, {way:?}");
        }
    }
    assert!(early > 500, "ranks leave before the others are done: {early}");
}

#[test]
fn a_rank_that_has_proposed_to_one_that_leaves_serves_the_others() {
    let mut pairing = Pairing::new(0, 3, |parts| parts.concat());
    assert_eq!(pairing.offer(1), [Action::Send(1, Note::Propose { offered: 1 })]);
    assert_eq!(pairing.offer(2), [], "it is bound");
    assert!(!pairing.is_free());
    assert_eq!(
        pairing.receive(1, Note::Leave { launched: Vec::new() }).unwrap(),
        [Action::Send(2, Note::Propose { offered: 1 })]
    );
    assert!(pairing.has_left(1) && !pairing.has_left(2));
    assert!(pairing.receive(1, Note::Agree { offered: 0 }).is_err(), "nothing comes from a rank that has left");
    assert_eq!(pairing.leave(), [Action::Send(2, Note::Leave { launched: Vec::new() })]);
}

#[test]
fn a_sum_that_is_refused_is_refused_on_all_its_members_though_some_leave_at_once() {
    let mut early = 0;
    for seed in 0..1000 {
        let mut draw = Draw(seed);
        let ranks = 2 + draw.below(6);
        let mut world = World::new(ranks, vec![(0..ranks).collect()]);
        world.refused = Some(Vec::new());
        let (mut left, mut rounds) = (vec![false; ranks], vec![0; ranks]);
        let members: Vec<usize> = (0..ranks).collect();
        loop {
            let rank = draw.below(ranks);
            let waits = rounds[rank] > 0 && world.pairings[rank].awaits(0, rounds[rank] - 1);
            match draw.below(3) {
                0 if !left[rank] && !waits && rounds[rank] < 3 => {
                    let gone = members.iter().any(|&other| world.pairings[rank].has_left(other));
                    if !gone {
                        let actions = world.pairings[rank].ready(0, rounds[rank], &members, vec![rank as u8]);
                        world.act(rank, actions);
                    }
                    rounds[rank] += 1;
                }
                1 if !left[rank] && rounds[rank] > 0 && !waits && world.pairings[rank].is_free() => {
                    left[rank] = true;
                    early += usize::from(rounds[rank] < 3);
                    let actions = world.pairings[rank].leave();
                    world.act(rank, actions);
                }
                _ if !world.deliver_but(&mut draw, &left) && left.iter().all(|left| *left) => break,
                _ => {}
            }
        }
        let refused = world.refused.unwrap();
        for round in 0..3 {
            let count = refused.iter().filter(|(_, of)| *of == round).count();
            assert!(count == 0 || count == ranks, "seed {seed}: {count} of {ranks} refuse round {round}");
        }
    }
    assert!(early > 500, "ranks leave before the last round: {early}");
}

impl World {
    /// Delivers one parcel, or drops it if its receiver has left. Returns false if none is on its way.
    fn deliver_but(&mut self, draw: &mut Draw, left: &[bool]) -> bool {
        let ways = self.parcels.iter_mut().filter(|((_, to), parcels)| left[*to] && !parcels.is_empty());
        let dropped = ways.map(|(_, parcels)| parcels.drain(..).count()).sum::<usize>();
        self.deliver(draw) || dropped > 0
    }
}
