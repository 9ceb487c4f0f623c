//! A slow network: passes over communication on against off, and the planner's choice against 1F1B and ZBV, predicted and
//! measured.
//!
//! `cargo bench -p benches --bench delay [-- --rounds N --ranks N --latency MS --bandwidth MB_PER_S --microbatches N]`
//!
//! 1. The model's last layer is the heaviest. Each block runs as a stage of its own on these ranks, without delay; the
//!    measured profile is the model's layers.
//! 2. Messages between ranks are delayed ([`Delayed`](burn_pipeline::link::Delayed)); the simulator gets the same links.
//! 3. *Passes off*: every receive is awaited where it is posted, as blocking receives do. *Passes on*: the same plan after
//!    [`Pass::USUAL`], with room for two activations of the largest stage more a rank. *Awaited where used* is what
//!    pipelines do without passes.
//! 4. *Planned*: what [`best_plan`] finds for these layers and links, its cut included. *`AutoPipeline`*: one that starts
//!    with an even cut, measures steps and links itself, and switches.
//! 5. All contestants take turns, round by round. A pass is a step without the optimizer: what the simulator predicts.
//!
//! Ranks are threads with one compute thread each: with fewer cores than ranks they share them, and computation takes
//! longer than the profile says.

#![allow(missing_docs, clippy::print_stdout, clippy::unwrap_used, reason = "a benchmark prints and may stop")]

use benches::heavy_head::{BLOCKS, batch, builder, config};
use benches::spread::Spread;
use burn_pipeline::cost::{Layers, Link, Links, OptimalOptions, Partition, Profile, optimal};
use burn_pipeline::pass::overlap::{OverlapOptions, Pass, run_passes};
use burn_pipeline::pass::{Placing, WaitOptions, insert_transfers, insert_waits};
use burn_pipeline::plan::{Plan, Transport};
use burn_pipeline::planner::{Request, Workload, best_plan};
use burn_pipeline::schedule::{Size, by_name};
use burn_pipeline::simulate::{SimulateOptions, simulate};
use burn_pipeline::train::{AutoOptions, AutoPipeline, Decision, StepReport, measured_profile};
use std::time::Instant;

const RATE: f64 = 1e-4;
/// Rounds that are not counted.
const WARM_UP: usize = 2;
/// How threads' messages travel.
const TRAVEL: SimulateOptions = SimulateOptions { transport: Transport::Unbounded, overlap: true };

struct Contestant {
    name: String,
    cut: String,
    predicted: f64,
    pipeline: AutoPipeline,
    passes: Vec<f64>,
    steps: Vec<f64>,
}

/// What everything is measured and planned for.
struct Setting {
    ranks: usize,
    microbatches: usize,
    network: Links,
    layers: Layers,
}

fn argument(name: &str, default: f64) -> f64 {
    let mut arguments = std::env::args().skip_while(|argument| argument != name);
    arguments.nth(1).and_then(|n| n.parse().ok()).unwrap_or(default)
}

/// Every block's costs, measured one block a stage while all ranks work.
fn measured(ranks: usize, microbatches: usize) -> Profile {
    let size = Size { ranks, chunks: BLOCKS / ranks, microbatches };
    let fine = builder(Partition::even(BLOCKS, BLOCKS).unwrap());
    let mut fine = fine.schedule(by_name("InterleavedZeroBubble").unwrap(), size).build().unwrap();
    let reports: Vec<StepReport> = (0..6).map(|_| fine.step(batch(microbatches), RATE).unwrap()).collect();
    measured_profile(fine.placement(), &reports[2..]).unwrap()
}

impl Setting {
    /// A family's plan with its transfers.
    fn family(&self, name: &str, chunks: usize) -> Plan {
        let size = Size { ranks: self.ranks, chunks, microbatches: self.microbatches };
        insert_transfers(&by_name(name).unwrap().build(size).unwrap()).unwrap()
    }

    fn best_cut(&self, plan: &Plan) -> Partition {
        optimal(&self.layers, plan.placement(), &OptimalOptions::default()).unwrap().partition
    }

    /// The costs of a cut's stages over the delayed links.
    fn profile(&self, cut: &Partition) -> Profile {
        cut.profile(&self.layers, self.network.clone()).unwrap()
    }

    fn contestant(&self, name: String, plan: &Plan, cut: &Partition) -> Contestant {
        let predicted = simulate(plan, &self.profile(cut), &TRAVEL).unwrap().makespan;
        let builder = builder(cut.clone()).delayed(self.network.clone()).plan(plan.clone());
        let pipeline = AutoPipeline::given(builder.clone(), builder.build().unwrap());
        Contestant { name, cut: cut.to_string(), predicted, pipeline, passes: Vec::new(), steps: Vec::new() }
    }

    /// A family as it is lowered, with blocking receives, and those moved by the passes.
    fn with_and_without_passes(&self, name: &str, chunks: usize) -> [Contestant; 3] {
        let lowered = self.family(name, chunks);
        let cut = self.best_cut(&lowered);
        let profile = self.profile(&cut);
        let off = insert_waits(&lowered, &WaitOptions { receives: Placing::AtOnce, ..WaitOptions::default() });
        let activation = profile.stages().iter().map(|stage| stage.activation_bytes).fold(0.0, f64::max);
        let options = OverlapOptions { simulate: TRAVEL, extra_bytes: 2.0 * activation, ..OverlapOptions::default() };
        let moved = run_passes(&off, &profile, &Pass::USUAL, &options).unwrap();
        for report in &moved.reports {
            let (before, after) = report.exposed();
            let ms = [before, after, report.makespan_before, report.makespan_after].map(|seconds| seconds * 1e3);
            let [before, after, from, to] = ms;
            let (pass, moves) = (report.pass, report.moves());
            println!(
                "{name}, {pass}: {before:.1} -> {after:.1} ms exposed by estimate, {from:.1} -> {to:.1} ms a pass, {moves} moves"
            );
        }
        [
            self.contestant(format!("{name}, passes off"), &off, &cut),
            self.contestant(format!("{name}, passes on"), &moved.plan, &cut),
            self.contestant(format!("{name}, awaited where used"), &lowered, &cut),
        ]
    }

    /// The planner's choice for these layers and links.
    fn planned(&self) -> Contestant {
        let request =
            Request::new(vec![Workload::new(self.microbatches, self.layers.clone())], self.ranks, self.network.clone());
        let request = Request { chunks: vec![1, 2], alone: false, simulate: TRAVEL, ..request };
        let began = Instant::now();
        let planned = best_plan(&request).unwrap();
        println!("\nplanned in {:.2} s\n{planned}\n", began.elapsed().as_secs_f64());
        let best = &planned.best;
        let choice = &best.candidate.choice;
        let name = format!("planned: {}, {}", choice.way, choice.passes);
        self.contestant(name, best.plan.plan(), &choice.partition)
    }

    /// A pipeline that has chosen its schedule by its own measurements.
    fn chosen_at_run_time(&self) -> Contestant {
        let size = Size { ranks: self.ranks, chunks: 2, microbatches: self.microbatches };
        let cut = Partition::even(BLOCKS, 2 * self.ranks).unwrap();
        let builder = builder(cut.clone()).delayed(self.network.clone());
        let options = AutoOptions { warm_up: 2, measured: 4, ..AutoOptions::default() };
        let mut pipeline = AutoPipeline::new(builder, size, options).unwrap();
        for _ in 0..options.warm_up + options.measured {
            pipeline.step(batch(self.microbatches), RATE).unwrap();
        }
        let (ran, predicted) = match pipeline.decision() {
            Decision::Switched { planned, .. } => {
                (planned.best.candidate.choice.way.to_string(), planned.best.candidate.seconds)
            }
            Decision::Kept { running, seconds, .. } => (running.clone(), *seconds),
            other => panic!("{other}"),
        };
        let name = format!("AutoPipeline: {ran}");
        Contestant { name, cut: cut.to_string(), predicted, pipeline, passes: Vec::new(), steps: Vec::new() }
    }
}

fn main() {
    let rounds = argument("--rounds", 9.0) as usize;
    let (ranks, microbatches) = (argument("--ranks", 2.0) as usize, argument("--microbatches", 8.0) as usize);
    let (latency, bandwidth) = (argument("--latency", 10.0) * 1e-3, argument("--bandwidth", 10.0) * 1e6);
    let network = Links { default: Link { latency, bandwidth: Some(bandwidth) }, between: Vec::new() };
    let layers = Layers::of_profile(&measured(ranks, microbatches)).unwrap();
    let setting = Setting { ranks, microbatches, network, layers };
    let even = Partition::even(BLOCKS, ranks).unwrap();
    let mut all = vec![setting.contestant("1F1B".to_owned(), &setting.family("1F1B", 1), &even)];
    all.extend(setting.with_and_without_passes("1F1B", 1));
    all.extend(setting.with_and_without_passes("ZBVZeroBubble", 2));
    all.push(setting.planned());
    all.push(setting.chosen_at_run_time());
    for round in 0..rounds + WARM_UP {
        for contestant in &mut all {
            let began = Instant::now();
            let report = contestant.pipeline.step(batch(microbatches), RATE).unwrap();
            if round >= WARM_UP {
                contestant.steps.push(began.elapsed().as_secs_f64());
                contestant.passes.push(report.timeline.end());
            }
        }
    }
    print(&setting, &all, [latency * 1e3, bandwidth / 1e6]);
}

fn print(setting: &Setting, all: &[Contestant], [latency, bandwidth]: [f64; 2]) {
    let Setting { ranks, microbatches, .. } = setting;
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    println!(
        "{ranks} ranks of one thread on {cores} core(s), {microbatches} microbatches of one sequence, {:?}",
        config()
    );
    println!("every message is delayed by {latency} ms and its bytes over {bandwidth} MB/s\n");
    println!(
        "| what | blocks by stage | predicted pass ms | measured pass ms (min..max) | measured / predicted | step ms (min..max) |"
    );
    println!("|---|---|---|---|---|---|");
    let pass = |contestant: &Contestant| Spread::of(&contestant.passes);
    for contestant in all {
        let (Contestant { name, cut, predicted, .. }, measured) = (contestant, pass(contestant));
        let (predicted, ratio) = (predicted * 1e3, measured.median / predicted);
        println!("| {name} | {cut} | {predicted:.0} | {measured} | {ratio:.3} | {} |", Spread::of(&contestant.steps));
    }
    println!("\n| gain | predicted | measured |\n|---|---|---|");
    let found = |name: &str| all.iter().find(|contestant| contestant.name.starts_with(name)).unwrap();
    let gains = [
        ("1F1B, passes off", "1F1B, passes on"),
        ("ZBVZeroBubble, passes off", "ZBVZeroBubble, passes on"),
        ("1F1B", "planned"),
        ("1F1B, awaited", "planned"),
        ("ZBVZeroBubble, awaited", "planned"),
        ("1F1B", "AutoPipeline"),
    ];
    for (from, to) in gains.map(|(from, to)| (found(from), found(to))) {
        let predicted = 100.0 * (1.0 - to.predicted / from.predicted);
        let measured = 100.0 * (1.0 - pass(to).median / pass(from).median);
        println!("| {} instead of {} ({}) | {predicted:.1} % | {measured:.1} % |", to.name, from.name, from.cut);
    }
}
