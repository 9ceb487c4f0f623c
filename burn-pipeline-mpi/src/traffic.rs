//! What is on its way on one link: on its own communicator, and on one of each group of its ranks.
//!
//! 1. Every communicator is a [`Lane`]: letters and tensors in both directions, and what repeats among them. Messages of
//!    one lane do not get between those of another, so that a sum over a group and the messages of the plan keep
//!    their own orders.
//! 2. What ranks tell each other beside messages (gathers, questions, failures, goodbyes) goes over the link's own
//!    communicator alone: one mailbox holds it all.

use crate::coming::{BODY, Coming, Incoming, REPEATED, ReceiveCounters, arrived, finish_front};
use crate::in_flight::{InFlight, pieces};
use crate::repeats::{Noted, Primed, Repeats};
use burn::tensor::Bytes;
use burn_pipeline::link::kit::{Envelope, Frame, Mailbox, Repeat};
use burn_pipeline::link::{Failure, LinkError, Monitor, WireError};
use mpi::Tag;
use mpi::datatype::Equivalence;
use mpi::point_to_point::Source;
use mpi::topology::{Color, Communicator, SimpleCommunicator};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

const LETTER: Tag = 1;

/// One link.
pub(crate) struct Traffic {
    pub(crate) mailbox: Arc<Mailbox>,
    pub(crate) landings: Arc<ReceiveCounters>,
    pub(crate) closed: bool,
    /// Has something come for a thread that stands waiting, since this was last asked?
    woke: bool,
    own: Lane,
    /// Of each group, in the order in which they were formed; nothing where this rank is no member.
    groups: Vec<Option<Lane>>,
    sending: Vec<InFlight>,
}

/// The frame that the next message from or to a rank will have.
pub(crate) struct Primer {
    pub(crate) peer: usize,
    pub(crate) incoming: bool,
    pub(crate) frame: Frame,
}

/// One communicator, and what is on its way on it.
struct Lane {
    communicator: SimpleCommunicator,
    /// The link's ranks by those of the communicator, ascending.
    ranks: Vec<usize>,
    /// Of each rank: letters on their way, in order.
    letters: Vec<VecDeque<InFlight>>,
    /// Of each rank: messages whose letter is here, in order.
    messages: Vec<VecDeque<Coming>>,
    /// Of each rank: what repeats among its messages.
    incoming: Vec<Incoming>,
    /// To each rank: what repeats among the messages.
    outgoing: Vec<Outgoing>,
}

/// What repeats among the messages to one rank.
#[derive(Default)]
struct Outgoing {
    repeats: Repeats,
    /// Transfers that a message under each number takes.
    transfers: HashMap<u16, usize>,
}

/// Something that has come whole from a rank.
enum Came {
    Envelope(usize, Bytes),
    Message(usize, (Frame, Vec<Bytes>)),
}

impl Lane {
    fn new(communicator: SimpleCommunicator, ranks: Vec<usize>) -> Self {
        Self {
            letters: ranks.iter().map(|_| VecDeque::new()).collect(),
            messages: ranks.iter().map(|_| VecDeque::new()).collect(),
            incoming: ranks.iter().map(|_| Incoming::default()).collect(),
            outgoing: ranks.iter().map(|_| Outgoing::default()).collect(),
            communicator,
            ranks,
        }
    }

    /// Starts to send a letter, and a message's tensors behind it; a message that repeats another goes under a number.
    fn send(&mut self, to: usize, letter: &Envelope, bodies: Vec<Bytes>, sending: &mut Vec<InFlight>) {
        let Ok(to) = self.ranks.binary_search(&to) else { return };
        let bodies: Vec<Bytes> = bodies.into_iter().filter(|body| !body.is_empty()).collect();
        // What is no frame goes as it is: its receiver refuses it.
        let frame = match letter {
            Envelope::Message(frame) => Frame::read(frame).ok(),
            _ => None,
        };
        let (mut repeat, mut ends) = (None, None);
        if let Some(frame) = frame {
            let outgoing = &mut self.outgoing[to];
            match outgoing.repeats.note(&frame) {
                Noted::Repeat(number) => {
                    // The whole frame was written, so that the microbatch fits.
                    let short = Repeat { number, microbatch: frame.header().microbatch }.write();
                    repeat = short.ok().map(|short| (number, Envelope::Message(short)));
                }
                Noted::Opens(number) => {
                    let transfers = bodies.iter().map(|body| pieces(body.len())).sum();
                    outgoing.transfers.insert(number, transfers);
                }
                Noted::Ends(number) => ends = Some(number),
                Noted::Whole => {}
            }
        }
        self.end_numbers(to, ends, sending);
        let (tag, letter) =
            repeat.as_ref().map_or((BODY, letter), |(number, short)| (REPEATED + Tag::from(*number), short));
        let process = self.communicator.process_at_rank(to as i32);
        sending.push(InFlight::send(&process, LETTER, Bytes::from_elems(letter.write())));
        sending.extend(bodies.into_iter().map(|body| InFlight::send(&process, tag, body)));
    }

    /// Notes what the next message to a rank will hold: its receives wait under a number.
    fn prime_outgoing(&mut self, to: usize, frame: &Frame, sending: &mut Vec<InFlight>) {
        let Primed { ends, opens } = self.outgoing[to].repeats.prime(frame);
        self.end_numbers(to, ends, sending);
        if let Some(number) = opens {
            self.outgoing[to].transfers.insert(number, frame.lengths().map(pieces).sum());
        }
    }

    /// Posts receives for the next message of a rank.
    fn prime_incoming(&mut self, from: usize, frame: Frame) {
        let process = self.communicator.process_at_rank(from as i32);
        self.incoming[from].prime(&process, frame);
    }

    /// What waits for messages under these numbers is given nothing, so that it is over.
    fn end_numbers(&mut self, to: usize, numbers: impl IntoIterator<Item = u16>, sending: &mut Vec<InFlight>) {
        let process = self.communicator.process_at_rank(to as i32);
        for number in numbers {
            let transfers = self.outgoing[to].transfers.remove(&number).unwrap_or_default();
            let end = |_| InFlight::send_nothing(&process, REPEATED + Tag::from(number));
            sending.extend((0..transfers).map(end));
        }
    }

    /// Ends all numbers: nothing more is sent.
    fn part(&mut self, sending: &mut Vec<InFlight>) {
        for to in 0..self.outgoing.len() {
            let numbers = self.outgoing[to].repeats.end();
            self.end_numbers(to, numbers, sending);
        }
    }

    /// Nothing more comes from this rank of the link.
    fn end(&mut self, from: usize) {
        if let Ok(from) = self.ranks.binary_search(&from) {
            self.incoming[from].end();
        }
    }

    /// Starts to receive the tensors of a message.
    fn expect(&mut self, from: usize, frame: &[u8]) -> Result<(), WireError> {
        let Ok(from) = self.ranks.binary_search(&from) else { return Ok(()) };
        let process = self.communicator.process_at_rank(from as i32);
        let coming = self.incoming[from].expect(&process, frame)?;
        self.messages[from].push_back(coming);
        Ok(())
    }

    /// Starts to receive the letters that are there.
    fn probe(&mut self) -> bool {
        let mut busy = false;
        while let Some((message, status)) = self.communicator.any_process().immediate_matched_probe_with_tag(LETTER) {
            let length = status.count(u8::equivalent_datatype()) as usize;
            let landing = Bytes::from_elems(vec![0u8; length]);
            self.letters[status.source_rank() as usize].push_back(InFlight::matched(message, landing));
            busy = true;
        }
        (0..self.ranks.len()).fold(busy, |busy, rank| self.incoming[rank].clear() || busy)
    }

    /// The next letter or message that is whole.
    fn next(&mut self) -> Option<Came> {
        for (place, &rank) in self.ranks.iter().enumerate() {
            if let Some(letter) = finish_front(&mut self.letters[place]) {
                return Some(Came::Envelope(rank, letter));
            }
            if let Some(message) = arrived(&mut self.messages[place]) {
                return Some(Came::Message(rank, message));
            }
        }
        None
    }

    fn is_receiving(&self) -> bool {
        self.messages.iter().any(|coming| !coming.is_empty())
    }

    fn is_over(&self) -> bool {
        self.incoming.iter().all(Incoming::is_over)
    }
}

impl Traffic {
    pub(crate) fn new(communicator: SimpleCommunicator) -> Self {
        let (rank, ranks) = (communicator.rank() as usize, communicator.size() as usize);
        Self {
            mailbox: Arc::new(Mailbox::new(rank, ranks)),
            landings: Arc::default(),
            closed: false,
            woke: false,
            own: Lane::new(communicator, (0..ranks).collect()),
            groups: Vec::new(),
            sending: Vec::new(),
        }
    }

    /// Forms a group of these ranks, with all ranks of the link.
    pub(crate) fn form(&mut self, ranks: &[usize]) {
        let color = if ranks.contains(&self.mailbox.rank) { Color::with_value(0) } else { Color::undefined() };
        let communicator = self.own.communicator.split_by_color(color);
        self.groups.push(communicator.map(|communicator| Lane::new(communicator, ranks.to_vec())));
    }

    /// Starts to send a letter, and a message's tensors behind it, on the link or within a group.
    pub(crate) fn send(&mut self, group: Option<usize>, to: usize, letter: &Envelope, bodies: Vec<Bytes>) {
        let lane = match group {
            None => Some(&mut self.own),
            Some(group) => self.groups.get_mut(group).and_then(Option::as_mut),
        };
        // Groups that there are not are refused where the order is given.
        if let Some(lane) = lane {
            lane.send(to, letter, bodies, &mut self.sending);
        }
    }

    /// Notes what comes next on the link's own communicator, from other ranks or to them.
    pub(crate) fn prime(&mut self, frames: Vec<Primer>) {
        for Primer { peer, incoming, frame } in frames {
            match incoming {
                true => self.own.prime_incoming(peer, frame),
                false => self.own.prime_outgoing(peer, &frame, &mut self.sending),
            }
        }
    }

    fn lanes(&mut self) -> impl Iterator<Item = (Option<usize>, &mut Lane)> {
        let groups = self.groups.iter_mut().enumerate();
        let groups = groups.filter_map(|(group, lane)| Some((Some(group), lane.as_mut()?)));
        std::iter::once((None, &mut self.own)).chain(groups)
    }

    /// Says goodbye to all others.
    pub(crate) fn part(&mut self) {
        let mut sending = std::mem::take(&mut self.sending);
        self.lanes().for_each(|(_, lane)| lane.part(&mut sending));
        self.sending = sending;
        self.tell_others(&Envelope::Close);
    }

    fn tell_others(&mut self, letter: &Envelope) {
        let me = self.mailbox.rank;
        (0..self.mailbox.ranks).filter(|&rank| rank != me).for_each(|rank| self.send(None, rank, letter, Vec::new()));
    }

    /// Has work that others wait for?
    pub(crate) fn is_urgent(&self) -> bool {
        let receiving = self.own.is_receiving() || self.groups.iter().flatten().any(Lane::is_receiving);
        self.mailbox.is_waiting() || !self.sending.is_empty() || receiving
    }

    /// Has everything gone out, and have all others said goodbye?
    pub(crate) fn is_done(&self) -> bool {
        let byes = &self.mailbox.contents().closed;
        let all_came = self.own.is_over() && self.groups.iter().flatten().all(Lane::is_over);
        let all_said = byes.iter().enumerate().all(|(rank, &bye)| bye || rank == self.mailbox.rank);
        all_came && self.sending.is_empty() && all_said
    }

    /// Moves everything on as far as it goes without waiting; `true` if anything moved.
    pub(crate) fn turn(&mut self) -> bool {
        let mut busy = false;
        let failure = self.mailbox.contents().outgoing_failure.take();
        if let Some(failure) = failure {
            self.tell_others(&Envelope::Failed(failure));
            busy = true;
        }
        self.lanes().for_each(|(_, lane)| busy |= lane.probe());
        while let Some((group, came)) = self.next() {
            match came {
                Came::Envelope(from, letter) => self.read(group, from, &letter),
                Came::Message(from, message) => {
                    self.mailbox.deliver(group, from, message);
                    self.mailbox.wake();
                    self.woke |= self.mailbox.is_waiting();
                }
            }
            busy = true;
        }
        let before = self.sending.len();
        let left = std::mem::take(&mut self.sending).into_iter().filter_map(|transfer| transfer.finish().err());
        self.sending = left.collect();
        busy || self.sending.len() < before
    }

    /// Was somebody woken since the last call?
    pub(crate) fn has_woken(&mut self) -> bool {
        std::mem::take(&mut self.woke)
    }

    /// The next letter or message that is whole.
    fn next(&mut self) -> Option<(Option<usize>, Came)> {
        self.lanes().find_map(|(group, lane)| Some((group, lane.next()?)))
    }

    fn read(&mut self, group: Option<usize>, from: usize, bytes: &[u8]) {
        let Some(letter) = Envelope::read(bytes) else {
            return self.fail(from, "it sent what no rank sends; do all ranks run the same build?".to_owned());
        };
        if let Envelope::Message(frame) = &letter {
            return self.expect(group, from, frame);
        }
        self.woke |= matches!(letter, Envelope::Gather { .. }) && self.mailbox.is_waiting();
        let closes = letter == Envelope::Close;
        if let Some(reply) = self.mailbox.handle(from, letter) {
            self.send(None, from, &reply, Vec::new());
        }
        if closes {
            self.lanes().for_each(|(_, lane)| lane.end(from));
        }
    }

    /// Starts to receive the tensors of a message.
    fn expect(&mut self, group: Option<usize>, from: usize, frame: &[u8]) {
        if group.is_none() {
            self.landings.count(Repeat::is(frame));
        }
        let expected = match self.lanes().find(|(other, _)| *other == group) {
            Some((_, lane)) => lane.expect(from, frame),
            None => Ok(()),
        };
        if let Err(source) = expected {
            let error = LinkError::Wire { rank: self.mailbox.rank, peer: from, source };
            self.fail(from, error.to_string());
            self.mailbox.contents().broken.get_or_insert(error);
            self.mailbox.wake();
        }
    }

    /// Tells everybody that what came from a rank cannot be used.
    fn fail(&mut self, from: usize, message: String) {
        let message = format!("rank {} cannot read what rank {from} sent: {message}", self.mailbox.rank);
        self.mailbox.abort(Failure { rank: from, message });
    }
}
