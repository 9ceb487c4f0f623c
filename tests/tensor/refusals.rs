//! Features that do not work with tensor-parallel groups yet are refused, with what to do instead.

use crate::model::{batch, builder};
use crate::plain::SMALL;
use burn::grad_clipping::GradientClippingConfig;
use burn::module::{Module, Param};
use burn::nn::attention::MultiHeadAttentionConfig;
use burn::nn::{EmbeddingConfig, LinearConfig};
use burn::optim::SgdConfig;
use burn::tensor::Tensor;
use burn_pipeline::nn::{ColumnLinear, RowLinear, SelfAttention, VocabEmbedding};
use burn_pipeline::stage::{Stage, StageBox};
use burn_pipeline::train::AutoOptions;
use burn_pipeline::{AutoPipeline, Builder, Size, init_seeded};
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

fn grouped() -> Builder {
    builder(("1F1B", 1), (2, 1, 2))
}

#[test]
fn choices_that_do_not_work_with_groups_are_refused_at_the_start() {
    let error = grouped().tensor_parallel(0).build().unwrap_err().to_string();
    assert!(error.contains("groups of 0 ranks were requested"), "{error}");
    let error = AutoPipeline::new(grouped(), Size::new(2, 4), AutoOptions::default()).err().unwrap().to_string();
    assert!(error.contains("`AutoPipeline` does not work"), "{error}");
}

#[test]
fn an_optimizer_that_looks_at_whole_parameters_is_refused() {
    let clipping = || SgdConfig::new().with_gradient_clipping(Some(GradientClippingConfig::Norm(0.1))).init();
    let error = grouped().optimizer(clipping).build().unwrap_err().to_string();
    assert!(error.contains("does not step each element by itself"), "{error}");
}

#[test]
fn calls_that_need_whole_stages_are_refused_and_the_pipeline_goes_on() {
    let mut pipeline = grouped().build().unwrap();
    let said = pipeline.replace_module(0, |part: crate::model::Part, _| part).unwrap_err().to_string();
    assert!(said.starts_with("`Pipeline::replace_module`") && said.contains("`Builder::tensor_parallel`"), "{said}");
    pipeline.step(batch(&SMALL, 8), 0.1).unwrap();
}

#[test]
fn layers_that_cannot_be_cut_are_refused() {
    let built = |layer: fn(&burn_pipeline::StageContext)| {
        let broken = grouped().stages(move |at| {
            layer(at);
            unreachable!("the layer above cannot be cut")
        });
        broken.build().unwrap_err().to_string()
    };
    let heads = built(|at| {
        let ordinary = MultiHeadAttentionConfig::new(6, 3).with_dropout(0.0).init(&at.device);
        drop(SelfAttention::cut(ordinary, &at.group));
    });
    let said = "3 heads cannot be cut evenly over the 2 ranks of a group; make their number a multiple of 2, \
                or choose a size that divides 3";
    assert!(heads.contains(said) && heads.contains("`Builder::tensor_parallel`"), "{heads}");
    let columns = built(|at| drop(ColumnLinear::cut(LinearConfig::new(4, 3).init(&at.device), &at.group)));
    assert!(columns.contains("cannot be cut evenly"), "{columns}");
    for layer in [
        |at: &burn_pipeline::StageContext| {
            drop(ColumnLinear::cut(LinearConfig::new(4, 4).init(&at.device), &at.replicas))
        },
        |at: &burn_pipeline::StageContext| drop(RowLinear::cut(LinearConfig::new(4, 4).init(&at.device), &at.replicas)),
        |at: &burn_pipeline::StageContext| {
            drop(VocabEmbedding::cut(EmbeddingConfig::new(4, 4).init(&at.device), &at.replicas))
        },
    ] {
        let broken = builder(("1F1B", 1), (1, 2, 1)).stages(move |at| {
            layer(at);
            unreachable!("the layer above cannot be cut")
        });
        let error = broken.build().unwrap_err().to_string();
        assert!(error.contains("not over data-parallel replicas: give it `StageContext::group`"), "{error}");
    }
}

#[test]
fn a_layer_that_is_cut_while_it_is_seeded_is_refused_at_once_on_every_rank() {
    let failed = Arc::new(AtomicUsize::new(0));
    let count = failed.clone();
    let seeded = grouped().timeout(Duration::from_secs(30)).stages(move |at| {
        let cut =
            || init_seeded(1, &at.device, |device| ColumnLinear::cut(LinearConfig::new(4, 4).init(device), &at.group));
        let layer = catch_unwind(AssertUnwindSafe(cut)).unwrap_or_else(|panic| {
            count.fetch_add(1, Ordering::Relaxed);
            resume_unwind(panic)
        });
        StageBox::new(Columns { layer })
    });
    let began = Instant::now();
    let error = seeded.build().unwrap_err().to_string();
    assert!(began.elapsed() < Duration::from_secs(15), "{error}");
    let remedy = "make the whole layer with `init_seeded`, and cut it afterwards";
    assert!(error.contains("building stage") && error.contains(remedy), "{error}");
    assert_eq!(failed.load(Ordering::Relaxed), 4);
    // Cut afterwards.
    let after = grouped().stages(|at| {
        let whole = init_seeded(1, &at.device, |device| LinearConfig::new(4, 4).init(device));
        StageBox::new(Columns { layer: ColumnLinear::cut(whole, &at.group) })
    });
    after.build().unwrap();
}

#[test]
fn a_piece_that_was_replaced_after_it_was_cut_is_refused() {
    let replaced = grouped().stages(|at| {
        let mut layer = ColumnLinear::cut(LinearConfig::new(4, 4).init(&at.device), &at.group);
        // Like a record that is loaded into the layer.
        layer.linear.weight = Param::from_tensor(layer.linear.weight.val());
        StageBox::new(Columns { layer })
    });
    let error = replaced.build().unwrap_err().to_string();
    assert!(error.contains("was cut for a group, and no stage holds the piece"), "{error}");
}

#[derive(Module, Debug)]
struct Columns {
    layer: ColumnLinear,
}

impl Stage for Columns {
    type Input = Tensor<2>;
    type Extra = ();
    type Output = Tensor<2>;

    fn forward(&self, x: Tensor<2>, (): ()) -> Tensor<2> {
        self.layer.forward(x)
    }
}

#[test]
fn a_piece_in_place_of_a_whole_weight_is_refused_by_name() {
    let mut pipeline = grouped().build().unwrap();
    let embedding = pipeline.named_weights().unwrap().remove(0).remove(0);
    let words = embedding.value.shape()[0];
    let piece = embedding.value.narrow(0, 0, words / 2);
    let error = pipeline.step_to(HashMap::from([(embedding.id, piece)]), Vec::new()).unwrap_err().to_string();
    let named = error.contains(&format!("`{}` is [{}, ", embedding.names[0], words / 2));
    assert!(named && error.contains(&format!("is [{words}, ")), "{error}");
}

#[test]
fn all_members_take_over_weights_that_the_caller_stepped() {
    let mut pipeline = grouped().build().unwrap();
    let weights: Vec<_> = pipeline.named_weights().unwrap().into_iter().flatten().collect();
    let stepped: HashMap<_, _> = weights.iter().map(|weight| (weight.id, weight.value.clone().scale(0.5))).collect();
    pipeline.step_to(stepped, Vec::new()).unwrap();
    let after: Vec<_> = pipeline.named_weights().unwrap().into_iter().flatten().collect();
    for (before, after) in weights.iter().zip(&after) {
        let values = |value: burn_pipeline::payload::AnyTensor| value.to_data().unwrap().iter().collect::<Vec<f32>>();
        assert_eq!(values(after.value.clone()), values(before.value.clone().scale(0.5)), "{}", after.names[0]);
    }
}
