//! Specs fit themselves and what they were joined to; a difference is named by the first tensor that differs.

use super::{PayloadSpec, SpecMismatch, SpecPart};
use crate::payload::Boundary;
use burn::tensor::{Bool, Device, Int, Tensor};
use proptest::prelude::{Just, Strategy, prop_oneof};
use proptest::{prop_assert, prop_assert_eq, proptest};

fn parts() -> impl Strategy<Value = PayloadSpec> {
    let device = Device::flex();
    let floats = (1usize..4, 1usize..4).prop_map(|(a, b)| PayloadSpec::of(Tensor::<2>::zeros([a, b], &Device::flex())));
    let ints = (1usize..4).prop_map(|a| PayloadSpec::of(Tensor::<1, Int>::zeros([a], &Device::flex())));
    let bools = PayloadSpec::of(Tensor::<1, Int>::zeros([2], &device).greater_elem(0));
    let number = (0usize..3).prop_map(|n| PayloadSpec::from_parts([SpecPart::Tag(n)]));
    let part = prop_oneof![floats, ints, Just(bools), number];
    proptest::collection::vec(part, 0..4)
        .prop_map(|forms| PayloadSpec::from_parts(forms.iter().flat_map(|form| form.0.clone())))
}

proptest! {
    #[test]
    fn forms_fit_themselves_and_what_they_were_joined_to(one in parts(), other in parts()) {
        prop_assert_eq!(one.mismatch(&one), None);
        match one.join(&other) {
            Some(joined) => {
                prop_assert_eq!(one.mismatch(&joined), None);
                prop_assert_eq!(other.mismatch(&joined), None);
                prop_assert_eq!(one.mismatch(&other).is_some(), one != other);
                prop_assert_eq!(other.join(&one), Some(joined));
            }
            None => prop_assert!(one.mismatch(&other).is_some() && other.mismatch(&one).is_some()),
        }
    }

    #[test]
    fn the_first_tensor_that_differs_is_named(sizes in proptest::collection::vec(1usize..5, 1..6), at in 0usize..6) {
        let at = at % sizes.len();
        let list = |sizes: &[usize]| {
            sizes.iter().map(|&size| Tensor::<1>::zeros([size], &Device::flex())).collect::<Vec<_>>()
        };
        let mut other = sizes.clone();
        other[at] += 1;
        let (expected, got) = (PayloadSpec::of(list(&sizes)), PayloadSpec::of_payload(&list(&other).into_payload()));
        let SpecMismatch { tensor, expected, got } = got.mismatch(&expected).unwrap();
        prop_assert_eq!(tensor, Some(at));
        prop_assert_eq!(expected, format!("float F32 [{}]", sizes[at]));
        prop_assert_eq!(got, format!("float F32 [{}]", sizes[at] + 1));
    }
}

#[test]
fn a_missing_or_left_over_part_is_said_as_such() {
    let flag = || Tensor::<1, Bool>::from_data([true], &Device::flex());
    let (one, two) = (PayloadSpec::of(flag()), PayloadSpec::of((flag(), flag())));
    let missing = one.mismatch(&two).unwrap();
    assert_eq!((missing.tensor, missing.got.as_str()), (Some(1), "nothing"));
    let more = two.mismatch(&one).unwrap();
    assert_eq!((more.tensor, more.expected.as_str()), (Some(1), "nothing"));
    assert_eq!(PayloadSpec::of(Some(flag())).mismatch(&PayloadSpec::of(None::<Tensor<1, Bool>>)).unwrap().tensor, None);
}
