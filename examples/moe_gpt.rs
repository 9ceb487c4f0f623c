//! A byte-level GPT with blocks with experts, dense blocks and mixtures of depths, mixed by a pattern string.
//!
//! One module type serves every stage, as in [`gpt`](crate::gpt). Beside hidden states, one row of numbers a layer
//! travels downstream (auxiliary losses, loads), which the loss hands to the runtime; see
//! [`auxiliary`](burn_pipeline_moe::auxiliary).

use burn::config::Config;
use burn::module::{Module, Param};
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::{Embedding, EmbeddingConfig, Initializer, LayerNorm, LayerNormConfig, Linear, LinearConfig};
use burn::tensor::{Device, Int, Tensor};
use burn_pipeline::boundary;
use burn_pipeline::ops::DeferredForward;
use burn_pipeline::stage::{LOSS_SEED, Loss, Names, Stage, StageBox, init_seeded};
use burn_pipeline::train::StageContext;
use burn_pipeline_moe::auxiliary::{AuxiliaryLosses, AuxiliaryWeights, observe};
use burn_pipeline_moe::layers::{
    AttentionConfig, Block, BlockConfig, BlockKind, LayerAuxiliary, MixtureOfExpertsConfig, PatternError, parse_pattern,
};
use burn_pipeline_moe::router::{Capacity, Scoring};

/// The extra that holds the document of each token.
pub const DOCUMENTS: &str = "documents";

/// Which stages' auxiliary losses reach their routers.
#[derive(Config, Debug, Copy, PartialEq, Eq)]
pub enum Injection {
    /// All stages'.
    All,
    /// Only the last stage's: what is left if nobody injects and the main loss adds what it sees.
    LastStage,
    /// None.
    Nowhere,
}

/// The model's size and ways.
#[derive(Config, Debug)]
pub struct MoeGptConfig {
    /// One letter a block: D dense, E experts, d and e the same as mixtures of depths.
    #[config(default = "String::from(\"DEDE\")")]
    pub pattern: String,
    /// Width of the hidden state.
    #[config(default = 64)]
    pub d_model: usize,
    /// Attention heads; they divide the width.
    #[config(default = 4)]
    pub heads: usize,
    /// The longest sequence.
    #[config(default = 64)]
    pub seq: usize,
    /// Different tokens.
    #[config(default = 256)]
    pub vocab: usize,
    /// Width inside an expert; dense layers are as wide as the experts that a token takes.
    #[config(default = 64)]
    pub d_hidden: usize,
    /// Experts to choose from.
    #[config(default = 8)]
    pub experts: usize,
    /// Experts a token goes to.
    #[config(default = 2)]
    pub top_k: usize,
    /// Experts that every token goes to beside.
    #[config(default = 0)]
    pub shared: usize,
    /// How many tokens an expert takes.
    #[config(default = "Capacity::Factor(1.5)")]
    pub capacity: Capacity,
    /// How logits become scores.
    #[config(default = "Scoring::Softmax")]
    pub scoring: Scoring,
    /// What auxiliary losses weigh.
    #[config(default = "AuxiliaryWeights::new()")]
    pub auxiliary: AuxiliaryWeights,
    /// Which stages' auxiliary losses reach their routers.
    #[config(default = "Injection::All")]
    pub injection: Injection,
    /// Initial values depend on this alone.
    #[config(default = 0)]
    pub seed: u64,
}

/// Hidden states, and one row of numbers for each layer so far.
#[derive(Debug, Clone)]
pub struct Hidden {
    /// `[batch, seq, d_model]`, or scores `[batch, seq, vocab]` out of the last stage.
    pub x: Tensor<3>,
    /// `[layers, numbers]`.
    pub observed: Option<Tensor<2>>,
}

boundary!(
    struct Hidden {
        x,
        observed,
    }
);

/// What crosses between stages.
#[derive(Debug, Clone)]
pub enum MoeSignal {
    /// Token ids `[batch, seq]`, into the first stage.
    Tokens(Tensor<2, Int>),
    /// Between stages.
    Hidden(Hidden),
    /// Scores of the next token, out of the last stage.
    Logits(Hidden),
}

boundary!(
    enum MoeSignal {
        Tokens(a),
        Hidden(a),
        Logits(a),
    }
);

/// What a stage reads beside: the loss's seed from the runtime, and the document of each token.
#[derive(Debug, Clone)]
pub struct MoeExtras {
    /// One element.
    pub seed: Tensor<1>,
    /// `[batch, seq]`.
    pub documents: Tensor<2, Int>,
}

boundary!(
    struct MoeExtras {
        seed,
        documents,
    }
);

#[derive(Module, Debug)]
struct Embed {
    token: Embedding,
    position: Param<Tensor<2>>,
}

#[derive(Module, Debug)]
struct Head {
    norm: LayerNorm,
    scores: Linear,
}

/// A contiguous part of the model.
#[derive(Module, Debug)]
pub struct MoeGptPart {
    embed: Option<Embed>,
    blocks: Vec<Block>,
    head: Option<Head>,
    experts: usize,
    injects: bool,
    #[module(skip)]
    losses: AuxiliaryLosses,
}

const SMALL: Initializer = Initializer::Normal { mean: 0.0, std: 0.02 };

impl MoeGptConfig {
    /// The blocks of the whole model.
    ///
    /// # Errors
    /// If the pattern has a letter without meaning, or none.
    pub fn blocks(&self) -> Result<Vec<BlockKind>, PatternError> {
        parse_pattern(&self.pattern)
    }

    /// The auxiliary losses of the whole model.
    ///
    /// # Errors
    /// As [`MoeGptConfig::blocks`].
    pub fn losses(&self) -> Result<AuxiliaryLosses, PatternError> {
        Ok(AuxiliaryLosses::new(self.auxiliary, &self.blocks()?))
    }

    fn block_config(&self) -> BlockConfig {
        let mixture = MixtureOfExpertsConfig::new(self.d_model, self.d_hidden, self.experts);
        let mixture = mixture.with_top_k(self.top_k).with_shared(self.shared).with_capacity(self.capacity);
        let attention = AttentionConfig { d_model: self.d_model, heads: self.heads, window: None };
        let d_dense = (self.top_k + self.shared) * self.d_hidden;
        BlockConfig::new(attention, d_dense, mixture.with_scoring(self.scoring))
    }

    /// How a stage's parameters are called in the whole model.
    pub fn names(&self, at: &StageContext) -> Names {
        Names::default().layers_from("blocks", at.layers(self.pattern.chars().count()).start)
    }

    /// The part of the model that a stage holds.
    ///
    /// # Errors
    /// As [`MoeGptConfig::blocks`].
    pub fn part(&self, at: &StageContext) -> Result<MoeGptPart, PatternError> {
        let (d, device, kinds) = (self.d_model, &at.device, self.blocks()?);
        let seeded = |layer: usize| self.seed.wrapping_mul(1_000_003).wrapping_add(layer as u64);
        let embed = at.is_first().then(|| {
            init_seeded(seeded(0), device, |device| Embed {
                token: EmbeddingConfig::new(self.vocab, d).with_initializer(SMALL).init(device),
                position: SMALL.init([self.seq, d], device),
            })
        });
        let config = self.block_config();
        let block = |layer: usize| init_seeded(seeded(layer + 1), device, |device| config.init(kinds[layer], device));
        let head = at.is_last().then(|| {
            init_seeded(seeded(kinds.len() + 1), device, |device| Head {
                norm: LayerNormConfig::new(d).init(device),
                scores: LinearConfig::new(d, self.vocab).with_initializer(SMALL).init(device),
            })
        });
        let injects = match self.injection {
            Injection::All => true,
            Injection::LastStage => at.is_last(),
            Injection::Nowhere => false,
        };
        let blocks = at.layers(kinds.len()).map(block).collect();
        Ok(MoeGptPart { embed, blocks, head, experts: self.experts, injects, losses: self.losses()? })
    }
}

/// A stage of the model, with the loss on the last one.
pub fn stage<M>(part: M, at: &StageContext) -> StageBox
where
    M: Stage<Output = MoeSignal>,
{
    if at.is_last() { StageBox::with_loss(part, next_token_loss) } else { StageBox::new(part) }
}

/// The mean cross-entropy of the next token, in nats, with the rows of all layers to be observed.
pub fn next_token_loss(output: MoeSignal, target: Tensor<2, Int>) -> Loss {
    let (MoeSignal::Logits(out) | MoeSignal::Hidden(out)) = output else {
        panic!("the last stage puts out logits; was it built with a head?")
    };
    let loss = Loss::from(cross_entropy(out.x, target));
    match out.observed {
        Some(rows) => loss.observing(rows.flatten(0, 1)),
        None => loss,
    }
}

/// The mean cross-entropy of scores `[batch, seq, vocab]`.
pub fn cross_entropy(logits: Tensor<3>, target: Tensor<2, Int>) -> Tensor<1> {
    let [batch, seq, vocab] = logits.dims();
    let loss = CrossEntropyLossConfig::new().init(&logits.device());
    loss.forward(logits.reshape([batch * seq, vocab]), target.reshape([batch * seq]))
}

impl MoeGptPart {
    /// Embedding of tokens, where the part has one.
    fn embed(&self, tokens: Tensor<2, Int>) -> Tensor<3> {
        let [_, seq] = tokens.dims();
        match &self.embed {
            Some(embed) => {
                let position = embed.position.val().narrow(0, 0, seq).unsqueeze::<3>();
                embed.token.forward_deferred(tokens) + position
            }
            None => panic!("tokens came to a stage without an embedding; only the first one has it"),
        }
    }

    /// Runs the blocks and gives what their routers left.
    fn run(&self, x: Tensor<3>, documents: &Tensor<2, Int>) -> (Tensor<3>, Vec<LayerAuxiliary>) {
        let mut left = Vec::with_capacity(self.blocks.len());
        let x = self.blocks.iter().fold(x, |x, block| {
            let (x, auxiliary) = block.forward(x, documents.clone());
            left.push(auxiliary);
            x
        });
        (x, left)
    }

    /// Scores of a whole model and what its routers left, with nothing injected: what a plain loop adds up.
    pub fn whole(&self, tokens: Tensor<2, Int>, documents: Tensor<2, Int>) -> (Tensor<3>, Vec<LayerAuxiliary>) {
        let (x, left) = self.run(self.embed(tokens), &documents);
        (self.scores(x), left)
    }

    fn scores(&self, x: Tensor<3>) -> Tensor<3> {
        match &self.head {
            Some(head) => head.scores.forward_deferred(head.norm.forward(x)),
            None => x,
        }
    }
}

impl Stage for MoeGptPart {
    type Input = MoeSignal;
    type Extra = MoeExtras;
    type Output = MoeSignal;

    fn extras(&self) -> Vec<&'static str> {
        vec![LOSS_SEED, DOCUMENTS]
    }

    fn forward(&self, input: MoeSignal, extra: MoeExtras) -> MoeSignal {
        let (x, upstream) = match input {
            MoeSignal::Tokens(tokens) => (self.embed(tokens), None),
            MoeSignal::Hidden(hidden) | MoeSignal::Logits(hidden) => (hidden.x, hidden.observed),
        };
        let device: Device = x.device();
        let (x, left) = self.run(x, &extra.documents);
        let observed = observe(upstream, &left, self.experts, &device);
        let x = if self.injects { self.losses.inject(x, &left, extra.seed) } else { x };
        match &self.head {
            Some(_) => MoeSignal::Logits(Hidden { x: self.scores(x), observed }),
            None => MoeSignal::Hidden(Hidden { x, observed }),
        }
    }
}
