//! A mixture of experts, used instead of a feed-forward layer.
//!
//! Guarantees: choices, drops, loads and auxiliary losses are those of one device with the same microbatch, also if the
//! experts are cut over a tensor-parallel group or over replicas.
//!
//! 1. The router chooses the experts of each token, in the type of its own parameters.
//! 2. Choices get rows of their experts: as many as each expert needs if there are kernels and one rank has all experts
//!    ([`PackedRows`]), otherwise equally many ([`TokenDispatch`]). Over replicas, rows are exchanged
//!    ([`expert_parallel`]).
//! 3. The experts' results are weighted by the gates and added per token, then to those of the shared experts, and
//!    summed over the tensor-parallel group.

use super::expert_parallel;
use super::experts::{Experts, ExpertsConfig};
use super::feed_forward::{FeedForward, FeedForwardConfig};
use super::layer_auxiliary::LayerAuxiliary;
use crate::losses::{load_balance, router_z};
use crate::ops::has_kernels;
use crate::router::{Capacity, PackedRows, Router, RouterConfig, Scoring, TokenDispatch};
use burn::config::Config;
use burn::module::Module;
use burn::tensor::{Device, Int, Tensor};
use burn_pipeline::tensor_parallel::TensorGroup;

/// The configuration of a mixture of experts.
#[derive(Config, Debug)]
pub struct MixtureOfExpertsConfig {
    /// Width of a token.
    pub d_model: usize,
    /// Width inside an expert.
    pub d_hidden: usize,
    /// Number of experts to choose from.
    pub experts: usize,
    /// The number of experts that a token goes to.
    #[config(default = 2)]
    pub top_k: usize,
    /// Number of shared experts, which all tokens go to (one feed-forward layer of their joint width).
    #[config(default = 0)]
    pub shared: usize,
    /// How many tokens an expert accepts.
    #[config(default = "Capacity::Factor(1.25)")]
    pub capacity: Capacity,
    /// How logits become scores.
    #[config(default = "Scoring::Softmax")]
    pub scoring: Scoring,
    /// Divide the gates of a token by their sum; see [`RouterConfig::normalize`].
    #[config(default = true)]
    pub normalize: bool,
    /// Add a bias to the scores when choosing; see [`RouterConfig::expert_bias`].
    #[config(default = false)]
    pub expert_bias: bool,
}

impl MixtureOfExpertsConfig {
    /// Initializes the layer.
    ///
    /// # Panics
    /// Same as [`RouterConfig::init`].
    pub fn init(&self, device: &Device) -> MixtureOfExperts {
        let router = RouterConfig::new(self.d_model, self.experts).with_top_k(self.top_k).with_scoring(self.scoring);
        let router = router.with_normalize(self.normalize).with_expert_bias(self.expert_bias);
        let shared = FeedForwardConfig::new(self.d_model, self.shared * self.d_hidden);
        MixtureOfExperts {
            router: router.init(device),
            experts: ExpertsConfig::new(self.experts, self.d_model, self.d_hidden).init(device),
            shared: (self.shared > 0).then(|| shared.init(device)),
            capacity: self.capacity,
            group: TensorGroup::alone(),
            replicas: TensorGroup::alone(),
        }
    }
}

/// A mixture of experts: each token goes to the experts that the router chose, and to the shared experts.
#[derive(Module, Debug)]
pub struct MixtureOfExperts {
    /// Chooses the experts of each token.
    pub router: Router,
    experts: Experts,
    shared: Option<FeedForward>,
    #[module(skip)]
    capacity: Capacity,
    #[module(skip)]
    group: TensorGroup,
    #[module(skip)]
    replicas: TensorGroup,
}

impl MixtureOfExperts {
    /// Makes the layer tensor parallel: each member of the group holds its share of the experts, and of the shared
    /// experts' hidden features. All members route all tokens alike, so choices, drops and auxiliary losses are those
    /// of one rank, and only the sums of outputs are exchanged.
    ///
    /// # Panics
    /// Panics if experts or features cannot be cut evenly over the group, if `group` is one of data-parallel replicas,
    /// or if the layer is expert parallel already.
    pub fn cut(self, group: &TensorGroup) -> Self {
        group.expect_members("a mixture of experts that is cut");
        assert_eq!(self.replicas.size(), 1, "call `cut` before `expert_parallel`");
        let (experts, shared) = (self.experts.cut(group), self.shared.map(|shared| shared.cut(group)));
        Self { experts, shared, group: group.clone(), ..self }
    }

    /// Makes the layer expert parallel over data-parallel replicas: each replica holds its share of the experts, and
    /// gets the rows of all replicas that chose one of them. Each replica routes its own tokens, so choices, drops and
    /// auxiliary losses are those of one rank. The router and the shared experts are whole on each. With a capacity,
    /// all replicas must run it on equally many tokens.
    ///
    /// # Panics
    /// Panics if experts cannot be cut evenly over the replicas, or if `replicas` is a tensor-parallel group.
    pub fn expert_parallel(self, replicas: &TensorGroup) -> Self {
        replicas.expect_replicas("a mixture of experts");
        Self { experts: self.experts.cut(replicas), replicas: replicas.clone(), ..self }
    }

    /// Runs the layer on `[batch, seq, d_model]`, whole on all members of its group. The capacity is a share of all
    /// tokens of the call. The router computes in the type of its own parameters
    /// ([`Precision::keep`](burn_pipeline::stage::Precision::keep) leaves it in f32), experts in that of the tokens.
    pub fn forward(&self, x: Tensor<3>) -> (Tensor<3>, LayerAuxiliary) {
        let [batch, seq, d] = x.dims();
        let tokens = x.reshape([batch * seq, d]);
        let routing = self.router.forward(tokens.clone());
        // A router may be kept in f32 beside half-precision experts.
        let gates = routing.gates.cast(tokens.dtype());
        let (load, means) = (routing.load.clone(), routing.mean_probabilities.unsqueeze::<2>());
        // From here on each rank uses the values with its own experts.
        let (tokens, gates) = (self.group.copy_to(tokens), self.group.copy_to(gates));
        let (mut y, dropped) = self.mix(tokens.clone(), routing.experts, gates, routing.load);
        if let Some(shared) = &self.shared {
            y = y + shared.partial(tokens);
        }
        let y = self.group.reduce_from(y);
        let auxiliary = LayerAuxiliary {
            load_balance: Some(load_balance(means, load.clone())),
            router_z: Some(router_z(routing.logits)),
            load: Some(load),
            dropped: Some(dropped),
            depth_router: None,
        };
        (y.reshape([batch, seq, d]), auxiliary)
    }

    /// Updates the router's bias after a step with this load (the number of choices for each expert); see
    /// [`Router::with_updated_bias`].
    pub fn with_updated_bias(self, load: &[f64], rate: f64) -> Self {
        Self { router: self.router.with_updated_bias(load, rate), ..self }
    }

    /// Returns true if a token's output does not depend on the other tokens of the call.
    pub(super) fn runs_tokens_alone(&self) -> bool {
        self.capacity == Capacity::Dropless
    }

    /// The reason why the layer cannot be captured, if any; see [`Capacity::skip_capture`].
    pub fn skip_capture(&self) -> Option<&'static str> {
        // Kernels on a rank with all experts give each as many rows as it needs, and read nothing.
        let reads = self.group.size() > 1 || self.replicas.size() > 1 || !self.experts.have_kernels();
        if reads { self.capacity.skip_capture() } else { None }
    }

    /// The output of this rank's experts, and the number of dropped choices of all experts. If there are kernels and a
    /// rank has all experts, each expert has as many rows as it needs. Otherwise all have the same number, because
    /// batched matmuls and captures need shapes that follow from sizes.
    fn mix(
        &self,
        tokens: Tensor<2>,
        experts: Tensor<2, Int>,
        gates: Tensor<2>,
        load: Tensor<1, Int>,
    ) -> (Tensor<2>, Tensor<1, Int>) {
        let (members, replicas) = (self.group.size(), self.replicas.size());
        // The experts of this rank and of the ranks at its place in other replicas.
        let held = self.experts.count() * replicas;
        let own = held * self.group.member()..held * (self.group.member() + 1);
        if replicas > 1 && self.capacity == Capacity::Dropless {
            let none = Tensor::zeros([1], (&load.device(), load.dtype()));
            return (
                expert_parallel::by_load(&self.experts, &self.replicas, own, (experts, load), tokens, gates),
                none,
            );
        }
        if members > 1 || replicas > 1 || !has_kernels(&tokens) {
            let places = TokenDispatch::new(experts, held * members, self.capacity);
            let places = if members > 1 { places.of(own) } else { places };
            let y = match replicas {
                1 => places.combine(self.experts.forward(places.dispatch(tokens)), gates),
                _ => expert_parallel::by_capacity(&self.experts, &self.replicas, &places, tokens, gates),
            };
            return (y, places.dropped);
        }
        let [count, k] = gates.dims();
        let capacity = self.capacity.limit(count * k, held, count);
        let dropped = load.clone().sub_scalar(capacity as i64).clamp_min(0).sum();
        let rows = PackedRows::new(experts, load, capacity);
        let y = self.experts.forward_packed(rows.permute(tokens), rows.offsets.clone());
        (rows.unpermute(y, gates), dropped)
    }
}
