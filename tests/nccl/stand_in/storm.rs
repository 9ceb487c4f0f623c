//! Messages of many sizes from every rank to every other, in both directions at once, with sums over groups in
//! between.

use super::messages::{header, on, read};
use crate::{TIMEOUT, link};
use burn_pipeline::link::{Link, Message};
use burn_pipeline::payload::{AnyTensor, Boundary};
use std::time::Instant;

const ROUNDS: usize = 24;

/// What one rank sends another in one round; no two messages are equal.
fn values(from: usize, to: usize, round: usize) -> Vec<f32> {
    let seed = (from * 8 + to) * 1009 + round;
    // From zero to more elements than the mock moves at once.
    let length = [0, 1, 7, 300, 5_000, 70_000][(seed * 7 + round) % 6];
    (0..length).map(|place| ((seed * 31 + place) % 4093) as f32).collect()
}

/// One rank of the storm.
pub(super) fn storm() {
    let (mut link, device) = link();
    let (me, ranks) = (link.rank(), link.ranks());
    let deadline = Instant::now() + TIMEOUT;
    let groups = [(0..ranks).collect(), vec![0, ranks - 1]];
    link.collectives().unwrap().form_sets(&groups, deadline).unwrap();
    let others: Vec<usize> = (0..ranks).filter(|&rank| rank != me).collect();
    for round in 0..ROUNDS {
        for &to in &others {
            let payload = on(&device, values(me, to, round)).into_payload();
            link.send(to, Message { header: header(round), payload }, deadline).unwrap();
        }
        let group = round % 2;
        if groups[group].contains(&me) && round % 3 > 0 {
            let part = |rank: usize| values(rank, rank, 9).len().max(64 + round) * (rank + 1);
            let mine = vec![part(me) as f32; 64 + round];
            let own = Some(AnyTensor::new(on(&device, mine)));
            let summed = link.collectives().unwrap().sum(group, &groups[group], vec![own], deadline).unwrap();
            let sum = groups[group].iter().map(|&rank| part(rank) as f32).sum::<f32>();
            let got: Vec<f32> = summed[0].as_ref().unwrap().to_data().unwrap().iter::<f32>().collect();
            assert_eq!(got, vec![sum; 64 + round]);
        }
        // Some rounds are received late, after more has been sent.
        if round % 4 == 3 {
            for late in round - 3..=round {
                for &from in others.iter().rev() {
                    let got = read(link.receive(from, header(late), deadline).unwrap());
                    assert!(got == values(from, me, late), "round {late} from rank {from}: wrong values");
                }
            }
        }
    }
    link.barrier(deadline).unwrap();
}
