//! Lanes for transfers and collectives, which may run beside computations and beside each other. Each rank gets as many
//! lanes as drawing them without overlap needs.

use super::event::{Event, Track};
use super::kind::is_compute;

/// The transfers and collectives of a track, each with its lane, counted from 0 on each rank.
pub(super) fn lanes(track: &Track) -> Vec<(usize, &Event)> {
    let mut events: Vec<&Event> =
        track.events.iter().filter(|event| !is_compute(event) && !event.action.is_idle()).collect();
    events.sort_by(|a, b| a.start.total_cmp(&b.start));
    let mut free: Vec<Vec<f64>> = vec![Vec::new(); track.rows()];
    let place = |event: &Event| {
        let lanes = &mut free[event.rank];
        let lane = lanes.iter().position(|&end| end <= event.start).unwrap_or(lanes.len());
        if lane == lanes.len() {
            lanes.push(0.0);
        }
        lanes[lane] = event.end;
        lane
    };
    let placed: Vec<usize> = events.iter().copied().map(place).collect();
    placed.into_iter().zip(events).collect()
}
