//! A learner whose stages are tensor parallel, each member with its columns of the layers: it trains as on one device.

use crate::classifier::{Classifier, Points, loss, outcome, points};
use crate::training::{assert_same_metrics, model, pipeline};
use burn::lr_scheduler::constant::ConstantLr;
use burn::module::Module;
use burn::nn::Linear;
use burn::optim::SgdConfig;
use burn::tensor::{Tensor, activation::tanh};
use burn_pipeline::nn::ColumnLinear;
use burn_pipeline::stage::named_weights;
use burn_pipeline::tensor_parallel::TensorGroup;
use burn_pipeline::{Batch, Builder, Stage, StageBox, StageContext};
use burn_pipeline_learner::{PipelineModel, PipelineStrategy};
use burn_train::metric::{AccuracyMetric, LossMetric};
use burn_train::{
    ClassificationOutput, InferenceStep, Learner, LearningResult, SupervisedTraining, TrainOutput, TrainStep,
};
use tempfile::{TempDir, tempdir};

/// The classifier.
#[derive(Module, Debug)]
struct Grouped {
    classifier: Classifier,
}

/// Its layers on one member of a tensor-parallel group; their outputs are whole on all members.
#[derive(Module, Debug)]
struct Part {
    layers: Vec<ColumnLinear>,
    /// The last layer, with three scores, is not cut.
    last: Option<Linear>,
    #[module(skip)]
    group: TensorGroup,
}

impl Stage for Part {
    type Input = Tensor<2>;
    type Extra = ();
    type Output = Tensor<2>;

    fn forward(&self, x: Tensor<2>, (): ()) -> Tensor<2> {
        let x = self.layers.iter().fold(x, |x, layer| self.group.gather_from(tanh(layer.forward(x)), 1));
        match &self.last {
            Some(last) => last.forward(x),
            None => x,
        }
    }
}

impl TrainStep for Grouped {
    type Input = Points;
    type Output = ClassificationOutput;

    fn step(&self, item: Points) -> TrainOutput<ClassificationOutput> {
        let outcome = InferenceStep::step(self, item);
        TrainOutput::new(self, outcome.loss.backward(), outcome)
    }
}

impl InferenceStep for Grouped {
    type Input = Points;
    type Output = ClassificationOutput;

    fn step(&self, item: Points) -> ClassificationOutput {
        outcome(self.classifier.scores(item.x), item.targets)
    }
}

impl PipelineModel for Grouped {
    type LastOutput = Tensor<2>;

    fn stage(&self, at: &StageContext) -> StageBox {
        let mut layers = self.classifier.part(at).layers;
        let last = at.is_last().then(|| layers.pop()).flatten();
        let layers = layers.into_iter().map(|layer| ColumnLinear::cut(layer, &at.group)).collect();
        let part = Part { layers, last, group: at.group.clone() };
        match at.is_last() {
            true => StageBox::with_loss(part, loss),
            false => StageBox::new(part),
        }
    }

    fn batch(item: &Points) -> Batch {
        Batch::new(item.x.clone()).target(item.targets.clone())
    }

    fn outcome(item: Points, scores: Tensor<2>) -> ClassificationOutput {
        outcome(scores, item.targets)
    }
}

fn run(builder: Option<Builder>) -> (TempDir, LearningResult<Grouped>) {
    let folder = tempdir().unwrap();
    let training = SupervisedTraining::new(folder.path(), points(40, 12, 0.0), points(20, 8, 0.01)).num_epochs(2);
    let training = training.metrics((LossMetric::new(), AccuracyMetric::new())).with_application_logger(None);
    let training = match builder {
        Some(builder) => PipelineStrategy::new(builder).on(training),
        None => training,
    };
    let learner = Learner::new(Grouped { classifier: model() }, SgdConfig::new().init(), ConstantLr::new(0.05));
    let result = training.launch(learner);
    assert!(result.error.is_none(), "{}", result.error.map(|error| error.to_string()).unwrap_or_default());
    (folder, result)
}

fn weights(model: &Grouped) -> Vec<f32> {
    let read = |weight: burn_pipeline::stage::NamedWeight| weight.value.to_data().unwrap().iter::<f32>().collect();
    named_weights(model, &Default::default()).into_iter().flat_map(|weight| -> Vec<f32> { read(weight) }).collect()
}

#[test]
fn a_learner_whose_stages_are_held_by_groups_trains_as_on_one_device() {
    let (one, expected) = run(None);
    for (what, builder) in [
        ("two ranks a stage", pipeline("1F1B", 2).tensor_parallel(2)),
        ("groups of one and four ranks", pipeline("1F1B", 2).tensor_parallel([1, 4])),
        ("two replicas of groups of two", pipeline("GPipe", 1).data_parallel(2).tensor_parallel(2)),
    ] {
        let (other, got) = run(Some(builder));
        assert_same_metrics(what, &one, &other);
        let (expected, got) = (weights(&expected.model), weights(&got.model));
        assert_eq!(expected.len(), got.len(), "{what}");
        let apart = expected.iter().zip(&got).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(apart < 1e-6, "{what}: weights are {apart} apart");
    }
}
