//! Simulated ranks with one queue each, in which a group waits until all its members have reached it, as in NCCL's
//! streams. Notes and offers are delivered in any order that keeps each sender's order to each receiver.

mod leaving;

use super::{Action, Note, Pairing};
use std::collections::{BTreeMap, VecDeque};

/// Pseudo-random numbers, the same every time.
struct Draw(u64);

impl Draw {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) % limit as u64) as usize
    }
}

/// A group in a rank's queue: who takes part, and the transfers `(from, to, number)` or the collective.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Entry {
    members: Vec<usize>,
    transfers: Vec<(usize, usize, u64)>,
    collective: Option<(u32, u64, Vec<u8>)>,
}

enum Parcel {
    Offer,
    Note(Note),
}

struct World {
    pairings: Vec<Pairing>,
    /// Parcels on their way from one rank to another.
    parcels: BTreeMap<(usize, usize), VecDeque<Parcel>>,
    queues: Vec<VecDeque<Entry>>,
    launched: BTreeMap<(usize, usize), [u64; 2]>,
    /// Offers that their receivers have read and allocated memory for.
    landed: BTreeMap<(usize, usize), u64>,
    groups: Vec<Vec<usize>>,
    done: usize,
    /// If set, collectives are refused, so no rank waits for another one's. Contains each rank and round where that
    /// happened.
    refused: Option<Vec<(usize, u64)>>,
}

impl World {
    fn new(ranks: usize, groups: Vec<Vec<usize>>) -> Self {
        Self {
            pairings: (0..ranks).map(|rank| Pairing::new(rank, ranks, |parts| parts.concat())).collect(),
            parcels: BTreeMap::new(),
            queues: vec![VecDeque::new(); ranks],
            launched: BTreeMap::new(),
            landed: BTreeMap::new(),
            groups,
            done: 0,
            refused: None,
        }
    }

    fn post(&mut self, from: usize, to: usize, parcel: Parcel) {
        self.parcels.entry((from, to)).or_default().push_back(parcel);
    }

    fn offer(&mut self, from: usize, to: usize) {
        match from == to {
            true => *self.landed.entry((from, to)).or_default() += 1,
            false => self.post(from, to, Parcel::Offer),
        }
        let actions = self.pairings[from].offer(to);
        self.act(from, actions);
    }

    fn act(&mut self, rank: usize, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::Send(to, note) => self.post(rank, to, Parcel::Note(note)),
                Action::Exchange { peer, sends, receives } => {
                    let mut transfers = Vec::new();
                    let mut count = |from, to, count, end: usize| {
                        let launched = self.launched.entry((from, to)).or_default();
                        transfers.extend((0..count).map(|i| (from, to, launched[end] + i as u64)));
                        launched[end] += count as u64;
                    };
                    count(rank, peer, sends, 0);
                    count(peer, rank, receives, 1);
                    transfers.sort_unstable();
                    transfers.dedup();
                    for (from, to, number) in &transfers {
                        let landed = self.landed.get(&(*from, *to)).copied().unwrap_or_default();
                        assert!(*number < landed, "rank {rank} launches what rank {to} has no memory for yet");
                    }
                    let mut members = vec![rank, peer];
                    members.sort_unstable();
                    members.dedup();
                    self.queues[rank].push_back(Entry { members, transfers, collective: None });
                }
                Action::Collective { group, round, parts } => {
                    if let Some(refused) = &mut self.refused {
                        refused.push((rank, round));
                        continue;
                    }
                    let members = self.groups[group as usize].clone();
                    let collective = Some((group, round, parts));
                    self.queues[rank].push_back(Entry { members, transfers: Vec::new(), collective });
                }
            }
        }
    }

    /// Delivers one parcel. Returns false if none is on its way.
    fn deliver(&mut self, draw: &mut Draw) -> bool {
        let open: Vec<_> =
            self.parcels.iter().filter(|(_, parcels)| !parcels.is_empty()).map(|(&way, _)| way).collect();
        if open.is_empty() {
            return false;
        }
        let way = open[draw.below(open.len())];
        let parcel = self.parcels.get_mut(&way).and_then(VecDeque::pop_front);
        let actions = match parcel.unwrap() {
            Parcel::Offer => {
                *self.landed.entry(way).or_default() += 1;
                self.pairings[way.1].offered(way.0)
            }
            Parcel::Note(note) => self.pairings[way.1].receive(way.0, Note::read(&note.write()).unwrap()).unwrap(),
        };
        self.act(way.1, actions);
        true
    }

    /// Runs the groups at the heads of the queues.
    fn run(&mut self) {
        while let Some(entry) = (0..self.queues.len()).find_map(|rank| self.ripe(rank)) {
            for &member in &entry.members {
                self.queues[member].pop_front();
            }
            self.done += entry.transfers.len() + usize::from(entry.collective.is_some());
        }
    }

    /// Returns the head of a rank's queue, if all its members have reached it. They must then agree on its content.
    fn ripe(&self, rank: usize) -> Option<Entry> {
        let head = self.queues[rank].front()?;
        let matches = |member: &usize| self.queues[*member].front().filter(|entry| entry.members == head.members);
        let heads: Vec<&Entry> = head.members.iter().map(matches).collect::<Option<_>>()?;
        assert!(heads.iter().all(|entry| *entry == head), "{heads:?}");
        Some(head.clone())
    }
}

#[test]
fn opposing_transfers_of_one_tick_are_one_group() {
    let mut world = World::new(2, Vec::new());
    world.offer(0, 1);
    world.offer(1, 0);
    let mut draw = Draw(1);
    while world.deliver(&mut draw) {}
    for queue in &world.queues {
        let transfers: Vec<_> = queue.iter().map(|entry| entry.transfers.clone()).collect();
        assert_eq!(transfers, [vec![(0, 1, 0), (1, 0, 0)]]);
    }
}

#[test]
fn nothing_is_launched_before_its_receiver_has_made_the_memory() {
    // The higher rank's offer is under way while the lower one proposes; groups are checked when they are launched.
    let mut world = World::new(2, Vec::new());
    world.offer(0, 1);
    world.offer(1, 0);
    // Deliver the lower rank's offer and proposal, but not the higher one's offer.
    for _ in 0..2 {
        let parcel = world.parcels.get_mut(&(0, 1)).and_then(VecDeque::pop_front).unwrap();
        let actions = match parcel {
            Parcel::Offer => {
                *world.landed.entry((0, 1)).or_default() += 1;
                world.pairings[1].offered(0)
            }
            Parcel::Note(note) => world.pairings[1].receive(0, note).unwrap(),
        };
        world.act(1, actions);
    }
    assert!(world.queues[1].is_empty(), "it has agreed, and waits");
    let mut draw = Draw(1);
    while world.deliver(&mut draw) {}
    world.run();
    assert_eq!(world.done, 2);
}

#[test]
fn any_transfers_and_collectives_in_any_order_end() {
    for seed in 0..400 {
        let mut draw = Draw(seed);
        let ranks = 1 + draw.below(7);
        let groups = vec![(0..ranks).collect(), (0..ranks).filter(|rank| rank % 2 == 0).collect(), vec![ranks - 1]];
        let mut world = World::new(ranks, groups.clone());
        // Each rank's collectives have one order, as the link requires, with transfers between them in any order.
        let mut left: Vec<(usize, Vec<(u32, u64)>)> = (0..ranks)
            .map(|rank| {
                let all = (0..6).map(|i| ((i % 3) as u32, i / 3)).filter(|(g, _)| groups[*g as usize].contains(&rank));
                (draw.below(20), all.collect::<Vec<_>>())
            })
            .collect();
        let expected: usize = left.iter().map(|(transfers, _)| transfers).sum::<usize>() + 6;
        // A rank waits for its collective before it reaches the next, but not for transfers.
        let mut waits = vec![None; ranks];
        loop {
            let rank = draw.below(ranks);
            let launched = world.queues[rank].iter().rev().find_map(|entry| entry.collective.clone());
            if waits[rank].is_some() && launched.map(|(group, round, _)| (group, round)) == waits[rank] {
                waits[rank] = None;
            }
            if draw.below(3) == 0 && left[rank].0 > 0 {
                left[rank].0 -= 1;
                world.offer(rank, draw.below(ranks));
            } else if draw.below(3) == 0 && waits[rank].is_none() && !left[rank].1.is_empty() {
                let (group, round) = left[rank].1.remove(0);
                waits[rank] = Some((group, round));
                let members = groups[group as usize].clone();
                let actions = world.pairings[rank].ready(group, round, &members, vec![rank as u8]);
                world.act(rank, actions);
            } else if !world.deliver(&mut draw) && left.iter().all(|(sends, calls)| *sends == 0 && calls.is_empty()) {
                break;
            }
        }
        for queue in &world.queues {
            for (group, _, parts) in queue.iter().filter_map(|entry| entry.collective.as_ref()) {
                let members: Vec<u8> = groups[*group as usize].iter().map(|&rank| rank as u8).collect();
                assert_eq!(*parts, members, "parts come in rank order");
            }
        }
        world.run();
        assert_eq!(world.done, expected, "seed {seed}: {:?}", world.queues);
    }
}

/// Shows why the agreement is needed: each transfer is queued as it comes, on two ranks that send to each other.
#[test]
fn without_agreement_the_queues_stand_in_a_circle() {
    let mut world = World::new(2, Vec::new());
    let entry = |from, to| Entry { members: vec![0, 1], transfers: vec![(from, to, 0)], collective: None };
    world.queues[0].extend([entry(0, 1), entry(1, 0)]);
    world.queues[1].extend([entry(1, 0), entry(0, 1)]);
    let stands = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| world.run()));
    assert!(stands.is_err(), "heads of the queues that differ must be noticed");
    // The same in a circle of three.
    let mut world = World::new(3, Vec::new());
    let entry = |from: usize, to: usize| {
        let mut members = vec![from, to];
        members.sort_unstable();
        Entry { members, transfers: vec![(from, to, 0)], collective: None }
    };
    for rank in 0..3 {
        world.queues[rank].extend([entry(rank, (rank + 1) % 3), entry((rank + 2) % 3, rank)]);
    }
    world.run();
    assert_eq!(world.done, 0);
}

#[test]
fn what_no_rank_tells_is_refused_and_nothing_is_launched() {
    let of = |rank| Pairing::new(rank, 3, |parts| parts.concat());
    let refused = |pairing: &mut Pairing, from, note: Note| {
        let said = pairing.receive(from, note.clone()).unwrap_err();
        assert!(said.contains(&format!("rank {from} sent {note:?}")), "{said}");
    };
    // More offers than have come; a proposal from a higher rank; a rank that does not exist.
    let mut middle = of(1);
    assert_eq!(middle.offered(0), []);
    refused(&mut middle, 0, Note::Propose { offered: 2 });
    refused(&mut middle, 2, Note::Propose { offered: 0 });
    refused(&mut middle, 7, Note::Propose { offered: 0 });
    // An agreement that nobody asked for, and one that counts too many.
    refused(&mut middle, 2, Note::Agree { offered: 0 });
    assert_eq!(middle.offer(2), [Action::Send(2, Note::Propose { offered: 1 })]);
    refused(&mut middle, 0, Note::Agree { offered: 1 });
    refused(&mut middle, 2, Note::Agree { offered: 1 });
    // A call from above, readiness from below or from a rank that is not a member, a start that nobody is bound to.
    refused(&mut middle, 2, Note::Call { group: 0, round: 0, parts: Vec::new() });
    refused(&mut middle, 0, Note::Ready { group: 0, round: 0, part: Vec::new() });
    refused(&mut middle, 2, Note::Start { group: 0, round: 0 });
    let mut lowest = of(0);
    assert_eq!(lowest.ready(4, 0, &[0, 2], Vec::new()), []);
    refused(&mut lowest, 1, Note::Ready { group: 4, round: 0, part: Vec::new() });
    // It continues as if nothing had been received.
    refused(&mut middle, 2, Note::Go);
    let going_on = middle.receive(2, Note::Agree { offered: 0 }).unwrap();
    assert_eq!(going_on, [Action::Send(2, Note::Go), Action::Exchange { peer: 2, sends: 1, receives: 0 }]);
    assert_eq!(middle.receive(0, Note::Propose { offered: 1 }).unwrap(), [Action::Send(0, Note::Agree { offered: 0 })]);
    // Having agreed, it launches nothing before the `Go`.
    assert_eq!(middle.offer(2), []);
    let told = middle.receive(0, Note::Go).unwrap();
    assert_eq!(told[0], Action::Exchange { peer: 0, sends: 0, receives: 1 });
}
