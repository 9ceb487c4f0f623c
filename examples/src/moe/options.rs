//! The flags of `train_moe`: those of `train_gpt`, and the experts'.

use crate::moe::cut::{self, Balance, MoeCutError};
use crate::moe::gpt::{Injection, MoeGptConfig, MoeGptError};
use crate::moe::part_options::{MOST_BUCKETS, PartOptions};
use crate::options::Options;
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
    /// What `train_gpt` takes too.
    #[command(flatten)]
    pub common: Options,
    /// Experts and their losses.
    #[command(flatten)]
    pub experts: ExpertOptions,
    /// Parts beside blocks.
    #[command(flatten)]
    pub parts: PartOptions,
    /// What stages have alike.
    #[arg(long, value_enum, default_value_t = Balance::Blocks, value_name = "NAME")]
    pub balance: Balance,
    /// Trains three times, with auxiliary losses of all stages, of the last one and of none, and draws how uneven the
    /// load of experts was.
    #[arg(long, value_name = "FILE.svg", conflicts_with_all = ["save", "resume"])]
    pub curves: Option<PathBuf>,
}

/// The flags of experts and their losses.
#[derive(Args, Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ExpertOptions {
    /// Blocks, repeated until there are `--layers`: D dense, E experts, d and e the same with tokens going around.
    #[arg(long, default_value = "DE", value_name = "LETTERS")]
    pub pattern: String,
    /// Experts of a block.
    #[arg(long, default_value_t = 8, value_name = "N")]
    pub experts: usize,
    /// Experts a token goes to.
    #[arg(long, default_value_t = 2, value_name = "N")]
    pub top_k: usize,
    /// Experts that every token goes to beside.
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub shared: usize,
    /// Width inside an expert.
    #[arg(long, default_value_t = 128, value_name = "N")]
    pub d_hidden: usize,
    /// How many times its even share of tokens an expert takes at most; `0` drops none.
    #[arg(long, default_value_t = 0.0, value_name = "FACTOR")]
    pub capacity: f64,
    /// How logits of routers become scores.
    #[arg(long, value_enum, default_value_t = ScoringName::Softmax, value_name = "NAME")]
    pub scoring: ScoringName,
    /// How far a bias of each expert moves towards an even load after each step (DeepSeek-V3: 0.001); no bias if 0.
    #[arg(long, default_value_t = 0.0, value_name = "RATE")]
    #[serde(default)]
    pub bias_rate: f64,
    /// Weight of the load-balancing loss.
    #[arg(long, default_value_t = 0.01, value_name = "WEIGHT")]
    pub load_balance: f64,
    /// Weight of the router z-loss.
    #[arg(long, default_value_t = 0.001, value_name = "WEIGHT")]
    pub router_z: f64,
    /// Weight of the router loss of blocks that tokens go around.
    #[arg(long, default_value_t = 0.01, value_name = "WEIGHT")]
    pub depth_router: f64,
    /// Which stages' auxiliary losses reach their routers.
    #[arg(long, value_enum, default_value_t = InjectionName::All, value_name = "STAGES")]
    pub injection: InjectionName,
    /// The byte that begins a document, which attention does not leave; none unless given.
    #[arg(long, value_name = "BYTE")]
    pub bos: Option<u8>,
}

/// A way of scoring.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
pub enum ScoringName {
    /// Experts compete.
    Softmax,
    /// Each expert by itself.
    Sigmoid,
}

/// Which stages inject.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
pub enum InjectionName {
    /// All.
    All,
    /// The last one alone.
    LastStage,
    /// None.
    Nowhere,
}

/// Options that were checked.
#[derive(Debug, Clone)]
pub struct MoeSetup {
    /// Plan, data, rates and device.
    pub common: Setup,
    /// The model's size.
    pub model: MoeGptConfig,
    /// Weights of the whole model.
    pub parameters: usize,
    /// The byte that begins a document.
    pub bos: Option<u8>,
    /// The flags that losses depend on, as a checkpoint keeps them.
    pub flags: MoeRunFlags,
    /// Where curves of three trainings go, if they are asked for.
    pub curves: Option<PathBuf>,
}

/// The flags that losses depend on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MoeRunFlags {
    /// Those that `train_gpt` has too.
    #[serde(flatten)]
    pub common: RunFlags,
    /// The experts'.
    #[serde(flatten)]
    pub experts: ExpertOptions,
    /// The other parts'.
    #[serde(flatten)]
    pub parts: PartOptions,
}

/// Why the flags do not describe a run.
#[derive(thiserror::Error)]
#[allow(missing_docs, reason = "the messages say what the fields are")]
pub enum MoeOptionsError {
    /// What `train_gpt` would refuse too.
    #[error(transparent)]
    Common(#[from] OptionsError),
    /// The pattern is none.
    #[error("--pattern: {0}")]
    Pattern(#[from] PatternError),
    /// There is no such model.
    #[error(transparent)]
    Model(#[from] MoeGptError),
    /// The model cannot be cut so.
    #[error(transparent)]
    Cut(#[from] MoeCutError),
    /// Windows are too short for so many tokens ahead.
    #[error("--ahead {ahead} predicts {} tokens after the next one, which --seq {seq} has no room for", ahead.len())]
    Ahead { ahead: String, seq: usize },
    /// Buckets that hashes of 32 bits cannot number.
    #[error("--ngram {buckets} is more than {MOST_BUCKETS} rows")]
    Buckets { buckets: usize },
    /// Tokens cannot go to so many experts.
    #[error("--top-k {top_k} is not between 1 and --experts {experts}")]
    TopK { top_k: usize, experts: usize },
    /// A width of zero.
    #[error("--d-hidden is at least 1")]
    Width,
    /// A factor or weight that is no size.
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
    /// Parses arguments; files go to `runs/train_moe` by default.
    ///
    /// # Errors
    /// What clap says of arguments that are none, or of `--help`.
    pub fn from_arguments(arguments: impl Iterator<Item = OsString>) -> Result<Self, clap::Error> {
        let command = Self::command().mut_arg("trace", |trace| trace.default_value("runs/train_moe"));
        // It is about the other model's layers.
        let command = command.mut_arg("costs", |costs| costs.hide(true));
        let command =
            command.mut_arg("cut", |cut| cut.help("Stages, such as DE|DE, in place of --balance").value_name("STAGES"));
        Self::from_arg_matches(&command.try_get_matches_from(arguments)?)
    }

    /// Checks the flags and makes what they stand for.
    ///
    /// # Errors
    /// [`MoeOptionsError`] for flags that no run can have.
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
        let model = model.with_auxiliary(auxiliary).with_seed(options.seed).with_injection(match injection {
            InjectionName::All => Injection::All,
            InjectionName::LastStage => Injection::LastStage,
            InjectionName::Nowhere => Injection::Nowhere,
        });
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
            ("--cut optimal", "say --balance flops"),
            ("--costs layers.json", "say --balance flops"),
            ("--cut EDE|D", "--cut has the blocks EDED, and the model is DEDE"),
            ("--cut DE|D|E", "--cut makes 3 stages, and the schedule runs 2"),
            ("--cut DE|DE --balance flops", "leave one of them out"),
            ("--bias-rate=-1", "--bias-rate -1"),
            ("--schedule auto --balance flops", "--schedule auto places stages anew"),
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
