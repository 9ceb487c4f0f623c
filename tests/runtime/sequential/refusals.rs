//! Lists that are no models are refused with the layer named.

use super::linear;
use burn::nn::{Linear, LinearConfig};
use burn::optim::SgdConfig;
use burn::tensor::Tensor;
use burn_pipeline::layers::chain::Start;
use burn_pipeline::layers::{LayerContext, LayersError, Model};
use burn_pipeline::payload::Skip;
use burn_pipeline::schedule::Size;
use burn_pipeline::train::BuildError;
use burn_pipeline::{Batch, Layer, Pipeline, Sequential};
use pipeline_tests::device::device;

fn refused(model: Model) -> LayersError {
    let built = Pipeline::builder().layers(model).schedule("1F1B", Size::new(1, 1)).devices(vec![device()]).build();
    match built.err() {
        Some(BuildError::Model(error)) => error,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_list_that_is_no_model_is_refused_with_the_layer_named() {
    let name = |name: &str| name.to_owned();
    assert_eq!(refused(Sequential::<Start<Tensor<2>>>::new().without_loss()), LayersError::Empty);
    let twice = Sequential::new().then(linear("a")).then(linear("b")).then(linear("a")).without_loss();
    assert_eq!(refused(twice), LayersError::NameTwice { name: name("a") });
    let never = Sequential::new().repeat(0, linear("a")).without_loss();
    assert_eq!(refused(never), LayersError::NoRepetition { name: name("a") });
    let few = Pipeline::builder().layers(Sequential::new().repeat(3, linear("a")).without_loss());
    let few = few.schedule("1F1B", Size::new(4, 1)).devices(vec![device()]).build().unwrap_err();
    assert!(matches!(few, BuildError::Model(LayersError::TooFew { layers: 3, stages: 4 })), "{few}");
    let make = |at: &LayerContext| LinearConfig::new(3, 3).init(&at.device);
    let gives = || Layer::new("gives", make, |own: &Linear, x: Tensor<2>| (own.forward(x.clone()), Skip(x)));
    let takes = |own: &Linear, (x, Skip(y)): (Tensor<2>, Skip<Tensor<2>>)| own.forward(x) + y;
    let takes = || Layer::new("takes", make, takes);
    let not_taken = Sequential::new().then(gives().skip_out("x")).without_loss();
    assert_eq!(refused(not_taken), LayersError::NotTaken { layer: name("gives"), key: "x" });
    let not_given = Sequential::new().then(gives().skip_out("x")).then(takes().skip_in("y")).without_loss();
    assert_eq!(refused(not_given), LayersError::NotGiven { layer: name("takes"), key: "y" });
    let undeclared = Sequential::new().then(gives()).then(takes()).without_loss();
    assert_eq!(refused(undeclared), LayersError::NotDeclared { layer: name("gives") });
    let edge = Pipeline::builder().layers(Sequential::new().repeat(3, linear("a")).without_loss()).skip(0, 2);
    let edge = edge.schedule("1F1B", Size::new(3, 1)).devices(vec![device()]).build().unwrap_err();
    assert!(matches!(edge, BuildError::Model(LayersError::Edges)), "{edge}");
    // Names that are alike only with those of parameters.
    let alike = Sequential::new().repeat(2, linear("a")).then(linear("a.1")).without_loss();
    let alike = Pipeline::builder().layers(alike).schedule("1F1B", Size::new(1, 1)).devices(vec![device()]).build();
    assert!(matches!(alike.unwrap_err(), BuildError::SameName { name, .. } if name.starts_with("a.1.")));
    let other = |own: &Linear, (x, Skip(_)): (Tensor<2>, Skip<Tensor<3>>)| own.forward(x);
    let other = Layer::new("takes", make, other).skip_in("x");
    let message = refused(Sequential::new().then(gives().skip_out("x")).then(other).without_loss()).to_string();
    assert_eq!(message, "under the key `x`, layer `gives` gives `(Tensor<2>)`, but layer `takes` takes `(Tensor<3>)`");
}

#[test]
fn a_panic_in_a_layer_names_it_with_its_number() {
    let broken = |own: &Linear, x: Tensor<2>| match x.dims()[0] {
        3 => panic!("no rows of three"),
        _ => own.forward(x),
    };
    let make = |at: &LayerContext| LinearConfig::new(3, 3).init(&at.device);
    let model = Sequential::new().repeat(2, linear("a")).repeat(2, Layer::new("b", make, broken));
    let model = model.loss(|y: Tensor<2>, wanted: Tensor<2>| (y - wanted).square().mean());
    let mut pipeline = Pipeline::builder()
        .layers(model)
        .schedule("1F1B", Size::new(2, 2))
        .optimizer(|| SgdConfig::new().init())
        .devices(vec![device()])
        .build()
        .unwrap();
    let batch = |rows: usize| {
        let x = Tensor::<2>::ones([rows, 3], &device());
        Batch::new(x.clone()).target(x)
    };
    let error = pipeline.step(batch(6), 0.1).unwrap_err().to_string();
    assert!(error.contains("panicked: layer 2 (`b`): no rows of three"), "{error}");
    assert!(error.contains("a stage of type `burn_pipeline::layers::part::Part`"), "{error}");
    pipeline.step(batch(4), 0.1).unwrap();
}

#[test]
fn a_panic_in_the_loss_and_one_while_a_layer_is_made_say_where_they_were() {
    let builder = |model: Model| {
        let builder = Pipeline::builder().layers(model).schedule("1F1B", Size::new(2, 2));
        builder.optimizer(|| SgdConfig::new().init()).devices(vec![device()])
    };
    let model = Sequential::new().repeat(2, linear("a"));
    let loss = |_: Tensor<2>, _: Tensor<2>| -> Tensor<1> { panic!("no such class") };
    let mut pipeline = builder(model.loss(loss)).build().unwrap();
    let x = Tensor::<2>::ones([4, 3], &device());
    let error = pipeline.step(Batch::new(x.clone()).target(x), 0.1).unwrap_err().to_string();
    assert!(error.contains("the stage's code panicked: the loss: no such class"), "{error}");
    let make = |_: &LayerContext| -> Linear { panic!("no file") };
    let model =
        Sequential::new().then(linear("a")).then(Layer::new("b", make, |own: &Linear, x: Tensor<2>| own.forward(x)));
    let error = builder(model.without_loss()).build().unwrap_err().to_string();
    assert!(error.contains("layer 1 (`b`): no file"), "{error}");
}
