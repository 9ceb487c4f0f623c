//! The flags of `train_moe`: those of `train_gpt`, and those of experts.

use crate::moe::cut::{self, Balance, MoeCutError};
use crate::moe::gpt::{Injection, MoeGptConfig, MoeGptError};
use crate::moe::part_options::{MOST_BUCKETS, PartOptions};
use crate::options::{LinkName, Options, PrecisionName};
use crate::options_error::OptionsError;
use crate::saved::RunFlags;
use crate::setup::Setup;
use burn_pipeline_moe::auxiliary::AuxiliaryWeights;
use burn_pipeline_moe::layers::{PatternError, parse_pattern};
use burn_pipeline_moe::router::{Capacity, Scoring};
use clap::{Args, CommandFactory, FromArgMatches, Parser, ValueEnum};
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::path::PathBuf;

/// Trains a byte-level GPT with blocks of experts on Shakespeare's plays, as a pipeline of stages over ranks.
#[derive(Parser, Debug, Clone)]
#[command(name = "train_moe")]
pub struct MoeOptions {
    /// The flags that `train_gpt` has too.
    #[command(flatten)]
    pub common: Options,
    /// Experts and their losses.
    #[command(flatten)]
    pub experts: ExpertOptions,
    /// The parts beside blocks.
    #[command(flatten)]
    pub parts: PartOptions,
    /// What the stages balance.
    #[arg(long, value_enum, default_value_t = Balance::Blocks, value_name = "NAME")]
    pub balance: Balance,
    /// Trains three times, with auxiliary losses of all stages, of the last one and of none, and draws how uneven
    /// the experts' load was; with ranks as threads.
    #[arg(long, value_name = "FILE.svg", conflicts_with_all = ["save", "resume"])]
    pub curves: Option<PathBuf>,
}

/// The flags of experts and their losses.
#[derive(Args, Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ExpertOptions {
    /// Blocks, repeated to `--layers`: D dense, E experts, d and e the same as mixtures of depths, which some
    /// tokens bypass.
    #[arg(long, default_value = "DE", value_name = "LETTERS")]
    pub pattern: String,
    /// The number of experts in a block.
    #[arg(long, default_value_t = 8, value_name = "N")]
    pub experts: usize,
    /// The number of experts per token.
    #[arg(long, default_value_t = 2, value_name = "N")]
    pub top_k: usize,
    /// The number of additional experts that every token goes to.
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub shared: usize,
    /// The width inside an expert.
    #[arg(long, default_value_t = 128, value_name = "N")]
    pub d_hidden: usize,
    /// The maximum number of tokens of an expert, as a multiple of its even share; `0` drops none.
    #[arg(long, default_value_t = 0.0, value_name = "FACTOR")]
    pub capacity: f64,
    /// How routers' logits become scores.
    #[arg(long, value_enum, default_value_t = ScoringName::Softmax, value_name = "NAME")]
    pub scoring: ScoringName,
    /// How much a bias of each expert changes after each step, towards an even load (DeepSeek-V3: 0.001); no bias
    /// if 0.
    #[arg(long, default_value_t = 0.0, value_name = "RATE")]
    #[serde(default)]
    pub bias_rate: f64,
    /// The weight of the load-balancing loss.
    #[arg(long, default_value_t = 0.01, value_name = "WEIGHT")]
    pub load_balance: f64,
    /// The weight of the router z-loss.
    #[arg(long, default_value_t = 0.001, value_name = "WEIGHT")]
    pub router_z: f64,
    /// The weight of the router loss of mixtures of depths.
    #[arg(long, default_value_t = 0.01, value_name = "WEIGHT")]
    pub depth_router: f64,
    /// The stages whose auxiliary losses reach their routers.
    #[arg(long, value_enum, default_value_t = Injection::All, value_name = "STAGES")]
    pub injection: Injection,
    /// The byte that starts a document; attention does not cross documents. By default there are none.
    #[arg(long, value_name = "BYTE")]
    pub bos: Option<u8>,
}

/// A way of scoring.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
pub enum ScoringName {
    /// Experts compete.
    Softmax,
    /// Each expert alone.
    Sigmoid,
}

/// Options that were checked.
#[derive(Debug, Clone)]
pub struct MoeSetup {
    /// The plan, data, rates and device.
    pub common: Setup,
    /// The model's size.
    pub model: MoeGptConfig,
    /// The number of weights of the whole model.
    pub parameters: usize,
    /// The byte that starts a document.
    pub bos: Option<u8>,
    /// The flags that losses depend on, as saved in a checkpoint.
    pub flags: MoeRunFlags,
    /// The file for the curves of three trainings, if requested.
    pub curves: Option<PathBuf>,
}

/// The flags that losses depend on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MoeRunFlags {
    /// The flags that `train_gpt` has too.
    #[serde(flatten)]
    pub common: RunFlags,
    /// The flags of experts.
    #[serde(flatten)]
    pub experts: ExpertOptions,
    /// The flags of the other parts.
    #[serde(flatten)]
    pub parts: PartOptions,
}

/// Why the flags are invalid.
#[derive(thiserror::Error)]
#[allow(missing_docs, reason = "the messages say what the fields are")]
pub enum MoeOptionsError {
    /// An error that `train_gpt` has too.
    #[error(transparent)]
    Common(#[from] OptionsError),
    /// The pattern is invalid.
    #[error("--pattern: {0}")]
    Pattern(#[from] PatternError),
    /// The model is invalid.
    #[error(transparent)]
    Model(#[from] MoeGptError),
    /// The model cannot be cut like this.
    #[error(transparent)]
    Cut(#[from] MoeCutError),
    /// The windows are too short for this many tokens ahead.
    #[error("--ahead {ahead} predicts {} tokens after the next one, which --seq {seq} has no room for", ahead.len())]
    Ahead { ahead: String, seq: usize },
    /// Too many buckets for 32-bit hashes.
    #[error("--ngram {buckets} is more than {MOST_BUCKETS} rows")]
    Buckets { buckets: usize },
    /// Heads of an odd width have no pairs to rotate.
    #[error(
        "--rotary rotates pairs of numbers, and --d-model {d_model} with --heads {heads} makes heads of {}; choose \
         them so that heads have an even width",
        d_model / heads
    )]
    OddHeads { d_model: usize, heads: usize },
    /// Tokens cannot go to this many experts.
    #[error("--top-k {top_k} is not between 1 and --experts {experts}")]
    TopK { top_k: usize, experts: usize },
    /// The model has no casts.
    #[error("train_moe computes in f32; leave --precision out")]
    Precision,
    /// A link joins one training, and there would be three.
    #[error("--curves trains three times, with ranks as threads; leave out --link and --processes")]
    Curves,
    /// The width is zero.
    #[error("--d-hidden must be at least 1")]
    Width,
    /// The factor or weight is invalid.
    #[error("--{flag} {value} is not a finite number of at least 0")]
    Size { flag: &'static str, value: f64 },
}

burn_pipeline::debug_as_text!(MoeOptionsError);

impl AsRef<Setup> for MoeSetup {
    fn as_ref(&self) -> &Setup {
        &self.common
    }
}

impl MoeOptions {
    /// Parses arguments. Files go to `runs/train_moe` by default.
    ///
    /// # Errors
    /// Returns clap's error for invalid arguments, or for `--help`.
    pub fn from_arguments(arguments: impl Iterator<Item = OsString>) -> Result<Self, clap::Error> {
        let command = Self::command().mut_arg("trace", |trace| trace.default_value("runs/train_moe"));
        // It is for the other model's layers.
        let command = command.mut_arg("costs", |costs| costs.hide(true));
        let command = command.mut_arg("precision", |precision| precision.hide(true));
        let command =
            command.mut_arg("cut", |cut| cut.help("Stages, such as DE|DE, in place of --balance").value_name("STAGES"));
        Self::from_arg_matches(&command.try_get_matches_from(arguments)?)
    }

    /// Checks the flags and builds a [`MoeSetup`] from them.
    ///
    /// # Errors
    /// Returns a [`MoeOptionsError`] for invalid flags.
    pub fn check(self) -> Result<MoeSetup, MoeOptionsError> {
        let ExpertOptions { pattern, experts, top_k, shared, d_hidden, capacity, scoring, injection, bos, .. } =
            self.experts.clone();
        parse_pattern(&pattern)?;
        if top_k == 0 || top_k > experts {
            return Err(MoeOptionsError::TopK { top_k, experts });
        }
        if d_hidden == 0 {
            return Err(MoeOptionsError::Width);
        }
        if self.common.precision != PrecisionName::F32 {
            return Err(MoeOptionsError::Precision);
        }
        if self.curves.is_some() && (self.common.link != LinkName::Threads || self.common.processes.is_some()) {
            return Err(MoeOptionsError::Curves);
        }
        let auxiliary = self.experts.weights()?;
        let common = self.common.check()?;
        let options = &common.options;
        let model = MoeGptConfig::new().with_pattern(pattern.chars().cycle().take(options.layers).collect());
        let model = model.with_d_model(options.d_model).with_heads(options.heads).with_seq(options.seq);
        let model = model.with_experts(experts).with_top_k(top_k).with_shared(shared).with_d_hidden(d_hidden);
        let model = model.with_bias_rate(self.experts.bias_rate).with_capacity(match capacity {
            0.0 => Capacity::Dropless,
            factor => Capacity::Factor(factor),
        });
        let model = model.with_scoring(match scoring {
            ScoringName::Softmax => Scoring::Softmax,
            ScoringName::Sigmoid => Scoring::Sigmoid,
        });
        let model = model.with_auxiliary(auxiliary).with_seed(options.seed).with_injection(injection);
        let model = self.parts.model(model)?;
        let model = cut::cut(&model, self.balance, &common)?;
        let flags = MoeRunFlags { common: RunFlags::of(&common.options), experts: self.experts, parts: self.parts };
        Ok(MoeSetup { parameters: model.parameters()?, common, model, bos, flags, curves: self.curves })
    }
}

impl ExpertOptions {
    fn weights(&self) -> Result<AuxiliaryWeights, MoeOptionsError> {
        let sizes = [
            ("capacity", self.capacity),
            ("bias-rate", self.bias_rate),
            ("load-balance", self.load_balance),
            ("router-z", self.router_z),
            ("depth-router", self.depth_router),
        ];
        if let Some((flag, value)) = sizes.into_iter().find(|(_, value)| !value.is_finite() || *value < 0.0) {
            return Err(MoeOptionsError::Size { flag, value });
        }
        let (load_balance, router_z, depth_router) = (self.load_balance, self.router_z, self.depth_router);
        Ok(AuxiliaryWeights { load_balance, router_z, depth_router })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(flags: &str) -> Result<MoeOptions, clap::Error> {
        let arguments = std::iter::once("train_moe").chain(flags.split_whitespace()).map(OsString::from);
        MoeOptions::from_arguments(arguments.collect::<Vec<_>>().into_iter())
    }

    #[test]
    fn the_pattern_is_repeated_over_all_layers() {
        let setup = parse("--layers 5 --pattern DEe").unwrap().check().unwrap();
        assert_eq!(setup.model.pattern, "DEeDE");
        assert_eq!(setup.common.trace.svg, std::path::Path::new("runs/train_moe/timeline.svg"));
        assert_eq!(setup.model.capacity, Capacity::Dropless);
    }

    #[test]
    fn flags_that_no_run_can_have_are_refused_with_what_to_do() {
        for (flags, says) in [
            ("--pattern DX", "--pattern: `X` at position 1"),
            ("--experts 4 --top-k 5", "--top-k 5 is not between 1 and --experts 4"),
            ("--top-k 0", "--top-k 0"),
            ("--d-hidden 0", "--d-hidden"),
            ("--load-balance NaN", "--load-balance NaN"),
            ("--capacity inf", "--capacity inf"),
            ("--heads 3", "--heads 3 does not divide"),
            ("--ahead DX", "tokens ahead: `X` at position 1"),
            ("--ahead DD --seq 2", "--seq 2 has no room for"),
            ("--ahead-weight=-1", "--ahead-weight -1"),
            ("--ngram 9000000", "--ngram 9000000"),
            ("--balance flops --ranks 5", "--balance: "),
            ("--cut optimal", "use --balance flops"),
            ("--costs layers.json", "use --balance flops"),
            ("--cut EDE|D", "--cut has the blocks EDED, and the model is DEDE"),
            ("--cut DE|D|E", "--cut makes 3 stages, and the schedule runs 2"),
            ("--cut DE|DE --balance flops", "leave one of them out"),
            ("--bias-rate=-1", "--bias-rate -1"),
            ("--curves c.svg --link tcp", "--curves trains three times"),
            ("--curves c.svg --processes 2", "leave out --link and --processes"),
            ("--schedule auto --balance flops", "--schedule auto chooses the stages"),
        ] {
            let message = parse(flags).unwrap().check().unwrap_err().to_string();
            assert!(message.contains(says), "{flags}: {message}");
        }
        assert!(parse("--without-rotary 1").is_err(), "there is no rotary position to leave out");
        assert_eq!(parse("--injection some").unwrap_err().exit_code(), 2);
    }

    #[test]
    fn a_cut_counts_the_experts_that_are_held_or_those_that_compute() {
        let boundaries = |cut: &str| {
            let flags = format!("--pattern EDDD --experts 32 --balance {cut}");
            parse(&flags).unwrap().check().unwrap().model.boundaries
        };
        assert!(boundaries("blocks").is_empty());
        assert_eq!(boundaries("parameters"), [1], "one block with 32 experts outweighs three dense ones");
        assert_eq!(boundaries("flops"), [2], "each token goes to two of them");
        let given = parse("--layers 5 --cut D|EDED").unwrap().check().unwrap();
        assert_eq!(given.model.boundaries, [1], "as given");
    }
}
