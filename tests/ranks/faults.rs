//! A rank that fails at a point in its run, and what the others say.
//!
//! The fault is at the link: it comes with the rank's n-th send, receive or gather, wherever in a step that is.

use crate::cases::{Case, Text};
use burn::optim::SgdConfig;
use burn::tensor::Device;
use burn_pipeline::link::{Activity, Header, Link, LinkError, Message, Mpi, Watch};
use burn_pipeline::plan::Transport;
use burn_pipeline::schedule::{OneFOneB, Size};
use burn_pipeline::stage::Payload;
use burn_pipeline::train::Pipeline;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The longest that any wait may take in these runs.
pub(crate) const DEADLINE: Duration = Duration::from_secs(4);

/// What happens to a rank.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Fault {
    /// Its process is killed.
    Kill,
    /// Its process is stopped.
    Stop,
    /// It computes for ever.
    Hang,
    /// A message that it sends is lost.
    Lose,
    /// Its code panics.
    Panic,
}

impl Fault {
    fn named(name: &str) -> Self {
        match name {
            "kill" => Fault::Kill,
            "stop" => Fault::Stop,
            "hang" => Fault::Hang,
            "lose" => Fault::Lose,
            "panic" => Fault::Panic,
            other => panic!("there is no fault {other}"),
        }
    }
}

/// A link that fails at its n-th use.
struct Faulty {
    link: Box<dyn Link>,
    fault: Fault,
    left: usize,
}

impl Faulty {
    /// `true` if the fault strikes now.
    fn strikes(&mut self) -> bool {
        self.left = self.left.saturating_sub(1);
        if self.left > 0 {
            return false;
        }
        match self.fault {
            Fault::Kill => signal("-KILL"),
            Fault::Stop => signal("-STOP"),
            Fault::Hang => std::thread::sleep(Duration::from_secs(600)),
            Fault::Panic => panic!("a broken link"),
            Fault::Lose => {}
        }
        true
    }
}

/// Sends this process a signal.
fn signal(which: &str) {
    Command::new("kill").args([which, &std::process::id().to_string()]).status().unwrap();
    // Until it has arrived.
    std::thread::sleep(Duration::from_secs(600));
}

impl Link for Faulty {
    fn rank(&self) -> usize {
        self.link.rank()
    }

    fn ranks(&self) -> usize {
        self.link.ranks()
    }

    fn transport(&self) -> Transport {
        self.link.transport()
    }

    fn watch(&self) -> Arc<dyn Watch> {
        self.link.watch()
    }

    fn bring(&self, payload: Payload) -> Payload {
        self.link.bring(payload)
    }

    fn announce(&mut self, activity: Activity) {
        self.link.announce(activity);
    }

    fn send(&mut self, to: usize, message: Message, deadline: Instant) -> Result<(), LinkError> {
        // A lost message is the first that is sent from that point on.
        match self.left == 0 || !self.strikes() || self.fault != Fault::Lose {
            true => self.link.send(to, message, deadline),
            false => Ok(()),
        }
    }

    fn receive(&mut self, from: usize, header: Header, deadline: Instant) -> Result<Payload, LinkError> {
        if self.fault != Fault::Lose && self.left > 0 {
            self.strikes();
        }
        self.link.receive(from, header, deadline)
    }

    fn all_gather(&mut self, numbers: Vec<f64>, deadline: Instant) -> Result<Vec<Vec<f64>>, LinkError> {
        if self.fault != Fault::Lose && self.left > 0 {
            self.strikes();
        }
        self.link.all_gather(numbers, deadline)
    }

    fn abort(&mut self, message: String) {
        self.link.abort(message);
    }
}

/// Trains until the fault; each rank that still can tells what it was told, and how long after the last good step.
pub(crate) fn strike(mpi: &Mpi, fault: &str, failing: usize, at: usize) -> Result<(), String> {
    let me = mpi.rank();
    let mut link: Box<dyn Link> = Box::new(mpi.link(Device::flex()).unwrap());
    if me == failing {
        link = Box::new(Faulty { link, fault: Fault::named(fault), left: at });
    }
    let mut since = Instant::now();
    let told = |since: Instant, error: String| {
        println!("rank {me} after {:.1} s: {error}", since.elapsed().as_secs_f64());
        Err(error)
    };
    let builder = Pipeline::builder()
        .schedule(Box::new(OneFOneB), Size::new(mpi.ranks(), 4))
        .devices(vec![Device::flex()])
        .stages(Text::stage)
        .optimizer(|| SgdConfig::new().init())
        .deadline(DEADLINE);
    let mut pipeline = match builder.build_rank(link) {
        Ok(pipeline) => pipeline,
        Err(error) => return told(since, error.to_string()),
    };
    for _ in 0..20 {
        since = Instant::now();
        if let Err(error) = pipeline.step(Text::new(4).batch(), 0.1) {
            return told(since, error.to_string());
        }
    }
    Ok(())
}

/// A rank that comes long after the others.
pub(crate) fn late(mpi: &Mpi, failing: usize) -> Result<(), String> {
    let link = mpi.link(Device::flex()).unwrap();
    if mpi.rank() == failing {
        std::thread::sleep(DEADLINE * 2);
    }
    let builder = Pipeline::builder()
        .schedule(Box::new(OneFOneB), Size::new(mpi.ranks(), 4))
        .devices(vec![Device::flex()])
        .stages(Text::stage)
        .deadline(DEADLINE);
    let since = Instant::now();
    let error = builder.build_rank(Box::new(link)).map(drop).unwrap_err();
    println!("rank {} after {:.1} s: {error}", mpi.rank(), since.elapsed().as_secs_f64());
    Err(error.to_string())
}
