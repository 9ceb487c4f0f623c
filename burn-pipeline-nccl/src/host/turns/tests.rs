//! Simulated ranks with a queue for each lane, in which a launch runs when all its ranks have launched it. Notes and
//! frames are delivered in any order that keeps each sender's order to each receiver.

mod leaving;

use super::{Action, Lane, Note, Turns};
use std::collections::{BTreeMap, VecDeque};

/// Pseudo-random numbers, the same every time.
struct Draw(u64);

impl Draw {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) % limit as u64) as usize
    }
}

enum Parcel {
    Frame,
    Note(Note),
}

/// A launch as its ranks know it: the sender, receiver and number of a message, or the group and round of a collective.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    Message(usize, usize, u64),
    Collective(u32, u64),
}

struct World {
    turns: Vec<Turns>,
    /// Parcels on their way from one rank to another.
    parcels: BTreeMap<(usize, usize), VecDeque<Parcel>>,
    /// The launches in each rank's queues that have not run.
    queues: BTreeMap<(usize, Lane), VecDeque<What>>,
    /// The number of messages that each rank has launched to or from each other.
    messages: BTreeMap<(usize, Lane), u64>,
    /// Messages whose receiver has memory for them.
    landed: BTreeMap<(usize, usize), u64>,
    /// The ranks that have launched something, in the order in which they did.
    launched: BTreeMap<What, Vec<usize>>,
    /// What each rank was told to be launched everywhere, per lane.
    whole: BTreeMap<(usize, Lane), usize>,
    /// The launches of each rank's lane so far.
    of_lane: BTreeMap<(usize, Lane), Vec<What>>,
    groups: Vec<Vec<usize>>,
    done: usize,
    notes: usize,
    ended: Vec<(usize, u64)>,
}

impl World {
    fn new(ranks: usize, groups: Vec<Vec<usize>>) -> Self {
        // A part that begins with zero refuses the collective.
        let join = |parts: &[Vec<u8>]| (parts.concat(), parts.iter().all(|part| part[0] > 0));
        Self {
            turns: (0..ranks).map(|rank| Turns::new(rank, ranks, true, join)).collect(),
            parcels: BTreeMap::new(),
            queues: BTreeMap::new(),
            messages: BTreeMap::new(),
            landed: BTreeMap::new(),
            launched: BTreeMap::new(),
            whole: BTreeMap::new(),
            of_lane: BTreeMap::new(),
            groups,
            done: 0,
            notes: 0,
            ended: Vec::new(),
        }
    }

    fn send(&mut self, from: usize, to: usize) {
        if self.turns[from].send(to) {
            self.act(from, vec![Action::Launch(Lane::To(to), None)]);
        }
        self.parcels.entry((from, to)).or_default().push_back(Parcel::Frame);
    }

    fn ready(&mut self, rank: usize, group: u32, round: u64, part: u8) {
        let members = self.groups[group as usize].clone();
        let actions = self.turns[rank].ready(group, round, &members, vec![part, rank as u8]);
        self.act(rank, actions);
    }

    fn act(&mut self, rank: usize, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::Send(to, note) => self.post(rank, to, note),
                Action::Launch(lane, note) => {
                    let number = self.messages.entry((rank, lane)).or_default();
                    *number += 1;
                    let what = match lane {
                        Lane::To(to) => What::Message(rank, to, *number),
                        Lane::From(from) => What::Message(from, rank, *number),
                        Lane::Set(_) => panic!("a message has no set"),
                    };
                    if let What::Message(from, to, number) = what
                        && to == rank
                    {
                        assert!(number <= self.landed[&(from, to)], "{what:?} is launched before there is memory");
                    }
                    self.launch(rank, lane, what);
                    if let Some((to, note)) = note {
                        self.post(rank, to, note);
                    }
                }
                Action::Collective { group, round, parts, next } => {
                    let members = self.groups[group as usize].iter();
                    assert_eq!(parts, members.flat_map(|&member| [1, member as u8]).collect::<Vec<_>>());
                    self.launch(rank, Lane::Set(group), What::Collective(group, round));
                    if let Some((to, note)) = next {
                        self.post(rank, to, note);
                    }
                }
                Action::End { round, .. } => self.ended.push((rank, round)),
                Action::Whole(lane) => {
                    let told = self.whole.entry((rank, lane)).or_default();
                    let what = self.of_lane[&(rank, lane)][*told];
                    *told += 1;
                    assert_eq!(
                        self.launched[&what].len(),
                        self.ranks_of(what).len(),
                        "{what:?} is given out too early"
                    );
                }
            }
        }
    }

    fn post(&mut self, from: usize, to: usize, note: Note) {
        self.notes += 1;
        self.parcels.entry((from, to)).or_default().push_back(Parcel::Note(note));
    }

    fn ranks_of(&self, what: What) -> Vec<usize> {
        match what {
            What::Message(from, to, _) => vec![from.min(to), from.max(to)],
            What::Collective(group, _) => self.groups[group as usize].clone(),
        }
    }

    /// Guarantee (1): all higher ranks have launched it before.
    fn launch(&mut self, rank: usize, lane: Lane, what: What) {
        let expected: Vec<usize> = self.ranks_of(what).into_iter().rev().collect();
        let launched = self.launched.entry(what).or_default();
        launched.push(rank);
        assert!(expected.starts_with(launched), "{what:?} is launched in the order {launched:?}");
        self.queues.entry((rank, lane)).or_default().push_back(what);
        self.of_lane.entry((rank, lane)).or_default().push(what);
    }

    /// Delivers one parcel. Returns false if none is on its way.
    fn deliver(&mut self, draw: &mut Draw) -> bool {
        let open = self.parcels.iter().filter(|(_, parcels)| !parcels.is_empty());
        let open: Vec<_> = open.map(|(&way, _)| way).collect();
        if open.is_empty() {
            return false;
        }
        let way = open[draw.below(open.len())];
        let parcel = self.parcels.get_mut(&way).and_then(VecDeque::pop_front);
        let actions = match parcel.unwrap() {
            Parcel::Frame if !self.turns[way.1].accepts(way.0) => Vec::new(),
            Parcel::Frame => {
                *self.landed.entry(way).or_default() += 1;
                self.turns[way.1].arrived(way.0)
            }
            Parcel::Note(note) => self.turns[way.1].receive(way.0, Note::read(&note.write()).unwrap()).unwrap(),
        };
        self.act(way.1, actions);
        true
    }

    /// Runs what all its ranks have at the heads of their queues: guarantee (2).
    fn run(&mut self) {
        while let Some(what) = self.queues.values().find_map(|queue| queue.front().filter(|&&what| self.is_ripe(what)))
        {
            let what = *what;
            self.queues.values_mut().filter(|queue| queue.front() == Some(&what)).for_each(|queue| {
                queue.pop_front();
            });
            self.done += 1;
        }
    }

    fn is_ripe(&self, what: What) -> bool {
        let heads = self.queues.values().filter(|queue| queue.front() == Some(&what)).count();
        heads == self.ranks_of(what).len()
    }

    fn finish(&mut self, draw: &mut Draw) {
        while self.deliver(draw) {
            self.run();
        }
        self.run();
        assert!(self.queues.values().all(VecDeque::is_empty), "{:?}", self.queues);
    }
}

#[test]
fn whatever_ranks_send_everything_runs_in_turn_and_is_given_out_when_all_have_launched_it() {
    for seed in 0..200 {
        let draw = &mut Draw(seed);
        let ranks = 2 + draw.below(4);
        let groups = vec![(0..ranks).collect(), vec![0, ranks - 1], vec![ranks - 2, ranks - 1]];
        let mut world = World::new(ranks, groups.clone());
        let (mut messages, mut rounds) = (0, vec![vec![0; groups.len()]; ranks]);
        for _ in 0..150 {
            match draw.below(4) {
                0 => {
                    let (from, to) = (draw.below(ranks), draw.below(ranks));
                    if from != to {
                        world.send(from, to);
                        messages += 1;
                    }
                }
                1 => {
                    let (rank, group) = (draw.below(ranks), draw.below(groups.len()));
                    // No member is two collectives ahead of another one.
                    let behind = groups[group].iter().map(|&member| rounds[member][group]).min().unwrap();
                    if groups[group].contains(&rank) && rounds[rank][group] == behind {
                        world.ready(rank, group as u32, behind, 1);
                        rounds[rank][group] += 1;
                    }
                }
                _ => {
                    world.deliver(draw);
                }
            }
            world.run();
        }
        let mut collectives = 0;
        for (group, members) in groups.iter().enumerate() {
            let last = members.iter().map(|&member| rounds[member][group]).max().unwrap();
            for &member in members.iter().filter(|&&member| rounds[member][group] < last) {
                world.ready(member, group as u32, last - 1, 1);
            }
            collectives += last as usize;
        }
        world.finish(draw);
        assert_eq!(world.done, messages + collectives, "seed {seed}");
        // Guarantee (3).
        assert!(world.notes <= 2 * messages + 3 * ranks * collectives, "{} notes", world.notes);
        // Everything that brings a tensor is given out.
        let brings = world.of_lane.iter().filter(|((_, lane), _)| !matches!(lane, Lane::To(_)));
        assert_eq!(world.whole.values().sum::<usize>(), brings.map(|(_, launched)| launched.len()).sum::<usize>());
    }
}

#[test]
fn a_message_to_a_lower_rank_needs_no_note_and_one_to_a_higher_rank_one_or_two() {
    for (asks, (from, to), notes) in [(false, (1, 0), 0), (false, (0, 1), 1), (true, (1, 0), 0), (true, (0, 1), 2)] {
        let mut world = World::new(2, Vec::new());
        world.turns = (0..2).map(|rank| Turns::new(rank, 2, asks, |_| (Vec::new(), true))).collect();
        world.send(from, to);
        world.finish(&mut Draw(1));
        assert_eq!((world.done, world.notes), (1, notes), "from {from} to {to}");
    }
}

#[test]
fn a_collective_that_a_member_refuses_is_launched_by_nobody_and_ends_for_all() {
    for seed in 0..20 {
        let draw = &mut Draw(seed);
        let mut world = World::new(4, vec![vec![0, 1, 2, 3]]);
        for round in 0..5 {
            let refuses = draw.below(5);
            (0..4).for_each(|rank| world.ready(rank, 0, round, u8::from(rank != refuses)));
            let (done, ended) = (world.done, world.ended.len());
            world.finish(draw);
            let expected = if refuses < 4 { (0, 4) } else { (1, 0) };
            assert_eq!((world.done - done, world.ended.len() - ended), expected);
        }
    }
}

#[test]
fn notes_that_no_rank_sends_now_are_refused() {
    let mut turns = Turns::new(1, 3, true, |parts| (parts.concat(), true));
    let part = || vec![1];
    turns.ready(0, 0, &[0, 1, 2], part());
    for (from, note) in [
        (0, Note::Launched { answer: false }),
        (2, Note::Launched { answer: false }),
        (0, Note::Whole { group: None }),
        (2, Note::Whole { group: Some(0) }),
        (2, Note::Part { group: 0, round: 0, part: part() }),
        (0, Note::Part { group: 0, round: 0, part: part() }),
        (0, Note::Launch { group: 0, round: 0, parts: part(), answer: false }),
        (2, Note::Launch { group: 0, round: 1, parts: part(), answer: false }),
        (0, Note::End { group: 0, round: 0, parts: part() }),
        (0, Note::Answer),
        (1, Note::Leave { ended: Vec::new() }),
        (3, Note::Answer),
        (2, Note::Connect { sends: true, id: Vec::new() }),
    ] {
        let said = format!("{note:?}");
        let error = turns.receive(from, note).unwrap_err();
        assert!(error.contains(&format!("rank {from} sent")), "{said}: {error}");
    }
    let launch = Note::Launch { group: 0, round: 0, parts: part(), answer: false };
    assert_eq!(turns.receive(2, launch).unwrap().len(), 1);
}
