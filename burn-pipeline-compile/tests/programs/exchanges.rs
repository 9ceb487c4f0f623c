//! What stands between the start of an exchange with other ranks and the wait for it stays there.
//!
//! Each test was seen to fail without the one rule that it is about.

use crate::listed::{Listed, binary, unary};
use crate::run::compiled;
use burn::backend::ir::{FloatOperationIr, NumericOperationIr, OperationIr, RandomOpIr, TensorIr};
use burn::tensor::{DType, Distribution};

/// The places of these texts in a compiled program's.
fn places<const N: usize>(listed: &Listed, wanted: &[TensorIr], texts: [&str; N]) -> ([usize; N], String) {
    let text = compiled(listed, wanted).to_string();
    (texts.map(|part| text.find(part).unwrap_or_else(|| panic!("{part} is not in\n{text}"))), text)
}

#[test]
fn a_start_comes_before_products_that_it_does_not_need() {
    let mut listed = Listed::default();
    let (x, w) = (listed.feed(&[8, 8]), listed.feed(&[8, 8]));
    let g = listed.unary(unary("exp"), &x);
    let of_input = listed.matmul(&g, &w);
    listed.start("start", &of_input);
    let of_weight = listed.matmul(&x, &w);
    // It joins the region of what the start needs, which so ends behind the matmul.
    let more = listed.scalar(NumericOperationIr::MulScalar, &g, 3.0);
    let sum = listed.custom("wait", &of_input);
    let matmul = format!("%{}[8, 8] = Matmul", of_weight.id.value());
    let ([start, matmul, wait], text) = places(&listed, &[sum, of_weight, more], ["start(", &matmul, "wait("]);
    assert!(start < matmul && matmul < wait, "{text}");
}

#[test]
fn what_feeds_a_product_before_a_wait_is_not_fused_with_what_follows_it() {
    let mut listed = Listed::default();
    let (x, y, w) = (listed.feed(&[8, 8]), listed.feed(&[8, 8]), listed.feed(&[8, 8]));
    listed.start("start", &x);
    let h = listed.unary(unary("exp"), &y);
    let of_weight = listed.matmul(&h, &w);
    let sum = listed.custom("wait", &x);
    let next = listed.binary(binary("mul"), &sum, &h);
    let ([matmul, wait], text) = places(&listed, &[of_weight, next], ["Matmul(", "wait("]);
    assert!(matmul < wait, "{text}");
}

#[test]
fn a_batch_of_products_stays_before_a_wait() {
    let mut listed = Listed::default();
    let (x, q, k) = (listed.feed(&[2, 8, 8]), listed.feed(&[2, 8, 8]), listed.feed(&[2, 8, 8]));
    listed.start("start", &x);
    let scores = listed.matmul(&q, &k);
    let sum = listed.custom("wait", &x);
    let added = listed.binary(binary("add"), &scores, &sum);
    let soft = listed.softmax(&added);
    let ([matmul, wait], text) = places(&listed, &[soft], ["Matmul(", "wait("]);
    assert!(matmul < wait, "{text}");
}

#[test]
fn random_draws_keep_their_order_though_a_start_needs_the_region_of_the_later_one() {
    let mut listed = Listed::default();
    let draw = |listed: &mut Listed| {
        let random = |out| FloatOperationIr::Random(RandomOpIr { out, distribution: Distribution::Default });
        listed.make(&[8, 8], |out| OperationIr::Float(DType::F32, random(out)))
    };
    let x = listed.feed(&[8, 8]);
    let g = listed.unary(unary("exp"), &x);
    listed.start("start", &g);
    let first = draw(&mut listed);
    let sum = listed.custom("wait", &g);
    let product = listed.binary(binary("mul"), &sum, &first);
    let second = draw(&mut listed);
    // It joins the region that the start reads.
    let other = listed.binary(binary("mul"), &g, &second);
    let made = [&first, &second].map(|drawn| format!("%{}[8, 8] =", drawn.id.value()));
    let ([first, second], text) = places(&listed, &[product, other], [&made[0], &made[1]]);
    assert!(first < second, "{text}");
}
