//! A slow network: communication passes on and off, and the planner's choice compared with 1F1B and ZBV, predicted
//! and measured.
//!
//! `cargo bench -p benches --bench delay [-- --rounds N --ranks N --latency MS --bandwidth MB_PER_S --microbatches
//! N --sleep MS]`
//!
//! 1. The model's last layer is the heaviest. Each block is measured as its own stage on these ranks, without
//!    delay; the measured profile gives the model's layers.
//! 2. Messages between ranks are delayed ([`Delayed`](burn_pipeline::link::Delayed)); the simulator gets the same
//!    links.
//! 3. *Passes off*: every receive waits where it is posted, as blocking receives do. *Passes on*: the same plan
//!    after [`OverlapPass::USUAL`], with memory for two more activations of the largest stage per rank. *Awaited
//!    where used*: what pipelines do without passes.
//! 4. *Planned*: the result of [`best_plan`] for these layers and links, including its cut. *`AutoPipeline`*:
//!    starts with one stage per rank and an even cut, measures steps, layers and links itself, and tries what it
//!    plans.
//! 5. All contestants alternate, round by round. A pass is a step without the optimizer, which is what the
//!    simulator predicts.
//! 6. *By its own costs*: the simulator's prediction from this contestant's own measured actions. It differs from
//!    the prediction if costs depend on what runs concurrently, and from the measurement if the simulator misses
//!    something.
//!
//! Ranks are threads with one compute thread each. With fewer cores than ranks they share cores, and computation
//! takes longer than the profile says. With `--sleep`, blocks sleep instead (the last one four times as long), so
//! there may be more ranks than cores: this measures the schedule, messages and runtime, but no computation.

#![allow(missing_docs, clippy::print_stdout, clippy::unwrap_used, reason = "a benchmark prints and may stop")]

use benches::flags::Flags;
use benches::spread::Spread;
use benches::{heavy_head, sleeping};
use burn_pipeline::cost::{Layers, LinkCost, LinkCosts, Partition, PartitionOptions, Profile};
use burn_pipeline::pass::overlap::{OverlapOptions, OverlapPass};
use burn_pipeline::pass::{Placing, WaitOptions};
use burn_pipeline::plan::{Plan, Transport};
use burn_pipeline::planner::{Request, Workload, best_plan};
use burn_pipeline::schedule::{Size, by_name};
use burn_pipeline::simulate::{SimulateOptions, simulate};
use burn_pipeline::stage::Batch;
use burn_pipeline::train::{AutoOptions, AutoPipeline, Builder, Decision, StepReport};
use std::time::Instant;

const RATE: f64 = 1e-4;
/// The rounds that are not counted.
const WARM_UP: usize = 2;
/// The transport of threads.
const TRAVEL: SimulateOptions = SimulateOptions { transport: Transport::Unbounded, overlap: true };

struct Contestant {
    name: String,
    cut: String,
    predicted: f64,
    pipeline: AutoPipeline,
    reports: Vec<StepReport>,
    steps: Vec<f64>,
}

impl Contestant {
    fn new(name: String, cut: &Partition, predicted: f64, pipeline: AutoPipeline) -> Self {
        Self { name, cut: cut.to_string(), predicted, pipeline, reports: Vec::new(), steps: Vec::new() }
    }

    /// The measured passes.
    fn passes(&self) -> Spread {
        Spread::of(&self.reports.iter().map(|report| report.timeline.end()).collect::<Vec<_>>())
    }

    /// The simulator's prediction from the measurements of these passes.
    fn by_its_own_costs(&mut self, network: &LinkCosts) -> f64 {
        let plan = self.pipeline.current_plan().unwrap();
        let own = StepReport::profile(plan.plan().placement(), &self.reports).unwrap();
        simulate(plan.plan(), &own.with_links(network.clone()).unwrap(), &TRAVEL).unwrap().makespan
    }
}

const BLOCKS: usize = heavy_head::BLOCKS;

/// The model to train.
#[derive(Clone, Copy)]
enum Model {
    Gpt,
    /// Blocks that sleep, with the seconds of a forward.
    Sleeping(f64),
}

impl Model {
    fn builder(self, cut: Partition) -> Builder {
        match self {
            Model::Gpt => heavy_head::builder(cut),
            Model::Sleeping(forward) => sleeping::builder(cut, forward),
        }
    }

    fn batch(self, microbatches: usize) -> Batch {
        match self {
            Model::Gpt => heavy_head::batch(microbatches),
            Model::Sleeping(_) => sleeping::batch(microbatches),
        }
    }

    /// The costs of every block, measured with one block per stage while all ranks work.
    fn measured(self, ranks: usize, microbatches: usize) -> Profile {
        let size = Size { ranks, chunks: BLOCKS / ranks, microbatches };
        let fine = self.builder(Partition::even(BLOCKS, BLOCKS).unwrap());
        let mut fine = fine.schedule("InterleavedZeroBubble", size).build().unwrap();
        let reports: Vec<StepReport> = (0..6).map(|_| fine.step(self.batch(microbatches), RATE).unwrap()).collect();
        StepReport::profile(fine.placement(), &reports[2..]).unwrap()
    }
}

/// What all contestants are measured and planned for.
struct Setting {
    model: Model,
    ranks: usize,
    microbatches: usize,
    network: LinkCosts,
    layers: Layers,
}

impl Setting {
    /// A schedule's plan with its transfers.
    fn schedule(&self, name: &str, chunks: usize) -> Plan {
        let size = Size { ranks: self.ranks, chunks, microbatches: self.microbatches };
        by_name(name).unwrap().build(size).unwrap().with_transfers().unwrap()
    }

    fn best_cut(&self, plan: &Plan) -> Partition {
        Partition::optimal(&self.layers, plan.placement(), &PartitionOptions::default()).unwrap().partition
    }

    /// The costs of a cut's stages over the delayed links.
    fn profile(&self, cut: &Partition) -> Profile {
        cut.profile(&self.layers, self.network.clone()).unwrap()
    }

    fn contestant(&self, name: String, plan: &Plan, cut: &Partition) -> Contestant {
        let predicted = simulate(plan, &self.profile(cut), &TRAVEL).unwrap().makespan;
        let builder = self.model.builder(cut.clone()).delayed(self.network.clone()).plan(plan.clone());
        let pipeline = AutoPipeline::fixed(builder.build().unwrap());
        Contestant::new(name, cut, predicted, pipeline)
    }

    /// A schedule's plan as lowered, with blocking receives, and after the passes.
    fn with_and_without_passes(&self, name: &str, chunks: usize) -> [Contestant; 3] {
        let lowered = self.schedule(name, chunks);
        let cut = self.best_cut(&lowered);
        let profile = self.profile(&cut);
        let off = lowered.with_waits(&WaitOptions { receives: Placing::AtOnce, ..WaitOptions::default() });
        let activation = profile.stages().iter().map(|stage| stage.activation_bytes).fold(0.0, f64::max);
        let options = OverlapOptions { simulate: TRAVEL, extra_bytes: 2.0 * activation, ..OverlapOptions::default() };
        let moved = off.run_passes(&profile, &OverlapPass::USUAL, &options).unwrap();
        for report in &moved.reports {
            let (before, after) = report.exposed();
            let ms = [before, after, report.makespan_before, report.makespan_after].map(|seconds| seconds * 1e3);
            let [before, after, from, to] = ms;
            let (pass, moves) = (report.pass, report.moves());
            println!(
                "{name}, {pass}: {before:.1} -> {after:.1} ms exposed by estimate, \
                 {from:.1} -> {to:.1} ms per pass, {moves} moves"
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
        let request = Request { chunks: vec![1, 2], unpipelined: false, simulate: TRAVEL, ..request };
        let began = Instant::now();
        let planned = best_plan(&request).unwrap();
        println!("\nplanned in {:.2} s\n{planned}\n", began.elapsed().as_secs_f64());
        let best = &planned.best;
        let name = format!("planned: {}, {}", best.strategy, best.passes);
        self.contestant(name, planned.plan.plan(), &best.partition)
    }

    /// A pipeline that has chosen its schedule by its own measurements.
    fn chosen_at_run_time(&self) -> Contestant {
        let size = Size { ranks: self.ranks, chunks: 1, microbatches: self.microbatches };
        let builder = self.model.builder(Partition::even(BLOCKS, self.ranks).unwrap());
        let options = AutoOptions { layers: Some(BLOCKS), ..AutoOptions::default() };
        let mut pipeline = AutoPipeline::new(builder.delayed(self.network.clone()), size, options).unwrap();
        while matches!(pipeline.decision(), Decision::Measuring | Decision::Trying(_)) {
            pipeline.step(self.model.batch(self.microbatches), RATE).unwrap();
        }
        println!("AutoPipeline: {}\n", pipeline.decision());
        let (Decision::Switched(choice) | Decision::Kept(choice)) = pipeline.decision() else {
            panic!("{}", pipeline.decision())
        };
        let (name, predicted) = (format!("AutoPipeline: {}", choice.running), choice.running_seconds);
        Contestant { name, cut: String::new(), predicted, pipeline, reports: Vec::new(), steps: Vec::new() }
    }
}

fn main() {
    let flags = Flags::read(&[
        ("--rounds N", "rounds; 9 if absent"),
        ("--ranks N", "ranks; 2 if absent"),
        ("--microbatches N", "microbatches; 8 if absent"),
        ("--latency MS", "milliseconds by which every message is late; 10 if absent"),
        ("--bandwidth MB_PER_S", "megabytes a second; 10 if absent"),
        ("--sleep MS", "milliseconds that a block sleeps; if absent, blocks compute"),
    ]);
    let rounds: usize = flags.number("--rounds", 9);
    let (ranks, microbatches) = (flags.number("--ranks", 2_usize), flags.number("--microbatches", 8_usize));
    let (latency, bandwidth) = (flags.number("--latency", 10.0) * 1e-3, flags.number("--bandwidth", 10.0) * 1e6);
    let network = LinkCosts { default: LinkCost { latency, bandwidth: Some(bandwidth) }, between: Vec::new() };
    let sleep = flags.number("--sleep", 0.0) * 1e-3;
    let model = if sleep > 0.0 { Model::Sleeping(sleep) } else { Model::Gpt };
    let layers = Layers::of_profile(&model.measured(ranks, microbatches)).unwrap();
    let setting = Setting { model, ranks, microbatches, network, layers };
    let even = Partition::even(BLOCKS, ranks).unwrap();
    let mut all = vec![setting.contestant("1F1B".to_owned(), &setting.schedule("1F1B", 1), &even)];
    all.extend(setting.with_and_without_passes("1F1B", 1));
    all.extend(setting.with_and_without_passes("ZBVZeroBubble", 2));
    all.push(setting.planned());
    all.push(setting.chosen_at_run_time());
    for round in 0..rounds + WARM_UP {
        for contestant in &mut all {
            let began = Instant::now();
            let report = contestant.pipeline.step(model.batch(microbatches), RATE).unwrap();
            if round >= WARM_UP {
                contestant.steps.push(began.elapsed().as_secs_f64());
                contestant.reports.push(report);
            }
        }
    }
    print(&setting, &mut all, [latency * 1e3, bandwidth / 1e6]);
}

fn print(setting: &Setting, all: &mut [Contestant], [latency, bandwidth]: [f64; 2]) {
    let Setting { ranks, microbatches, .. } = setting;
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let what = match setting.model {
        Model::Gpt => format!("one sequence, {:?}", heavy_head::config()),
        Model::Sleeping(forward) => format!("blocks that sleep, {} ms a forward", forward * 1e3),
    };
    println!("{ranks} ranks of one thread on {cores} core(s), {microbatches} microbatches of {what}");
    println!("every message is delayed by {latency} ms and its bytes over {bandwidth} MB/s\n");
    println!(
        "| what | blocks by stage | predicted pass ms | measured pass ms (min..max) | measured / predicted | \
         by its own costs | step ms (min..max) |"
    );
    println!("|---|---|---|---|---|---|---|");
    for contestant in all.iter_mut() {
        let (own, measured) = (contestant.by_its_own_costs(&setting.network) * 1e3, contestant.passes());
        let Contestant { name, cut, predicted, steps, .. } = contestant;
        let (ratio, predicted, steps) = (measured.median / *predicted, *predicted * 1e3, Spread::of(steps));
        println!("| {name} | {cut} | {predicted:.0} | {measured} | {ratio:.3} | {own:.0} | {steps} |");
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
        let measured = 100.0 * (1.0 - to.passes().median / from.passes().median);
        println!("| {} instead of {} ({}) | {predicted:.1} % | {measured:.1} % |", to.name, from.name, from.cut);
    }
}
