//! Traces as JSON that Perfetto (`ui.perfetto.dev`) and `chrome://tracing` open.
//!
//! Guarantees: valid JSON in the Trace Event Format; times in microseconds; no two events of one thread overlap.
//!
//! 1. A track is a process, and each rank a thread of it. Transfers and collectives, which may run beside computations,
//!    have threads of their own below their rank.
//! 2. `F`, `I`, `W`, `B` and the pieces of a parallel vocabulary have the category `computation`; the rest has
//!    `communication`.
//! 3. Transfers and exchanges between replicas have two more arguments: the time that their rank waited for them
//!    (`exposed_us`), and before that for the neighbour's computation (`early_us`); see [`Track::exposed_times`].

use super::event::{Event, Track};
use super::kind::{Kind, is_compute, lanes};
use crate::plan::{Action, Task};
use serde_json::{Value, json};
use std::collections::HashMap;

/// Writes tracks as one trace, one below the other: for example, a predicted and a measured one.
pub fn chrome(tracks: &[Track]) -> String {
    let mut events = Vec::new();
    for (process, track) in tracks.iter().enumerate() {
        let ranks = track.rows();
        events.push(json!({ "name": "process_name", "ph": "M", "pid": process, "tid": 0,
                            "args": { "name": track.name, "ranks": ranks } }));
        for rank in 0..ranks {
            name_thread(&mut events, process, rank, &format!("rank {rank}"), rank * 1000);
        }
        let computing = track.events.iter().filter(|event| is_compute(event));
        events.extend(computing.map(|event| complete(event, process, event.rank)));
        let beside = lanes(track);
        let most = beside.iter().map(|&(lane, _)| lane + 1).max().unwrap_or(0);
        for rank in 0..ranks {
            for lane in 0..most {
                let used = beside.iter().any(|&(l, event)| (l, event.rank) == (lane, rank));
                if used {
                    let name = format!("rank {rank} transfers {lane}");
                    name_thread(&mut events, process, ranks * (lane + 1) + rank, &name, rank * 1000 + lane + 1);
                }
            }
        }
        let waits = track.exposed_times();
        let waits: HashMap<_, _> = waits.iter().map(|wait| (place(&wait.event), wait)).collect();
        events.extend(beside.iter().map(|&(lane, event)| {
            let mut json = complete(event, process, ranks * (lane + 1) + event.rank);
            if let Some(wait) = waits.get(&place(event)) {
                json["args"]["exposed_us"] = json!(wait.exposed * 1e6);
                json["args"]["early_us"] = json!(wait.early * 1e6);
            }
            json
        }));
    }
    json!({ "traceEvents": events, "displayTimeUnit": "ms" }).to_string()
}

/// The key of an event within its track.
fn place(event: &Event) -> (usize, Action, u64) {
    (event.rank, event.action, event.start.to_bits())
}

/// The kind of an action; for a fused one, the kind of its second part.
fn kind(action: Action) -> Kind {
    action.tasks().last().map_or(Kind::Collective, Kind::of)
}

fn complete(event: &Event, process: usize, thread: usize) -> Value {
    let kind = kind(event.action);
    json!({
        "name": event.action.to_string(), "cat": kind.category(), "cname": kind.chrome_name(), "ph": "X",
        "pid": process, "tid": thread, "ts": event.start * 1e6, "dur": (event.end - event.start) * 1e6,
        "args": { "rank": event.rank, "tasks": event.action.tasks().map(describe).collect::<Vec<_>>() },
    })
}

fn describe(task: Task) -> Value {
    let stage = task.stage();
    json!({ "operation": task.op().symbol(), "stage": stage.index(), "replica": stage.route(),
            "microbatch": task.microbatch() })
}

fn name_thread(events: &mut Vec<Value>, process: usize, thread: usize, name: &str, place: usize) {
    events.push(json!({ "name": "thread_name", "ph": "M", "pid": process, "tid": thread, "args": { "name": name } }));
    events.push(json!({ "name": "thread_sort_index", "ph": "M", "pid": process, "tid": thread,
                        "args": { "sort_index": place } }));
}
