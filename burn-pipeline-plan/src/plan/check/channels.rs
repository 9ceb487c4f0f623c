//! Channels: ordered pairs of ranks, and the order of the transfers on each.
//!
//! Guarantees: after [`refuse_disorder`] has passed, the j-th send of every channel moves the same value as its
//! j-th receive. This relies on the scan: each transfer occurs once, so both ends have the same set.
//!
//! 1. Each stage uses up to four channels (for its input, its output, and the gradients of both). Sorting the pairs
//!    of ranks that occur numbers the channels densely.
//! 2. A transfer is packed into one word: its channel, its end, whether the cell starts it, waits for it or both,
//!    and the number of its value. Both ends compute the same number, that of the sending pair and the direction.
//! 3. Collectives of all ranks, and their uses, are in the same lists under a reserved channel number.
//! 4. Only starts are ordered. A counting sort groups the sends by channel in one array, and each receive is
//!    compared with the next entry of its channel.

use super::error::CheckError;
use crate::plan::action::Action;
use crate::plan::edges::{Edges, Side, Skip};
use crate::plan::op::Op;
use crate::plan::rows::Plan;
use crate::plan::task::Task;
use crate::plan::vocabulary::VocabularyLayers;

/// A pair of ranks; `from` sends to `to`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Channel {
    pub(super) from: u32,
    pub(super) to: u32,
}

/// The part of a send or receive that a cell performs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Part {
    /// Starts it; a later cell waits for it.
    Start = 2,
    /// Waits for a started one.
    Wait = 4,
    /// Starts it and waits for it.
    Whole = 6,
}

/// A send or receive, or a part of one, in one word, to keep the lists of large plans short: 36 bits of value, 25
/// of channel, 2 of part, 1 of end. The widths suffice for every plan: a stage on one of two routes has at most 2
/// channels to its neighbour and 126 times 2 along skip edges, and 65,535 such stages stay below 2^25 channels.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Transfer(u64);

impl Transfer {
    const CHANNEL_BITS: u32 = 25;
    const LOW_BITS: u32 = 3;

    fn new(value: usize, channel: u32, sends: bool, part: Part) -> Self {
        let low = u64::from(channel) << Self::LOW_BITS | part as u64 | u64::from(sends);
        Self((value as u64) << (Self::CHANNEL_BITS + Self::LOW_BITS) | low)
    }

    /// The reserved channel number of collectives of all ranks.
    const COLLECTIVE: u32 = (1 << Self::CHANNEL_BITS) - 1;

    /// Returns true for a collective of all ranks. Its value is the collective's number.
    #[inline]
    pub(super) fn is_collective(self) -> bool {
        self.channel() == Self::COLLECTIVE as usize
    }

    #[inline]
    pub(super) fn sends(self) -> bool {
        self.0 & 1 != 0
    }

    #[inline]
    pub(super) fn starts(self) -> bool {
        self.0 & Part::Start as u64 != 0
    }

    #[inline]
    pub(super) fn waits(self) -> bool {
        self.0 & Part::Wait as u64 != 0
    }

    #[inline]
    pub(super) fn channel(self) -> usize {
        (self.0 >> Self::LOW_BITS) as usize & ((1 << Self::CHANNEL_BITS) - 1)
    }

    /// The value's number, the same on both ends.
    #[inline]
    pub(super) fn value(self) -> u64 {
        self.0 >> (Self::CHANNEL_BITS + Self::LOW_BITS)
    }
}

/// The channels of one stage, by operation. Unused ones are 0 and never read.
#[derive(Clone, Copy, Default, Debug)]
struct Ports {
    send_forward: u32,
    receive_forward: u32,
    send_backward: u32,
    receive_backward: u32,
}

/// All transfers of a plan, rank by rank in running order.
#[derive(Debug)]
pub(super) struct Transfers {
    pub(super) channels: Vec<Channel>,
    ports: Vec<Ports>,
    /// The channels of each skip edge: for its value, and for the gradient.
    skip_ports: Vec<[u32; 2]>,
    list: Vec<Transfer>,
    rows: Vec<usize>,
    has_waits: bool,
}

impl Transfers {
    /// An empty list, with the channels that the placement can use.
    pub(super) fn new(plan: &Plan, edges: &Edges, training: bool) -> Self {
        let slots = edges.slots();
        let crossing = || (0..slots.len()).filter(|&slot| slots[slot].after == Side::OtherRank);
        let between = |from: usize, to: usize| {
            let (from, to) = (slots[from].rank as u32, slots[to].rank as u32);
            [Channel { from, to }, Channel { from: to, to: from }]
        };
        let both = |slot: usize| between(slot, slot + 1);
        let of_skip = |skip: &Skip| between(skip.from, skip.to);
        let skips = || edges.skips().iter().filter(|skip| skip.crosses).flat_map(of_skip);
        let mut channels: Vec<Channel> =
            if plan.is_lowered() { crossing().flat_map(both).chain(skips()).collect() } else { Vec::new() };
        channels.sort_unstable();
        channels.dedup();
        let place = |channel: Channel| channels.partition_point(|c| *c < channel) as u32;
        let mut ports = vec![Ports::default(); slots.len()];
        let mut values = 0;
        for slot in crossing().filter(|_| !channels.is_empty()) {
            let [onward, back] = both(slot).map(place);
            ports[slot] = Ports { send_forward: onward, receive_backward: back, ..ports[slot] };
            ports[slot + 1] = Ports { receive_forward: onward, send_backward: back, ..ports[slot + 1] };
            values += slots[slot].microbatches;
        }
        let skip_ports = edges.skips().iter().map(|skip| of_skip(skip).map(place)).collect();
        let list = Vec::with_capacity(values * if training { 4 } else { 2 });
        let mut rows = Vec::with_capacity(plan.ranks() + 1);
        rows.push(0);
        Self { channels, ports, skip_ports, list, rows, has_waits: false }
    }

    /// Adds a transfer of the current rank, or a part of one; `op` is the operation of its start.
    #[inline]
    pub(super) fn push(&mut self, slot: usize, microbatches: usize, pair: usize, op: Op, part: Part) {
        let ports = self.ports[slot];
        let (value, channel, sends) = match op {
            Op::SendForward => (pair * 2, ports.send_forward, true),
            Op::ReceiveForward => ((pair - microbatches) * 2, ports.receive_forward, false),
            Op::SendBackward => (pair * 2 + 1, ports.send_backward, true),
            _ => ((pair + microbatches) * 2 + 1, ports.receive_backward, false),
        };
        self.has_waits |= part == Part::Wait;
        self.list.push(Transfer::new(value, channel, sends, part));
    }

    /// Adds a transfer along a skip edge, or a part of one. `skip` is the edge, `value` the number of the value
    /// (above those of all pairs), and `op` the operation of the start.
    pub(super) fn push_skip(&mut self, skip: usize, value: usize, op: Op, part: Part) {
        let [onward, back] = self.skip_ports[skip];
        let (value, channel) = match op {
            Op::SendForward | Op::ReceiveForward => (value * 2, onward),
            _ => (value * 2 + 1, back),
        };
        self.has_waits |= part == Part::Wait;
        self.list.push(Transfer::new(value, channel, op.is_send(), part));
    }

    /// Adds the start of a collective of all ranks, or a use of it, to the current rank.
    pub(super) fn push_collective(&mut self, number: usize, part: Part) {
        self.list.push(Transfer::new(number, Transfer::COLLECTIVE, false, part));
    }

    pub(super) fn end_row(&mut self) {
        self.rows.push(self.list.len());
    }

    #[inline]
    pub(super) fn of(&self, rank: usize) -> &[Transfer] {
        &self.list[self.rows[rank]..self.rows[rank + 1]]
    }

    /// All starts of one end, rank by rank.
    fn starts(&self, sends: bool) -> impl Iterator<Item = &Transfer> {
        self.list.iter().filter(move |t| t.starts() && t.sends() == sends && !t.is_collective())
    }

    /// Returns true if any transfer has its own wait.
    pub(super) fn has_waits(&self) -> bool {
        self.has_waits
    }
}

/// The cell and task of a rank's n-th transfer (or part of one). Used for errors only.
pub(super) fn locate(plan: &Plan, rank: usize, n: usize) -> Option<(usize, Action, Task)> {
    let cells = plan.row(rank).iter().enumerate();
    let tasks = cells.flat_map(|(step, action)| action.tasks().map(move |task| (step, *action, task)));
    let vocabulary = VocabularyLayers::of(plan);
    let uses = |task: &Task| task.of_microbatch().and_then(|task| vocabulary.awaited(task)).is_some();
    let listed = |op: Op| op.is_transfer() || op.is_transfer_wait() || op.is_rank_collective();
    tasks.filter(|(_, _, task)| listed(task.op()) || uses(task)).nth(n)
}

/// The values of all sends, channel by channel in sending order.
#[derive(Debug)]
pub(super) struct Order {
    /// The offset of each channel in `values`.
    pub(super) starts: Vec<usize>,
    pub(super) values: Vec<u64>,
}

/// Refuses a plan if the two ends of a channel disagree on the order.
pub(super) fn refuse_disorder(plan: &Plan, transfers: &Transfers) -> Result<Order, Box<CheckError>> {
    let mut starts = vec![0usize; transfers.channels.len() + 1];
    transfers.starts(true).for_each(|t| starts[t.channel() + 1] += 1);
    for channel in 1..starts.len() {
        starts[channel] += starts[channel - 1];
    }
    let mut values = vec![0u64; starts.last().copied().unwrap_or(0)];
    let mut next = starts.clone();
    for transfer in transfers.starts(true) {
        values[next[transfer.channel()]] = transfer.value();
        next[transfer.channel()] += 1;
    }
    next.copy_from_slice(&starts);
    for transfer in transfers.starts(false) {
        let channel = transfer.channel();
        if values[next[channel]] != transfer.value() {
            return Err(disorder(plan, transfers, channel, next[channel] - starts[channel]));
        }
        next[channel] += 1;
    }
    Ok(Order { starts, values })
}

#[cold]
fn disorder(plan: &Plan, transfers: &Transfers, channel: usize, position: usize) -> Box<CheckError> {
    let Channel { from, to } = transfers.channels[channel];
    let (from, rank) = (from as usize, to as usize);
    let at = |rank: usize, sends: bool| {
        let own = transfers
            .of(rank)
            .iter()
            .enumerate()
            .filter(|(_, t)| t.starts() && t.channel() == channel && t.sends() == sends);
        own.map(|(n, _)| n).nth(position).and_then(|n| locate(plan, rank, n))
    };
    // The scan has counted equally many transfers at both ends, so both are found.
    let nothing = (0, Action::Idle, Task::new(0, Op::Forward, 0));
    let (sent_step, _, sent) = at(from, true).unwrap_or(nothing);
    let (step, _, received) = at(rank, false).unwrap_or(nothing);
    let grid = plan.excerpt(rank, step);
    Box::new(CheckError::ChannelOrder { rank, step, received, from, sent, sent_step, position, grid })
}
