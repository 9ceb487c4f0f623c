//! A stage's output is freed once it has been sent, although its graph is still alive.

use crate::heap::{live, turn};
use burn::module::Param;
use burn::tensor::{Device, Tensor};
use burn_pipeline::payload::{AnyTensor, Boundary, Payload};
use burn_pipeline::stage::{SingleStage, SplitBackward, Stage, StageBox};
use pipeline_tests::layers::Product;

const ROWS: usize = 8192;
const INNER: usize = 16;
const COLUMNS: usize = 2048;
/// 64 MiB.
const OUTPUT: usize = ROWS * COLUMNS * size_of::<f32>();

fn product() -> Product {
    Product { w: Param::from_tensor(Tensor::full([INNER, COLUMNS], 0.5, &Device::flex().autodiff())) }
}

#[test]
fn an_output_that_was_handed_on_is_free_while_its_graph_lives() {
    let _turn = turn();
    let mut stage = SingleStage::new(StageBox::new(product()), SplitBackward::Eager, false);
    let before = live();
    let input = Tensor::<2>::ones([ROWS, INNER], &Device::flex()).into_payload();
    let payload = stage.forward(0, input, Payload::default()).unwrap();
    let with_output = live();
    assert!(
        (with_output - before) * 10 >= OUTPUT * 9,
        "the output does not show on the heap: {}",
        with_output - before
    );
    drop(payload);
    let freed = with_output - live();
    assert!(freed * 10 >= OUTPUT * 9, "only {freed} of {OUTPUT} bytes are free");
    assert_eq!(stage.held(), 1);
    // The graph is alive: its backward gives the gradients.
    let seed = AnyTensor::new(Tensor::<2>::full([ROWS, COLUMNS], 2.0, &Device::flex()));
    let gradients = stage.backward(0, vec![Some(seed)]).unwrap();
    let expected = 2.0 * 0.5 * COLUMNS as f32;
    assert!(gradients[0].as_ref().unwrap().to_data().unwrap().iter::<f32>().all(|g| g == expected));
    drop(gradients);
    let weight = stage.gradients()[0].as_ref().unwrap().to_data().unwrap();
    assert!(weight.iter::<f32>().all(|g| g == 2.0 * ROWS as f32));
}

#[test]
fn an_output_that_is_kept_with_its_graph_is_not_free() {
    // What the test above would see if the output were not freed.
    let _turn = turn();
    let product = product();
    let x = Tensor::<2>::ones([ROWS, INNER], &Device::flex()).autodiff().require_grad();
    let output = product.forward(x, ());
    let sent = output.clone().inner();
    let with_output = live();
    drop(sent);
    assert!(with_output.saturating_sub(live()) * 10 < OUTPUT);
    drop(output);
    assert!((with_output - live()) * 10 >= OUTPUT * 9);
}
