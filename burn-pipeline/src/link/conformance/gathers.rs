//! Cases of gathers: every rank gets what every rank gave.

use super::material::deadline;
use crate::link::gather::gather;
use crate::link::link_trait::Link;
use std::time::Duration;

pub(super) fn gathers(link: &mut dyn Link) {
    let (me, ranks) = (link.rank(), link.ranks());
    let odd = [f64::NAN, -0.0, f64::INFINITY, 1.0 / 3.0, f64::MIN_POSITIVE / 8.0];
    let row = |rank: usize, round: usize| -> Vec<f64> {
        (0..(rank * 3 + round) % 7).map(|i| if i < 5 { odd[i] } else { (rank * 100 + round) as f64 }).collect()
    };
    let bits = |row: &[f64]| -> Vec<u64> { row.iter().map(|x| x.to_bits()).collect() };
    for round in 0..50 {
        if round % 10 == me {
            std::thread::sleep(Duration::from_millis(20));
        }
        let table = gather(link, &row(me, round), deadline()).unwrap();
        assert_eq!(table.len(), ranks);
        for (rank, got) in table.iter().enumerate() {
            assert_eq!(bits(got), bits(&row(rank, round)), "row of rank {rank}, round {round}");
        }
    }
}

pub(super) fn gathers_bytes(link: &mut dyn Link) {
    let bytes = |rank: usize| -> Vec<u8> { (0..rank * 5 + 1).map(|i| (i * 37 + 255 * rank) as u8).collect() };
    let me = link.rank();
    let table = link.all_gather(bytes(me), deadline()).unwrap();
    assert!(table.iter().enumerate().all(|(rank, got)| *got == bytes(rank)), "{table:?}");
    assert!(link.all_gather(Vec::new(), deadline()).unwrap().iter().all(Vec::is_empty));
}
