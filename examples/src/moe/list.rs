//! The model as a list of layers: embedding, relation bias, blocks, modules of tokens ahead, head.
//!
//! Guarantees: the numbers of the stages in [`part`](crate::moe::part), in every cut; bit for bit, unless there are
//! shared experts or a relation bias, whose gradients are added in another order.
//!
//! 1. Every layer passes on hidden states, the relation bias and the routers' rows ([`Hidden`]).
//! 2. A layer with routers injects their auxiliary losses itself, into its own output.
//! 3. Parameters have the names that they have in stages. The modules of tokens ahead always hold their own copy of the
//!    token table, `ahead.token.weight`, which is tied to the first one ([`MoeGptConfig::shared`]).

use crate::moe::enrich::RelationBias;
use crate::moe::gpt::{Injection, MoeGptConfig, MoeGptError};
use crate::moe::part::{Ahead, Embed, Head, next_token_loss};
use crate::moe::signal::{DOCUMENTS, Hidden, MoeSignal, PLATFORM, RELATIONS, STRUCTURE, Scores, TOKENS};
use burn::tensor::{Int, Tensor};
use burn_pipeline::layers::{ForwardContext, Layer, LayerContext, LayerGroups, Model, Sequential};
use burn_pipeline::stage::LOSS_SEED;
use burn_pipeline::tensor_parallel::TensorGroup;
use burn_pipeline_moe::auxiliary::{AuxiliaryLosses, observation_rows};
use burn_pipeline_moe::balance::loads;
use burn_pipeline_moe::layers::{AttentionContext, Block, LayerAuxiliary};

/// What a block reads: hidden states, documents and the loss's seed, and where it runs.
type Read<E> = ((Hidden, E), ForwardContext);
type OfBlock = (Tensor<2, Int>, Tensor<1>);
/// The same, and the tokens if some are predicted ahead.
type OfAhead = (Tensor<2, Int>, Tensor<1>, Option<Tensor<2, Int>>);
/// Hidden states, and those of each token ahead.
type WithAhead = (Hidden, Vec<Tensor<3>>);

/// What becomes of the routers' auxiliary losses.
#[derive(Clone, Copy)]
struct Routers {
    losses: AuxiliaryLosses,
    injection: Injection,
    experts: usize,
}

impl Routers {
    fn leave(self, hidden: Hidden, left: &[LayerAuxiliary], seed: Tensor<1>, at: ForwardContext) -> Hidden {
        let device = hidden.x.device();
        let injects = self.injection.reaches(at.stage, at.stages);
        let x = if injects { self.losses.inject(hidden.x, left, seed) } else { hidden.x };
        Hidden { x, observed: observation_rows(hidden.observed, left, self.experts, &device), ..hidden }
    }
}

impl MoeGptConfig {
    /// The model as a list of layers. Batches hold all side data; what the model does not read may be `None`.
    ///
    /// # Errors
    /// As [`MoeGptConfig::blocks`].
    pub fn model(&self) -> Result<Model, MoeGptError> {
        let (count, weight) = (self.pattern.chars().count(), self.ahead_weight);
        let routers = Routers { losses: self.losses()?, injection: self.injection, experts: self.experts };
        let (embed, relation, head) = (self.clone(), self.clone(), self.clone());
        let relation = move |at: &LayerContext| relation.relation_layer(&at.device);
        let related = |own: &Option<RelationBias>, (x, related): (Tensor<3>, Option<Tensor<4>>)| {
            let bias = own.as_ref().zip(related).map(|(own, related)| own.forward(related));
            Hidden { x, bias, observed: None }
        };
        Ok(Sequential::new()
            .then(
                Layer::new("embed", move |at| embed.embed_layer(&at.device), Embed::listed)
                    .extras([STRUCTURE, PLATFORM]),
            )
            .then(Layer::new("relation", relation, related).extras([RELATIONS]))
            .repeat(count, self.listed_block(routers)?)
            .then(self.listed_ahead(routers)?)
            .then(Layer::new("head", move |at| head.head_layer(&at.device), Head::listed))
            .seed(self.seed)
            .loss(move |scores, target| next_token_loss(MoeSignal::Scores(scores), target, weight)))
    }

    fn listed_block(&self, routers: Routers) -> Result<Layer<Block, Hidden, Hidden>, MoeGptError> {
        let (config, kinds, over, rate) = (self.clone(), self.blocks()?, self.expert_parallel, self.bias_rate);
        let make = move |at: &LayerContext| config.block_layer(at.position, kinds[at.position], &at.device);
        let cut = move |block: Block, at: &LayerGroups| block.cut(&at.group).expert_parallel(&replicas(over, at));
        let forward = move |block: &Block, ((hidden, (documents, seed)), at): Read<OfBlock>| {
            let context = AttentionContext::new(documents).with_bias(hidden.bias.clone());
            let (x, left) = block.forward(hidden.x, &context);
            routers.leave(Hidden { x, ..hidden }, &[left], seed, at)
        };
        let balance = move |block: Block, position, observed: &[Vec<f64>]| {
            block.with_updated_bias(&loads(observed, routers.experts, position..position + 1)[0], rate)
        };
        let layer = Layer::cut("blocks", make, cut, forward).with_context().extras([DOCUMENTS, LOSS_SEED]);
        Ok(layer.after_step(balance).skip_capture(Block::skip_capture))
    }

    fn listed_ahead(&self, routers: Routers) -> Result<Layer<Ahead, Hidden, WithAhead>, MoeGptError> {
        let (config, kinds, over, rate) = (self.clone(), self.ahead_blocks()?, self.expert_parallel, self.bias_rate);
        let first = self.pattern.chars().count();
        let make = move |at: &LayerContext| config.ahead_layer(&kinds, true, &at.device);
        let cut = move |ahead: Ahead, at: &LayerGroups| ahead.cut(&at.group, &replicas(over, at));
        let forward = move |ahead: &Ahead, ((hidden, (documents, seed, tokens)), at): Read<OfAhead>| {
            let context = AttentionContext::new(documents).with_bias(hidden.bias.clone());
            let (out, left) = ahead.forward(None, hidden.x.clone(), tokens.as_ref(), &context);
            (routers.leave(hidden, &left, seed, at), out)
        };
        let balance = move |ahead: Ahead, _, observed: &[Vec<f64>]| {
            let loads = loads(observed, routers.experts, first..first + ahead.modules.len());
            ahead.with_updated_biases(&loads, rate)
        };
        let layer = Layer::cut("ahead", make, cut, forward).with_context().extras([DOCUMENTS, LOSS_SEED, TOKENS]);
        Ok(layer.after_step(balance).skip_capture(Ahead::skip_capture))
    }
}

fn replicas(over: bool, at: &LayerGroups) -> TensorGroup {
    if over { at.replicas.clone() } else { TensorGroup::alone() }
}

impl Head {
    fn listed(&self, (hidden, ahead): WithAhead) -> Scores {
        let ahead = ahead.into_iter().map(|x| self.forward(x)).collect();
        Scores { next: self.forward(hidden.x), ahead, observed: hidden.observed }
    }
}
