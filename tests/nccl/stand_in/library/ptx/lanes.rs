//! What the lanes of a warp exchange: shuffles and votes.

use super::code::{Shuffle, Vote};
use super::integers::Singles;

/// The values that lanes get from each other, and the lanes that got one from another. As PTX ISA writes it: the
/// low 5 bits of `clamp` bound the source's number, bits 8 to 12 part the warp into segments.
pub fn shuffle(mode: Shuffle, a: &Singles, b: &Singles, clamp: &Singles) -> (Singles, u32) {
    let mut within = 0;
    let values = std::array::from_fn(|lane| {
        let (own, by) = (lane as i32, (b[lane] & 31) as i32);
        let (bound, segment) = ((clamp[lane] & 31) as i32, (clamp[lane] >> 8 & 31) as i32);
        let highest = (own & segment) | (bound & !segment);
        let lowest = own & segment;
        let (from, inside) = match mode {
            Shuffle::Up => (own - by, own - by >= highest),
            Shuffle::Down => (own + by, own + by <= highest),
            Shuffle::Butterfly => (own ^ by, own ^ by <= highest),
            Shuffle::Index => (lowest | (by & !segment), lowest | (by & !segment) <= highest),
        };
        within |= u32::from(inside) << lane;
        a[if inside { from as usize } else { lane }]
    });
    (values, within)
}

/// The result of a vote, which all lanes get: a mask for a ballot, 0 or 1 for the rest.
pub fn vote(mode: Vote, predicate: u32, lanes: u32) -> u32 {
    let yes = predicate & lanes;
    match mode {
        Vote::Ballot => yes,
        Vote::All => u32::from(yes == lanes),
        Vote::Any => u32::from(yes != 0),
        Vote::Uniform => u32::from(yes == 0 || yes == lanes),
    }
}

/// The numbers of the lanes in a mask.
pub fn each(lanes: u32) -> impl Iterator<Item = usize> {
    (0..32).filter(move |lane| lanes >> lane & 1 == 1)
}
