//! The layers of a vocabulary that is spread, as a user gives them, and the pieces that are cut from them.

use super::group::VocabularyGroup;
use super::piece::Piece;
use crate::stage::{BoundaryError, ErasedStage, Names, Payload, PayloadPart, Stage, StageBox, TensorKind};
use burn::module::Module;
use burn::nn::{Embedding, Linear};
use burn::tensor::Device;
use std::fmt;
use std::sync::Arc;

type Make<M> = Arc<dyn Fn(&Device) -> M + Send + Sync>;

/// The embedding and the head of a model, to be spread over all pipeline ranks ([`Builder::vocabulary`](crate::Builder::vocabulary)): either of
/// them, or both.
///
/// Each is given as the ordinary layer, as one device would hold it, and by its path in the model, which its parameter's name begins
/// with. A rank makes the whole layer and keeps its piece, of the values that the first rank has. Where the words are no multiple of the number of
/// pipeline ranks, the first ranks have one more than the others.
#[derive(Clone, Default)]
pub struct Vocabulary {
    embedding: Option<(String, Make<Embedding>)>,
    head: Option<(String, Make<Linear>)>,
    /// Is the embedding's matrix the head's, too?
    tied: bool,
}

impl fmt::Debug for Vocabulary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (embedding, head) =
            (self.embedding.as_ref().map(|(name, _)| name), self.head.as_ref().map(|(name, _)| name));
        let mut text = f.debug_struct("Vocabulary");
        text.field("embedding", &embedding).field("head", &head).field("tied", &self.tied).finish()
    }
}

impl Vocabulary {
    /// Nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Spreads the embedding. The batch's input is the token ids, one integer tensor of any rank, and the first stage's input a
    /// `Tensor` of one rank more: their vectors.
    pub fn embedding(
        mut self,
        path: impl Into<String>,
        make: impl Fn(&Device) -> Embedding + Send + Sync + 'static,
    ) -> Self {
        self.embedding = Some((path.into(), Arc::new(make)));
        self.tied = false;
        self
    }

    /// Spreads the embedding and a head of the same matrix: the score of a word is the product of the last stage's output with the word's
    /// vector. Batches are those of [`Vocabulary::embedding`] and [`Vocabulary::head`], and the path is the embedding's.
    ///
    /// On one device that is `hidden.matmul(token.weight.val().transpose())`: one parameter, whose gradients from both uses are
    /// added, in checkpoints too.
    pub fn tied(
        mut self,
        path: impl Into<String>,
        make: impl Fn(&Device) -> Embedding + Send + Sync + 'static,
    ) -> Self {
        self = self.embedding(path, make);
        (self.head, self.tied) = (None, true);
        self
    }

    /// Spreads the head, a linear layer without bias from the last stage's output (one float tensor `[.., width]`) to the scores, and
    /// the cross entropy behind it: the loss is its mean in nats over the targets of a microbatch
    /// ([`Reduction::Mean`](crate::Reduction::Mean)), or their sum ([`Reduction::Sum`](crate::Reduction::Sum)). The batch's target is the wanted
    /// ids, one integer tensor with an id for each row of the output. The last stage has no loss of its own. A layer that was given
    /// before ([`Vocabulary::tied`], too) is replaced.
    pub fn head(mut self, path: impl Into<String>, make: impl Fn(&Device) -> Linear + Send + Sync + 'static) -> Self {
        self.head = Some((path.into(), Arc::new(make)));
        self.tied = false;
        self
    }

    /// What each rank gets a piece of.
    pub(crate) fn pieces(&self) -> Vec<Piece> {
        if self.tied {
            return vec![Piece::Tied];
        }
        let given = [(Piece::Embedding, self.embedding.is_some()), (Piece::Head, self.head.is_some())];
        given.into_iter().filter(|(_, given)| *given).map(|(piece, _)| piece).collect()
    }

    /// The layers that are given.
    pub(crate) fn layers(&self) -> Vec<Piece> {
        self.pieces().into_iter().flat_map(Piece::layers).copied().collect()
    }

    /// Makes a layer and cuts this rank's piece from it; `None` if it is not given. All ranks call it, for the same layers in
    /// the same order.
    ///
    /// # Panics
    /// If the layer cannot be cut.
    pub(crate) fn cut(&self, piece: Piece, device: &Device, ranks: &VocabularyGroup) -> Option<Box<dyn ErasedStage>> {
        let group = ranks.group();
        let (path, layer) = match piece {
            Piece::Embedding | Piece::Tied => {
                let (path, make) = self.embedding.as_ref()?;
                let Embedding { weight } = make(device);
                enough(group.size(), weight.shape()[0], "embedding");
                (path, Layer { embedding: Some(Embedding { weight: group.cut_part(weight, 0) }), head: None })
            }
            Piece::Head => {
                let (path, make) = self.head.as_ref()?;
                let Linear { weight, bias } = make(device);
                assert!(bias.is_none(), "a head with a bias cannot be spread: make it `with_bias(false)`");
                enough(group.size(), weight.shape()[1], "head");
                (path, Layer { embedding: None, head: Some(Linear { weight: group.cut_part(weight, 1), bias: None }) })
            }
        };
        let name = format!("{path}.weight");
        let names = Names::default().renamed(move |_| name.clone());
        Some(StageBox::new(layer).named(names).sharded(false).into_inner())
    }
}

/// Makes sure that every rank gets a word.
fn enough(ranks: usize, words: usize, layer: &str) {
    assert!(words >= ranks, "{words} words of the {layer} cannot be cut over {ranks} ranks, each of which needs one");
}

/// Is a payload what a vocabulary takes of a batch: one integer tensor?
pub(crate) fn is_ids(payload: Payload) -> Result<(), BoundaryError> {
    let mut parts = payload.into_parts();
    match (parts.next(), parts.next()) {
        (Some(PayloadPart::Tensor(ids)), None) if ids.kind() == TensorKind::Int => Ok(()),
        _ => {
            Err(BoundaryError::Structure { expected: "one integer tensor of ids, for the vocabulary that is spread," })
        }
    }
}

/// A piece as a module, so that it is kept as a stage's are. It is never run: the executor computes with its weight.
#[derive(Module, Debug)]
struct Layer {
    embedding: Option<Embedding>,
    head: Option<Linear>,
}

impl Stage for Layer {
    type Input = ();
    type Extra = ();
    type Output = ();

    fn forward(&self, (): (), (): ()) {}
}
