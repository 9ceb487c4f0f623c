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
/// with. A rank makes the whole layer and keeps its piece, of the values that the first rank has. The vocabulary must be a multiple of the number of
/// pipeline ranks.
#[derive(Clone, Default)]
pub struct Vocabulary {
    embedding: Option<(String, Make<Embedding>)>,
    head: Option<(String, Make<Linear>)>,
}

impl fmt::Debug for Vocabulary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (embedding, head) =
            (self.embedding.as_ref().map(|(name, _)| name), self.head.as_ref().map(|(name, _)| name));
        f.debug_struct("Vocabulary").field("embedding", &embedding).field("head", &head).finish()
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
        self
    }

    /// Spreads the head, a linear layer without bias from the last stage's output (one float tensor `[.., width]`) to the scores, and
    /// the cross entropy behind it: the loss is its mean in nats over the targets of a microbatch
    /// ([`Reduction::Mean`](crate::Reduction::Mean)), or their sum ([`Reduction::Sum`](crate::Reduction::Sum)). The batch's target is the wanted
    /// ids, one integer tensor with an id for each row of the output. The last stage has no loss of its own.
    pub fn head(mut self, path: impl Into<String>, make: impl Fn(&Device) -> Linear + Send + Sync + 'static) -> Self {
        self.head = Some((path.into(), Arc::new(make)));
        self
    }

    /// The layers that are given.
    pub(crate) fn pieces(&self) -> Vec<Piece> {
        let given = [(Piece::Embedding, self.embedding.is_some()), (Piece::Head, self.head.is_some())];
        given.into_iter().filter(|(_, given)| *given).map(|(piece, _)| piece).collect()
    }

    /// Makes a layer and cuts this rank's piece from it; `None` if it is not given. All ranks call it, for the same layers in
    /// the same order.
    ///
    /// # Panics
    /// If the layer cannot be cut.
    pub(crate) fn cut(&self, piece: Piece, device: &Device, ranks: &VocabularyGroup) -> Option<Box<dyn ErasedStage>> {
        let group = ranks.group();
        let (path, layer) = match piece {
            Piece::Embedding => {
                let (path, make) = self.embedding.as_ref()?;
                let Embedding { weight } = make(device);
                group.share(weight.shape()[0], "words of the embedding");
                (path, Layer { embedding: Some(Embedding { weight: group.cut(weight, 0) }), head: None })
            }
            Piece::Head => {
                let (path, make) = self.head.as_ref()?;
                let Linear { weight, bias } = make(device);
                assert!(bias.is_none(), "a head with a bias cannot be spread: make it `with_bias(false)`");
                group.share(weight.shape()[1], "words of the head");
                (path, Layer { embedding: None, head: Some(Linear { weight: group.cut(weight, 1), bias: None }) })
            }
        };
        let name = format!("{path}.weight");
        let names = Names::default().renamed(move |_| name.clone());
        Some(StageBox::new(layer).named(names).sharded(false).into_inner())
    }
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
