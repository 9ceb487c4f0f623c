//! The values that cross between the stages of the mixture-of-experts model, and the stages' extras.

use burn::tensor::{Int, Tensor};
use burn_pipeline::boundary;
use burn_pipeline_moe::extras::StageExtras;

/// The name of the extra with the document of each token, `[batch, seq]`. Every stage reads it.
pub const DOCUMENTS: &str = "documents";
/// The name of the extra with the related pairs of tokens, `[batch, relations, seq, seq]` of zeros and ones. Every
/// stage reads it if the model has a relation bias.
pub const RELATIONS: &str = "relations";
/// The name of the extra with the structure id of each token, `[batch, seq]`. The first stage reads it if it has a
/// table.
pub const STRUCTURE: &str = "structure";
/// The name of the extra with the platform of each sample, `[batch]`. The first stage reads it if it has a table.
pub const PLATFORM: &str = "platform";
/// The name of the extra with the tokens again, `[batch, seq]`. The last stage reads it if it predicts several
/// ahead.
pub const TOKENS: &str = "tokens";

/// Hidden states, and one row of numbers for each layer so far.
#[derive(Debug, Clone)]
pub struct Hidden {
    /// `[batch, seq, d_model]`.
    pub x: Tensor<3>,
    /// The bias of attention scores, `[batch, heads, seq, seq]`, in a list of layers; stages compute it.
    pub bias: Option<Tensor<4>>,
    /// `[layers, numbers]`.
    pub observed: Option<Tensor<2>>,
}

boundary!(
    struct Hidden {
        x,
        bias,
        observed,
    }
);

/// The output of the last stage.
#[derive(Debug, Clone)]
pub struct Scores {
    /// Scores of the next token, `[batch, seq, vocab]`.
    pub next: Tensor<3>,
    /// Scores of the tokens after it, `[batch, seq - k, vocab]` for `k` from 1.
    pub ahead: Vec<Tensor<3>>,
    /// `[layers, numbers]`.
    pub observed: Option<Tensor<2>>,
}

boundary!(
    struct Scores {
        next,
        ahead,
        observed,
    }
);

/// The values that cross between stages.
#[derive(Debug, Clone)]
pub enum MoeSignal {
    /// Token ids `[batch, seq]`, into the first stage.
    Tokens(Tensor<2, Int>),
    /// Between stages.
    Hidden(Hidden),
    /// Out of the last stage.
    Scores(Scores),
}

boundary!(
    enum MoeSignal {
        Tokens(a),
        Hidden(a),
        Scores(a),
    }
);

/// A stage's extras: the loss's seed from the runtime, and the side data that it names.
#[derive(Debug, Clone)]
pub struct MoeExtras {
    /// One element.
    pub seed: Tensor<1>,
    /// The rest, in the stage's order.
    pub side: StageExtras,
}

boundary!(
    struct MoeExtras {
        seed,
        side,
    }
);

/// The side data of some samples: all of it, or what one stage reads.
#[derive(Debug, Clone)]
pub struct Sides {
    /// See [`DOCUMENTS`].
    pub documents: Tensor<2, Int>,
    /// See [`RELATIONS`].
    pub relations: Option<Tensor<4>>,
    /// See [`STRUCTURE`].
    pub structure: Option<Tensor<2, Int>>,
    /// See [`PLATFORM`].
    pub platform: Option<Tensor<1, Int>>,
    /// See [`TOKENS`].
    pub tokens: Option<Tensor<2, Int>>,
}
