//! A run's options and calls, and the plain loop that it must match.

use crate::model::{BLOCKS, First, Later, Plain, data, other_scale, shift, stage, vocabulary};
use burn::lr_scheduler::module_lr_scheduler::{ModuleLearningRate, ModuleLrScheduler};
use burn::module::ParamGroup;
use burn::optim::{AdamWConfig, ModuleOptimizer, SgdConfig};
use burn::tensor::{Device, Int, Tensor};
use burn_pipeline::execute::Tuning;
use burn_pipeline::link::{Link, TcpLink, Threads};
use burn_pipeline::payload::Validate;
use burn_pipeline::stage::{Accumulation, Names, Precision, Reduction, SplitBackward, named_weights};
use burn_pipeline::train::{AutoOptions, Checkpoint, Checkpoints, GradientError, SharedParameter};
use burn_pipeline::{AutoPipeline, Batch, Builder, Pipeline, Size, StageContext, StepReport};
use pipeline_tests::reference::Reference;
use std::collections::BTreeMap;
use std::time::Duration;

const RATE: f64 = 0.2;
const CLIP: f64 = 0.1;
const SAMPLES: usize = 8;
const MICROBATCHES: usize = 4;
const STEPS: usize = 3;

/// Everything that a feature changes.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Run {
    pub(crate) schedule: (&'static str, usize),
    pub(crate) replicas: usize,
    pub(crate) sharded: bool,
    pub(crate) members: usize,
    pub(crate) vocabulary: bool,
    pub(crate) tied: bool,
    pub(crate) skip: bool,
    pub(crate) recompute: bool,
    pub(crate) frozen: bool,
    pub(crate) split: SplitBackward,
    pub(crate) compile: bool,
    pub(crate) ordered: bool,
    pub(crate) merge: bool,
    pub(crate) record_every: usize,
    pub(crate) seed: bool,
    pub(crate) validate: bool,
    pub(crate) input_gradients: bool,
    pub(crate) clip: bool,
    pub(crate) adam: bool,
    pub(crate) rates: bool,
    pub(crate) weighted: bool,
    pub(crate) accumulate: bool,
    pub(crate) evaluate: bool,
    pub(crate) resume: bool,
    pub(crate) replace: bool,
    pub(crate) step_to: bool,
    pub(crate) take: bool,
    pub(crate) measure: bool,
    pub(crate) auto: bool,
    pub(crate) processes: bool,
    /// bf16 copies of all but norms.
    pub(crate) half: bool,
}

impl Default for Run {
    fn default() -> Self {
        Self {
            schedule: ("1F1B", 1),
            replicas: 1,
            sharded: false,
            members: 1,
            vocabulary: false,
            tied: false,
            skip: false,
            recompute: false,
            frozen: false,
            split: SplitBackward::Auto,
            compile: false,
            ordered: false,
            merge: false,
            record_every: 1,
            seed: false,
            validate: false,
            input_gradients: false,
            clip: false,
            adam: false,
            rates: false,
            weighted: false,
            accumulate: false,
            evaluate: false,
            resume: false,
            replace: false,
            step_to: false,
            take: false,
            measure: false,
            auto: false,
            processes: false,
            half: false,
        }
    }
}

/// The losses of all steps, and the weights after them by name, with the steps' gradients of the batch if there are
/// any.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Trained {
    losses: Vec<f64>,
    weights: BTreeMap<String, Vec<f32>>,
}

impl Trained {
    /// The difference between the last and the first step's loss.
    pub(crate) fn moved(&self) -> f64 {
        (self.losses[0] - self.losses[self.losses.len() - 1]).abs()
    }

    /// The largest difference of losses and weights.
    pub(crate) fn distance(&self, other: &Self) -> f64 {
        assert_eq!(self.weights.keys().collect::<Vec<_>>(), other.weights.keys().collect::<Vec<_>>());
        let losses = self.losses.iter().zip(&other.losses).map(|(a, b)| (a - b).abs());
        let pairs = self.weights.values().flatten().zip(other.weights.values().flatten());
        losses
            .chain(pairs.map(|(a, b)| f64::from((a - b).abs())))
            .fold(0.0, |a, b| if b > a || b.is_nan() { b } else { a })
    }
}

type Failure = Box<dyn std::error::Error + Send + Sync>;

impl Run {
    /// The number of pipeline ranks: two, or enough to put a stage between the ends of a skip.
    fn ranks(&self) -> usize {
        if self.skip && self.schedule.1 == 1 { 4 } else { 2 }
    }

    /// The number of the model's stages.
    pub(crate) fn stages(&self) -> usize {
        self.ranks() * self.schedule.1
    }

    fn size(&self) -> Size {
        Size { ranks: self.ranks(), chunks: self.schedule.1, microbatches: MICROBATCHES / self.replicas }
    }

    fn optimizer(&self) -> ModuleOptimizer {
        if self.adam { AdamWConfig::new().init() } else { SgdConfig::new().init() }
    }

    fn rate(&self) -> ModuleLearningRate {
        let blocks = ParamGroup::from_predicate("blocks.2.");
        // Large steps make much of a unit in the last place: of bf16, and of what AdamW divides by a small number.
        let rate = [self.half, self.adam].iter().fold(RATE, |rate, &noisy| if noisy { rate / 8.0 } else { rate });
        let rates = ModuleLrScheduler::new(rate);
        if self.rates { rates.with_group(blocks, rate / 4.0) } else { rates }.step()
    }

    fn builder(&self) -> Builder {
        let run = self.clone();
        let (run_of_stage, run_of_optimizer) = (self.clone(), self.clone());
        let mut builder = Pipeline::builder()
            .schedule(self.schedule.0, self.size())
            .devices(vec![Device::flex()])
            .stages(move |at| stage(&run_of_stage, at))
            .optimizer(move || run_of_optimizer.optimizer())
            .data_parallel(self.replicas)
            .input_gradients(self.input_gradients)
            .sharded(self.sharded)
            .split(self.split)
            .compile(self.compile)
            .tuning(Tuning { merge_weights: self.merge, record_every: self.record_every, ..Tuning::default() })
            .timeout(Duration::from_secs(60));
        if run.members > 1 {
            builder = builder.tensor_parallel(run.members);
        }
        if run.vocabulary {
            builder = builder.vocabulary(vocabulary(&run));
        } else if run.tied {
            builder = builder.share(SharedParameter::new("token.weight").at("part.token.weight").at("part.tied"));
        }
        if run.skip {
            builder = builder.skip(0, run.stages() - 1);
        }
        if run.ordered {
            builder = builder.accumulation(Accumulation::Ordered);
        }
        if run.seed {
            builder = builder.seed(7);
        }
        if run.validate {
            builder = builder.validate(Validate::EveryMicrobatch);
        }
        if run.clip {
            builder = builder.clip_norm(CLIP);
        }
        if run.half {
            builder = builder.precision(Precision::bf16().keep(ParamGroup::from_predicate("norm")));
        }
        if run.weighted {
            builder = builder.reduction(Reduction::Weighted);
        }
        builder
    }

    fn build(&self, link: Option<Box<dyn Link>>) -> Result<AutoPipeline, Failure> {
        let builder = self.builder();
        if !self.auto {
            let pipeline = match link {
                Some(link) => builder.build_rank(link)?,
                None => builder.build()?,
            };
            return Ok(AutoPipeline::fixed(pipeline));
        }
        let short = AutoOptions { warm_up: 0, measured: 1, gain: -1.0, trial: 0, ..AutoOptions::default() };
        Ok(match link {
            Some(link) => AutoPipeline::new_rank(builder, self.size(), short, link)?,
            None => AutoPipeline::new(builder, self.size(), short)?,
        })
    }

    /// The pipeline's results, or its refusal.
    pub(crate) fn trained(&self, folder: &std::path::Path) -> Result<Trained, String> {
        let ranks = self.ranks() * self.replicas * self.members;
        if !self.processes {
            return self.train(None, folder).map_err(|error| error.to_string());
        }
        let threads = Threads::new(ranks);
        let rank = |rank: usize| {
            let mut link = threads.link(rank, Device::flex());
            let tcp = TcpLink::by_link(&mut link, Device::flex(), Duration::from_secs(60));
            let tcp = tcp.map_err(|error| error.to_string())?;
            self.train(Some(Box::new(tcp)), folder).map_err(|error| error.to_string())
        };
        let rank = &rank;
        let outcomes: Vec<Result<Trained, String>> = std::thread::scope(|scope| {
            let ranks: Vec<_> = (0..ranks).map(|number| scope.spawn(move || rank(number))).collect();
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
        });
        for outcome in &outcomes {
            match (outcome, &outcomes[0]) {
                (Ok(own), Ok(first)) => assert_eq!(own, first, "processes differ"),
                (Err(_), Err(_)) => {}
                (own, first) => panic!("one process trains and another gets an error: {own:?} and {first:?}"),
            }
        }
        outcomes.into_iter().next().unwrap()
    }

    fn train(&self, link: Option<Box<dyn Link>>, folder: &std::path::Path) -> Result<Trained, Failure> {
        if self.measure {
            let layers = self.builder().measure_layers(batch(0), &['L'; BLOCKS], 0)?.layers;
            assert!(layers.all().iter().all(|layer| layer.parameters > 0));
        }
        let mut auto = self.build(link)?;
        let (mut losses, mut weights) = (Vec::new(), BTreeMap::new());
        for step in 0..STEPS {
            if self.evaluate {
                losses.push(auto.pipeline().eval(batch(step))?.loss.ok_or("no loss")?);
            }
            if self.take {
                auto.pipeline().accumulate(batch(step + 7))?;
                auto.pipeline().take_gradients()?;
            }
            if self.accumulate {
                auto.pipeline().accumulate(batch(step + 100))?;
            }
            let report = auto.step(batch(step), self.rate())?;
            losses.push(report.loss);
            if self.input_gradients {
                let all = auto.pipeline().exchange(of_shift(&report)?)?;
                weights.insert(gradient_of(step), all.into_iter().flatten().next().ok_or("no gradient of the batch")?);
            }
            if step == 0 {
                self.between(auto.pipeline(), folder)?;
            }
        }
        let named = auto.pipeline().named_weights()?.into_iter().flatten();
        let values = |value: &burn_pipeline::payload::AnyTensor| value.to_data().unwrap().iter::<f32>().collect();
        for weight in named {
            let name = if weight.names[0] == "tied" { "token.weight" } else { &weight.names[0] };
            let value: Vec<f32> = values(&weight.value);
            let copy = weights.insert(name.to_owned(), value.clone());
            assert!(copy.is_none_or(|copy| copy == value), "copies of {name} differ");
        }
        Ok(Trained { losses, weights })
    }

    /// Makes the calls that follow the first step.
    fn between(&self, pipeline: &mut Pipeline, folder: &std::path::Path) -> Result<(), Failure> {
        if self.resume {
            let saved = pipeline.save(&Checkpoints::new(folder), &())?;
            pipeline.step(batch(55), RATE)?;
            pipeline.load(&Checkpoint::open(saved)?)?;
        }
        if self.step_to {
            let all = pipeline.named_weights()?.into_iter().flatten();
            let values = all.map(|weight| (weight.id, weight.value)).collect();
            pipeline.step_to(values, Vec::new())?;
        }
        if self.replace {
            match self.vocabulary {
                false => pipeline.replace_module(0, |mut first: First, at: &StageContext| {
                    first.part.blocks[0].norm.gamma = other_scale(&at.device);
                    first
                })?,
                true => pipeline.replace_module(0, |mut later: Later, at: &StageContext| {
                    later.part.blocks[0].norm.gamma = other_scale(&at.device);
                    later
                })?,
            }
        }
        Ok(())
    }

    /// The results of the plain loop on one device.
    pub(crate) fn plain(&self) -> Trained {
        let mut reference = Reference::resumed(Plain::new(self), self.optimizer());
        let (mut losses, mut gradients) = (Vec::new(), BTreeMap::new());
        let rows = |(tokens, targets): &(Tensor<2, Int>, Tensor<2, Int>), i: usize| {
            let piece = |of: &Tensor<2, Int>| of.clone().narrow(0, 2 * (i % MICROBATCHES), 2).autodiff();
            (piece(tokens), piece(targets))
        };
        for step in 0..STEPS {
            let last = data(step, SAMPLES);
            let zeros = || shift(2, &Device::flex().autodiff());
            let loss =
                |model: &Plain, data: &(Tensor<2, Int>, Tensor<2, Int>), i| model.loss(self, rows(data, i), &zeros());
            if self.evaluate {
                let all = (0..MICROBATCHES).map(|i| loss(&reference.model, &last, i).into_scalar::<f32>());
                losses.push(all.map(f64::from).sum::<f64>() / MICROBATCHES as f64);
            }
            let earlier = self.accumulate.then(|| data(step + 100, SAMPLES));
            let sizes = vec![2; if self.accumulate { 2 * MICROBATCHES } else { MICROBATCHES }];
            if self.input_gradients {
                let of = |i| {
                    let shift = zeros().require_grad();
                    let loss = reference.model.loss(self, rows(&last, i), &shift);
                    shift.grad(&loss.backward()).unwrap().div_scalar(sizes.len() as f64)
                };
                let whole = Tensor::cat((0..MICROBATCHES).map(of).collect(), 0);
                gradients.insert(gradient_of(step), whole.into_data().iter::<f32>().collect());
            }
            let given = reference.step(&sizes, self.rate(), self.clip.then_some(CLIP), |model, i| match &earlier {
                Some(earlier) if i < MICROBATCHES => loss(model, earlier, i),
                _ => loss(model, &last, i),
            });
            losses.push(given.loss);
            if step == 0 && self.replace {
                reference.model.blocks[0].norm.gamma = other_scale(&Device::flex().autodiff());
            }
        }
        let named = named_weights(&reference.model, &Names::default()).into_iter();
        let weights = named
            .map(|weight| (weight.names[0].clone(), weight.value.to_data().unwrap().iter::<f32>().collect()))
            .chain(gradients)
            .collect();
        Trained { losses, weights }
    }
}

fn batch(number: usize) -> Batch {
    let (tokens, targets) = data(number, SAMPLES);
    Batch::new(tokens).target(targets).extra("shift", shift(SAMPLES, &Device::flex()))
}

fn gradient_of(step: usize) -> String {
    format!("the gradient of step {step}'s batch")
}

/// The gradient of the shift, if this process gets it.
fn of_shift(report: &StepReport) -> Result<Option<Vec<f32>>, GradientError> {
    match report.extra_gradient::<Tensor<3>>("shift") {
        Ok(gradient) => Ok(Some(gradient.into_data().iter::<f32>().collect())),
        Err(GradientError::Elsewhere) => Ok(None),
        Err(error) => Err(error),
    }
}
