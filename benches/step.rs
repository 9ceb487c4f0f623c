//! Whole training steps: every schedule on two ranks of one thread each, compared with the plain loop on one
//! thread.
//!
//! `cargo bench -p benches --bench step [-- [--rounds N] [--schedules A,B] [--merge] [--compile [--matmuls NAME]]]`
//!
//! `--merge` runs schedules that split their backward a second time with `Tuning::merge_weights`. `--compile` runs
//! all a second time with `Builder::compile`, and adds 1F1B on one rank and the matmuls of a step alone, the roofline
//! of one rank. `--matmuls` (`bf16`, `bf16x3`, `bf16x6`) runs compiled ones once more with these `Builder::matmuls`.
//!
//! 1. Every contestant is built first: same model, same batch, same optimizer.
//! 2. Each round runs all contestants in turn, so that other load on the machine affects all alike.
//! 3. A step is timed from call to return, when every rank has finished and synchronised. The first rounds warm up
//!    and are not counted.
//! 4. Each pipeline's measured action times form a profile. The simulator's makespan for it is printed beside the
//!    measured pass (a step without the optimizer).

#![allow(missing_docs, clippy::print_stdout, clippy::unwrap_used, reason = "a benchmark prints and may stop")]

use benches::flags::Flags;
use benches::gpt_step::{self, BATCH, MICROBATCHES, Options, RATE, config};
use benches::plain::PlainLoop;
use benches::roofline::Roofline;
use benches::spread::Spread;
use burn_pipeline::Matmuls;
use burn_pipeline::plan::Op;
use burn_pipeline::schedule::{OneFOneB, Schedule, Size, all};
use burn_pipeline::simulate::{SimulateOptions, simulate};
use burn_pipeline::train::{Pipeline, StepReport};
use std::time::Instant;

const RANKS: usize = 2;
struct Contestant {
    name: String,
    pipeline: Pipeline,
    steps: Vec<f64>,
    reports: Vec<StepReport>,
    size: Size,
}

fn contestant(schedule: Box<dyn Schedule>, ranks: usize, options: Options) -> Option<Contestant> {
    let name = schedule.info().name;
    let size = gpt_step::size(&*schedule, ranks);
    let pipeline = gpt_step::pipeline(schedule, size, options)?;
    let alone = if ranks == 1 { " on 1 rank" } else { "" };
    let merged = if options.merge { ", merged W" } else { "" };
    let compiled = match (options.matmuls, options.compile) {
        (Matmuls::F32, true) => ", compiled".to_owned(),
        (Matmuls::F32, false) => String::new(),
        (matmuls, _) => format!(", compiled, {matmuls:?}"),
    };
    let name = format!("{name}{alone}{merged}{compiled}");
    Some(Contestant { name, pipeline, steps: Vec::new(), reports: Vec::new(), size })
}

fn main() {
    let flags = Flags::read(&[
        ("--rounds N", "rounds; 9 if absent"),
        ("--schedules A,B", "schedules by name; all if absent"),
        ("--merge", "schedules that split backwards run with merged `W`s too"),
        ("--compile", "all run compiled too"),
        ("--matmuls NAME", "with --compile: such matmuls too (bf16, bf16x3, bf16x6)"),
    ]);
    let rounds = flags.number("--rounds", 9);
    let wanted = flags.text("--schedules").map(str::to_lowercase);
    let chosen = |name: &str| wanted.as_ref().is_none_or(|w| w.split(',').any(|w| w == name.to_lowercase()));
    let schedules = || {
        let trains = |name| name != "ForwardOnly" && chosen(name);
        all().into_iter().filter(move |schedule| trains(schedule.info().name))
    };
    let plain_options = Options::default();
    let mut contestants: Vec<Contestant> =
        schedules().filter_map(|schedule| contestant(schedule, RANKS, plain_options)).collect();
    let compile = flags.has("--compile");
    if compile {
        let options = Options { compile: true, ..plain_options };
        contestants.extend(contestant(Box::new(OneFOneB), 1, plain_options));
        contestants.extend(contestant(Box::new(OneFOneB), 1, options));
        contestants.extend(schedules().filter_map(|schedule| contestant(schedule, RANKS, options)));
        if let Some(name) = flags.text("--matmuls") {
            let options = Options { matmuls: gpt_step::matmuls(name).unwrap(), ..options };
            contestants.extend(contestant(Box::new(OneFOneB), 1, options));
            contestants.extend(schedules().filter_map(|schedule| contestant(schedule, RANKS, options)));
        }
    }
    if flags.has("--merge") {
        let splits = |c: &mut Contestant| {
            let plan = c.pipeline.plan(MICROBATCHES).unwrap();
            (0..RANKS).any(|rank| plan.plan().tasks(rank).any(|task| task.op() == Op::BackwardWeight))
        };
        let merged = schedules()
            .filter_map(|schedule| contestant(schedule, RANKS, Options { merge: true, ..plain_options }))
            .filter_map(|mut c| splits(&mut c).then_some(c));
        contestants.extend(merged.collect::<Vec<_>>());
    }
    let tokens = gpt_step::tokens();
    let mut plain = PlainLoop::new(config(), 1, MICROBATCHES);
    let mut plain_seconds = Vec::new();
    let mut roofline = compile.then(|| (Roofline::new(&config()), Vec::new()));
    for round in 0..rounds + 2 {
        let seconds = plain.step(&tokens.0, &tokens.1, RATE);
        if round >= 2 {
            plain_seconds.push(seconds);
        }
        if let Some((products, seconds)) = &mut roofline {
            let took = products.run();
            seconds.extend((round >= 2).then_some(took));
        }
        for contestant in &mut contestants {
            let batch = gpt_step::batch(&tokens);
            let began = Instant::now();
            let report = contestant.pipeline.step(batch, RATE).unwrap();
            if round >= 2 {
                contestant.steps.push(began.elapsed().as_secs_f64());
                contestant.reports.push(report);
            }
        }
    }
    print(&Spread::of(&plain_seconds), &mut contestants);
    if let Some((products, seconds)) = roofline {
        let alone = Spread::of(&seconds);
        let (giga, rate) = (products.flops() / 1e9, products.flops() / alone.median / 1e9);
        println!("\nroofline, the matmuls alone, 1 thread: {alone} ms, {giga:.0} GFLOP, {rate:.0} GFLOP/s");
        for contestant in contestants.iter().filter(|contestant| contestant.size.ranks == 1) {
            let ratio = Spread::of(&contestant.steps).median / alone.median;
            println!("{}: {ratio:.2} times the roofline", contestant.name);
        }
    }
}

fn print(plain: &Spread, contestants: &mut [Contestant]) {
    println!(
        "{RANKS} ranks x 1 thread, {MICROBATCHES} microbatches of {} sequences, {:?}",
        BATCH / MICROBATCHES,
        config()
    );
    println!("plain loop, 1 thread: {plain} ms");
    println!(
        "| schedule | chunks | step ms (min..max) | speed-up | pass ms | simulated ms | pass / simulated | \
         measured bubble | simulated bubble |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    for contestant in contestants {
        let steps = Spread::of(&contestant.steps);
        let pass = Spread::of(&contestant.reports.iter().map(|r| r.timeline.end()).collect::<Vec<_>>());
        let placement = contestant.pipeline.placement().clone();
        let profile = StepReport::profile(&placement, &contestant.reports).unwrap();
        let plan = contestant.pipeline.plan(MICROBATCHES).unwrap();
        let simulated = simulate(plan.plan(), &profile, &SimulateOptions::default()).unwrap();
        let busy: f64 = simulated.ranks.iter().map(|rank| rank.busy).sum();
        let ranks = contestant.size.ranks as f64;
        println!(
            "| {} | {} | {steps} | {:.2} | {:.0} | {:.0} | {:.3} | {:.3} | {:.3} |",
            contestant.name,
            contestant.size.chunks,
            plain.median / steps.median,
            pass.median * 1e3,
            simulated.makespan * 1e3,
            pass.median / simulated.makespan,
            1.0 - busy / (pass.median * ranks),
            1.0 - busy / (simulated.makespan * ranks),
        );
    }
}
