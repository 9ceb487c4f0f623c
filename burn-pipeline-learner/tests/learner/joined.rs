//! A model with its samples in the second output dimension, so microbatches are joined along that one.

use crate::classifier::{Classifier, Points, loss, outcome, points};
use crate::training::{adam, assert_same_metrics, model, pipeline};
use burn::lr_scheduler::constant::ConstantLr;
use burn::module::Module;
use burn::tensor::{Int, Tensor};
use burn_pipeline::payload::BoundaryError;
use burn_pipeline::{Batch, Stage, StageBox, StageContext};
use burn_pipeline_learner::{PipelineModel, PipelineStrategy};
use burn_train::metric::{AccuracyMetric, LossMetric};
use burn_train::{ClassificationOutput, InferenceStep, Learner, SupervisedTraining, TrainOutput, TrainStep};
use tempfile::tempdir;

/// Outputs scores of shape `[classes, samples]`.
#[derive(Module, Debug)]
struct Across {
    classifier: Classifier,
}

impl Stage for Across {
    type Input = Tensor<2>;
    type Extra = ();
    type Output = Tensor<2>;

    fn forward(&self, x: Tensor<2>, (): ()) -> Tensor<2> {
        self.classifier.scores(x).transpose()
    }
}

impl TrainStep for Across {
    type Input = Points;
    type Output = ClassificationOutput;

    fn step(&self, item: Points) -> TrainOutput<ClassificationOutput> {
        let outcome = InferenceStep::step(self, item);
        TrainOutput::new(self, outcome.loss.backward(), outcome)
    }
}

impl InferenceStep for Across {
    type Input = Points;
    type Output = ClassificationOutput;

    fn step(&self, item: Points) -> ClassificationOutput {
        outcome(self.classifier.scores(item.x), item.targets)
    }
}

impl PipelineModel for Across {
    type LastOutput = Tensor<2>;

    fn stage(&self, at: &StageContext) -> StageBox {
        let classifier = self.classifier.part(at);
        let transposed = |scores: Tensor<2>, targets: Tensor<1, Int>| loss(scores.transpose(), targets);
        match at.is_last() {
            true => StageBox::with_loss(Across { classifier }, transposed),
            false => StageBox::new(classifier),
        }
    }

    fn batch(item: &Points) -> Batch {
        Batch::new(item.x.clone()).target(item.targets.clone())
    }

    fn join(outputs: Vec<Tensor<2>>) -> Result<Tensor<2>, BoundaryError> {
        Ok(Tensor::cat(outputs, 1))
    }

    fn outcome(item: Points, scores: Tensor<2>) -> ClassificationOutput {
        outcome(scores.transpose(), item.targets)
    }
}

#[test]
fn outputs_that_the_model_joins_itself_have_the_metrics_of_one_device() {
    let run = |pipelined: bool| {
        let folder = tempdir().unwrap();
        let training = SupervisedTraining::new(folder.path(), points(40, 12, 0.0), points(20, 8, 0.01));
        let training = training.metrics((LossMetric::new(), AccuracyMetric::new())).with_application_logger(None);
        let training = match pipelined {
            true => PipelineStrategy::new(pipeline("1F1B", 2)).on(training.num_epochs(2)),
            false => training.num_epochs(2),
        };
        let result = training.launch(Learner::new(Across { classifier: model() }, adam(), ConstantLr::new(0.01)));
        assert!(result.error.is_none(), "{}", result.error.map(|error| error.to_string()).unwrap_or_default());
        folder
    };
    assert_same_metrics("joined along the second dimension", &run(false), &run(true));
}
