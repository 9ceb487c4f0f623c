//! Streams, each a thread; events; and what the host knows to be over.
//!
//! 1. A job is checked and gets its position in a stream when it is queued, under one lock for the whole device.
//!    The stream's thread runs it later.
//! 2. An event is a [`Mark`]: a clock, and the number of streams that have not reached it. A mark over all streams
//!    serves frees, which wait for the whole device, and events over the context.
//! 3. Once any thread of the host has seen that something is over, the host knows it.

use crate::broken::broken;
use crate::memory::Memory;
use crate::order::{Clock, Log, Use};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Condvar, LazyLock, Mutex, MutexGuard, OnceLock, PoisonError};
use std::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Instant;

type Job = Box<dyn FnOnce() + Send>;

/// A point in one or several streams.
pub struct Mark {
    clock: Clock,
    open: Mutex<usize>,
    reached: Condvar,
    when: OnceLock<Instant>,
}

impl Mark {
    fn new(clock: Clock, streams: usize) -> Arc<Self> {
        Arc::new(Self { clock, open: Mutex::new(streams), reached: Condvar::new(), when: OnceLock::new() })
    }

    fn reach(&self) {
        let mut open = self.open.lock().unwrap();
        *open -= 1;
        if *open == 0 {
            let _ = self.when.set(Instant::now());
        }
        self.reached.notify_all();
    }

    /// When all streams had reached it; `None` if they have not.
    pub fn when(&self) -> Option<Instant> {
        self.when.get().copied()
    }

    pub fn is_reached(&self) -> bool {
        *self.open.lock().unwrap() == 0
    }

    pub fn wait(&self) {
        drop(self.reached.wait_while(self.open.lock().unwrap(), |open| *open > 0).unwrap());
    }
}

struct Stream {
    /// The clock that the next job comes after.
    clock: Clock,
    queued: u64,
    done: Arc<AtomicU64>,
    jobs: Sender<Job>,
    /// The communicator whose last group is not known to be in the queue.
    unsettled: Option<usize>,
}

/// The device of this process.
#[derive(Default)]
pub struct Device {
    pub memory: Memory,
    pub log: Log,
    /// What the host has seen to be over.
    known: Clock,
    streams: HashMap<usize, Stream>,
    events: HashMap<usize, Option<Arc<Mark>>>,
    /// Marks that streams created later wait for as well.
    context: Vec<Arc<Mark>>,
    last: usize,
}

/// Locks the device for one call.
pub fn device() -> MutexGuard<'static, Device> {
    static DEVICE: LazyLock<Mutex<Device>> = LazyLock::new(Mutex::default);
    // A panic leaves it consistent: every change is made after all checks.
    DEVICE.lock().unwrap_or_else(PoisonError::into_inner)
}

static LAUNCHES: RwLock<()> = RwLock::new(());

/// Held while something is queued. Taken before [`device`].
pub fn launches() -> RwLockReadGuard<'static, ()> {
    LAUNCHES.read().unwrap_or_else(PoisonError::into_inner)
}

/// Blocks launches, as calls of the driver may that wait for the whole device.
pub fn block_launches() -> RwLockWriteGuard<'static, ()> {
    LAUNCHES.write().unwrap_or_else(PoisonError::into_inner)
}

impl Device {
    pub fn create_stream(&mut self) -> usize {
        self.last += 1;
        let (jobs, taken) = channel::<Job>();
        let (clock, done) = (Clock::default(), Arc::new(AtomicU64::new(0)));
        let count = done.clone();
        let serve = move || {
            for job in taken {
                job();
                count.fetch_add(1, Ordering::Release);
            }
        };
        std::thread::Builder::new().name("stream".to_owned()).spawn(serve).unwrap();
        self.streams.insert(self.last, Stream { clock, queued: 0, done, jobs, unsettled: None });
        for mark in self.context.clone() {
            self.wait(self.last, &mark);
        }
        self.last
    }

    /// The thread ends after its queued jobs.
    pub fn destroy_stream(&mut self, stream: usize) {
        self.check_settled(stream);
        self.streams.remove(&stream);
    }

    fn stream(&mut self, stream: usize) -> &mut Stream {
        let found = self.streams.get_mut(&stream);
        found.unwrap_or_else(|| broken("a handle is not alive", format!("stream {stream}")))
    }

    /// Checks that a stream may be used now.
    pub fn check_settled(&mut self, stream: usize) {
        if let Some(communicator) = self.stream(stream).unsettled {
            let what = format!("stream {stream} is used before communicator {communicator} was polled");
            broken("a group is not in the queue yet", what);
        }
    }

    /// Queues a job and checks the memory that it uses.
    pub fn queue(&mut self, stream: usize, uses: Vec<Use>, transfer: bool, job: impl FnOnce() + Send + 'static) {
        let (position, clock) = self.next(stream);
        for used in uses {
            self.memory.check(&used.range, used.what);
            self.log.enter(used, stream, position, transfer, &clock);
        }
        self.send(stream, Box::new(job));
    }

    /// Queues a kernel, which returns the memory that it has used.
    pub fn launch(&mut self, stream: usize, kernel: impl FnOnce() -> Vec<Use> + Send + 'static) {
        let (position, clock) = self.next(stream);
        self.log.begin(stream, position, &clock);
        let job = move || {
            let uses = kernel();
            device().log.ended(uses, stream, position);
        };
        self.send(stream, Box::new(job));
    }

    /// The position of a stream's next job, and what the job comes after.
    fn next(&mut self, stream: usize) -> (u64, Arc<Clock>) {
        let known = self.known.clone();
        let queue = self.stream(stream);
        queue.clock.join(&known);
        queue.queued += 1;
        let position = queue.queued;
        queue.clock.reach(stream, position);
        (position, Arc::new(queue.clock.clone()))
    }

    fn send(&mut self, stream: usize, job: Job) {
        // The thread lives as long as the sender.
        self.streams[&stream].jobs.send(job).unwrap();
    }

    /// Sets or clears the communicator whose group may not be in the queue yet.
    pub fn set_unsettled(&mut self, stream: usize, communicator: Option<usize>) {
        self.stream(stream).unsettled = communicator;
    }

    /// A mark after everything that these streams have queued.
    pub fn mark(&mut self, streams: &[usize]) -> Arc<Mark> {
        let mut clock = self.known.clone();
        for &stream in streams {
            clock.join(&self.stream(stream).clock);
        }
        let mark = Mark::new(clock, streams.len());
        for &stream in streams {
            let reached = mark.clone();
            self.queue(stream, Vec::new(), false, move || reached.reach());
        }
        mark
    }

    pub fn all_streams(&self) -> Vec<usize> {
        self.streams.keys().copied().collect()
    }

    /// Makes later jobs of a stream wait for a mark.
    pub fn wait(&mut self, stream: usize, mark: &Arc<Mark>) {
        self.stream(stream).clock.join(&mark.clock);
        let mark = mark.clone();
        self.queue(stream, Vec::new(), false, move || mark.wait());
    }

    /// Makes later jobs of all streams wait for a mark.
    pub fn wait_everywhere(&mut self, mark: &Arc<Mark>) {
        self.context.retain(|mark| !mark.is_reached());
        self.context.push(mark.clone());
        for stream in self.all_streams() {
            self.wait(stream, mark);
        }
    }

    /// Returns true if a stream's queue is empty.
    pub fn is_empty(&mut self, stream: usize) -> bool {
        let queue = self.stream(stream);
        let empty = queue.done.load(Ordering::Acquire) == queue.queued;
        if empty {
            let clock = queue.clock.clone();
            self.learn(&clock);
        }
        empty
    }

    /// Records that the host has seen a mark reached.
    pub fn know(&mut self, mark: &Mark) {
        self.learn(&mark.clock);
    }

    fn learn(&mut self, clock: &Clock) {
        self.known.join(clock);
        self.log.forget(&self.known);
    }

    pub fn create_event(&mut self) -> usize {
        self.last += 1;
        self.events.insert(self.last, None);
        self.last
    }

    pub fn destroy_event(&mut self, event: usize) {
        self.event(event);
        self.events.remove(&event);
    }

    /// The event's last mark. An event that was never recorded has none, and counts as reached.
    pub fn event(&mut self, event: usize) -> &mut Option<Arc<Mark>> {
        let found = self.events.get_mut(&event);
        found.unwrap_or_else(|| broken("a handle is not alive", format!("event {event}")))
    }
}
