//! The user's layers for vocabulary parallelism, and the shards that are cut from them.

use super::group::{Piece, VocabularyGroup};
use crate::payload::{AnyTensor, BoundaryError, Payload, PayloadPart, TensorKind};
use crate::stage::{ErasedStage, Names, Stage, StageBox};
use burn::module::Module;
use burn::nn::{Embedding, Linear};
use burn::tensor::Device;
use std::fmt;
use std::sync::Arc;

type Make<M> = Arc<dyn Fn(&Device) -> M + Send + Sync>;

/// The vocabulary-parallel embedding and head of a model ([`Builder::vocabulary`](crate::Builder::vocabulary)):
/// either of them, or both. They are sharded over all pipeline ranks.
///
/// Each is given as the ordinary layer of one device, with its path in the model, which begins its parameter's
/// name. A rank makes the whole layer and keeps its shard of the first rank's values. If the number of words is no
/// multiple of the number of pipeline ranks, the first ranks have one more than the others.
#[derive(Clone, Default)]
pub struct Vocabulary {
    embedding: Option<(String, Make<Embedding>)>,
    head: Option<(String, Make<Linear>)>,
    /// True if the head uses the embedding's matrix.
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
    /// No layer yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes the embedding vocabulary parallel. The batch's input is the token ids, one integer tensor of any rank.
    /// The first stage's input is their vectors, a `Tensor` of one rank more.
    pub fn embedding(
        mut self,
        path: impl Into<String>,
        make: impl Fn(&Device) -> Embedding + Send + Sync + 'static,
    ) -> Self {
        self.embedding = Some((path.into(), Arc::new(make)));
        self.tied = false;
        self
    }

    /// Makes the embedding and a head of the same matrix vocabulary parallel: a word's score is the dot product of
    /// the last stage's output with the word's vector. Batches are those of [`Vocabulary::embedding`] and
    /// [`Vocabulary::head`], and the path is the embedding's.
    ///
    /// On one device that is `hidden.matmul(token.weight.val().transpose())`: one tied parameter, whose gradients
    /// from both uses are added, and which checkpoints store once.
    pub fn tied(
        mut self,
        path: impl Into<String>,
        make: impl Fn(&Device) -> Embedding + Send + Sync + 'static,
    ) -> Self {
        self = self.embedding(path, make);
        (self.head, self.tied) = (None, true);
        self
    }

    /// Makes the head vocabulary parallel: a linear layer without bias from the last stage's output (one float
    /// tensor `[.., width]`) to the scores, and the cross entropy after it. The loss is the mean in nats over the
    /// targets of a microbatch ([`Reduction::Mean`](crate::Reduction::Mean)), or their sum
    /// ([`Reduction::Sum`](crate::Reduction::Sum)). The batch's target is one integer tensor with the target id of
    /// each row of the output. The last stage has no loss of its own. An earlier head ([`Vocabulary::tied`], too)
    /// is replaced.
    pub fn head(mut self, path: impl Into<String>, make: impl Fn(&Device) -> Linear + Send + Sync + 'static) -> Self {
        self.head = Some((path.into(), Arc::new(make)));
        self.tied = false;
        self
    }

    /// The layers that each rank has a shard of.
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

    /// Makes a layer and cuts this rank's shard from it; `None` if it is not given. All ranks call it, for the same
    /// layers in the same order.
    ///
    /// # Panics
    /// Panics if the layer cannot be cut.
    pub(crate) fn cut(&self, piece: Piece, device: &Device, ranks: &VocabularyGroup) -> Option<Box<dyn ErasedStage>> {
        let group = &ranks.group;
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
                assert!(bias.is_none(), "a vocabulary-parallel head cannot have a bias: make it `with_bias(false)`");
                enough(group.size(), weight.shape()[1], "head");
                (path, Layer { embedding: None, head: Some(Linear { weight: group.cut_part(weight, 1), bias: None }) })
            }
        };
        let name = format!("{path}.weight");
        let names = Names::default().renamed(move |_| name.clone());
        Some(StageBox::new(layer).named(names).sharded(false).into_inner())
    }
}

/// Checks that every rank gets a word.
fn enough(ranks: usize, words: usize, layer: &str) {
    assert!(words >= ranks, "{words} words of the {layer} cannot be cut over {ranks} ranks, each of which needs one");
}

/// The vocabulary's part of a batch: a payload of one integer tensor.
pub(crate) fn ids_of(payload: &Payload) -> Result<&AnyTensor, BoundaryError> {
    let mut parts = payload.parts();
    match (parts.next(), parts.next()) {
        (Some(PayloadPart::Tensor(ids)), None) if ids.kind() == TensorKind::Int => Ok(ids),
        _ => Err(BoundaryError::Structure { expected: "one integer tensor of ids, for a vocabulary-parallel layer," }),
    }
}

/// A shard as a module, so that it is stored like a stage's. It is never run: the executor computes with its
/// weight.
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
