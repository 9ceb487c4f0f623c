//! The weights that ranks hold, and the bytes that they send.

use crate::model::{batch, builder, weights};
use crate::plain::SMALL;

#[test]
fn weights_are_read_whole_with_the_first_ranks_values() {
    let one = weights(&mut builder(("1F1B", 1), (2, 1, 1)).build().unwrap());
    let two = weights(&mut builder(("1F1B", 1), (2, 1, 2)).build().unwrap());
    assert_eq!(one, two);
    let plain = pipeline_tests::reference::weights(&SMALL.plain());
    assert_eq!(two, plain);
}

#[test]
fn gradients_are_read_whole() {
    let gradients = |members| {
        let mut pipeline = builder(("1F1B", 1), (2, 1, members)).build().unwrap();
        pipeline.accumulate(batch(&SMALL, 4)).unwrap();
        let gradients = pipeline.take_gradients().unwrap();
        gradients.iter().flatten().map(|gradient| crate::model::read(gradient.as_ref().unwrap())).collect::<Vec<_>>()
    };
    let (one, two) = (gradients(1), gradients(2));
    for (one, two) in one.iter().zip(&two) {
        assert_eq!(one.len(), two.len());
        assert!(one.iter().zip(two).all(|(one, two)| (one - two).abs() < 1e-5), "{one:?} {two:?}");
    }
}

#[test]
fn an_evaluation_has_each_microbatchs_loss_and_output_once() {
    let mut one = builder(("1F1B", 1), (2, 2, 1)).build().unwrap();
    let mut two = builder(("1F1B", 1), (2, 2, 2)).build().unwrap();
    let (one, two) = (one.eval(batch(&SMALL, 8)).unwrap(), two.eval(batch(&SMALL, 8)).unwrap());
    assert!((one.loss.unwrap() - two.loss.unwrap()).abs() < 1e-5, "{:?} {:?}", one.loss, two.loss);
}
