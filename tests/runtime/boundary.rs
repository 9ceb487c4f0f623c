//! A value that crosses a boundary arrives unchanged. A payload of another form is refused with the part that does
//! not fit.

use burn::tensor::{Bool, Device, Int, Tensor};
use burn_pipeline::boundary;
use burn_pipeline::payload::{AnyTensor, Boundary, BoundaryError, Payload, PayloadPart, TensorKind};
use proptest::prelude::{Just, Strategy, any, prop_oneof};
use proptest::{prop_assert_eq, proptest};

type Floats = Tensor<2>;
type Ints = Tensor<1, Int>;
type Bools = Tensor<3, Bool>;

#[derive(Debug)]
struct Hidden {
    x: Floats,
    positions: Option<Ints>,
    masks: Vec<Bools>,
}
boundary!(struct Hidden { x, positions, masks });

#[derive(Debug)]
enum Signal {
    Tokens(Ints),
    Hidden(Hidden),
    Pair((Floats, Floats)),
}
boundary!(
    enum Signal {
        Tokens(t),
        Hidden(h),
        Pair(p),
    }
);

fn floats(numbers: &[f32]) -> Floats {
    Tensor::<1>::from_floats(numbers, &Device::flex()).unsqueeze()
}

fn ints(numbers: &[i32]) -> Ints {
    Tensor::from_ints(numbers, &Device::flex())
}

fn bools(numbers: &[i32]) -> Bools {
    ints(numbers).greater_elem(0).reshape([1, 1, -1])
}

/// Everything in a payload, to be compared.
fn contents(payload: &Payload) -> Vec<String> {
    let part = |part: &PayloadPart| match part {
        PayloadPart::Tag(tag) => format!("tag {tag}"),
        PayloadPart::Host(value) => value.to_string(),
        PayloadPart::Tensor(t) => format!("{} {:?} {:?}", t.kind(), t.shape(), t.to_data().unwrap()),
    };
    payload.parts().map(part).collect()
}

/// Writes, reads as `T`, and writes again.
fn there_and_back<T: Boundary>(payload: Payload) -> Vec<String> {
    contents(&T::from_payload(payload).unwrap().into_payload())
}

fn numbers() -> impl Strategy<Value = Vec<i32>> {
    proptest::collection::vec(-5i32..5, 1..6)
}

fn hidden() -> impl Strategy<Value = Hidden> {
    let masks = proptest::collection::vec(numbers(), 0..4);
    (numbers(), proptest::option::of(numbers()), masks).prop_map(|(x, positions, masks)| Hidden {
        x: floats(&x.iter().map(|&x| x as f32 / 3.0).collect::<Vec<_>>()),
        positions: positions.map(|p| ints(&p)),
        masks: masks.iter().map(|mask| bools(mask)).collect(),
    })
}

#[derive(Debug, Clone, Copy)]
enum Which {
    Tokens,
    Hidden,
    Pair,
}

proptest! {
    #[test]
    fn a_users_struct_comes_out_as_it_went_in(hidden in hidden().prop_map(Boundary::into_payload)) {
        prop_assert_eq!(there_and_back::<Hidden>(hidden.clone()), contents(&hidden));
    }

    #[test]
    fn every_variant_of_a_users_enum_comes_out_as_it_went_in(
        which in prop_oneof![Just(Which::Tokens), Just(Which::Hidden), Just(Which::Pair)],
        numbers in numbers(),
        hidden in hidden().prop_map(Boundary::into_payload),
    ) {
        let signal = match which {
            Which::Tokens => Signal::Tokens(ints(&numbers)),
            Which::Hidden => Signal::Hidden(Hidden::from_payload(hidden).unwrap()),
            Which::Pair => Signal::Pair((floats(&[1.0]), floats(&[2.0, 3.0]))),
        };
        let payload = signal.into_payload();
        let read = Signal::from_payload(payload.clone()).unwrap();
        let same = matches!(
            (&read, which),
            (Signal::Tokens(_), Which::Tokens) | (Signal::Hidden(_), Which::Hidden) | (Signal::Pair(_), Which::Pair)
        );
        assert!(same, "{which:?} came out as another variant");
        prop_assert_eq!(contents(&read.into_payload()), contents(&payload));
    }

    #[test]
    fn plain_values_come_out_as_they_went_in_and_as_nothing_else(
        number in any::<f64>(),
        integer in any::<i64>(),
        flag in any::<bool>(),
        text in proptest::option::of(".*"),
    ) {
        type Plain = (f64, (i64, Vec<bool>), Option<String>);
        let payload = (number, (integer, vec![flag, !flag]), text.clone()).into_payload();
        let read = Plain::from_payload(payload.clone()).unwrap();
        prop_assert_eq!((read.0.to_bits(), read.1, read.2), (number.to_bits(), (integer, vec![flag, !flag]), text));
        let refused = |error: Result<(), BoundaryError>| matches!(error, Err(BoundaryError::Structure { .. }));
        assert!(refused(<(i64, (i64, Vec<bool>), Option<String>)>::from_payload(payload.clone()).map(drop)));
        assert!(refused(<(f64, (f64, Vec<bool>), Option<String>)>::from_payload(payload.clone()).map(drop)));
        assert!(refused(<(f64, (i64, Vec<i64>), Option<String>)>::from_payload(payload.clone()).map(drop)));
        assert!(refused(<(f64, (Floats, Vec<bool>), Option<String>)>::from_payload(payload).map(drop)));
    }

    #[test]
    fn nested_lists_options_and_tuples_come_out_as_they_went_in(
        rows in proptest::collection::vec(proptest::collection::vec(proptest::option::of(numbers()), 0..4), 0..4),
        flag in any::<bool>(),
    ) {
        type Nested = (Vec<Vec<Option<Ints>>>, (), Option<(Floats, Bools)>);
        let inner = |row: &Vec<Option<Vec<i32>>>| row.iter().map(|n| n.as_ref().map(|n| ints(n))).collect::<Vec<_>>();
        let nested: Nested =
            (rows.iter().map(inner).collect(), (), flag.then(|| (floats(&[0.5]), bools(&[1, 0]))));
        let lengths: Vec<usize> = nested.0.iter().map(Vec::len).collect();
        let payload = nested.into_payload();
        let read = Nested::from_payload(payload.clone()).unwrap();
        prop_assert_eq!(read.0.iter().map(Vec::len).collect::<Vec<_>>(), lengths);
        prop_assert_eq!(read.2.is_some(), flag);
        prop_assert_eq!(contents(&read.into_payload()), contents(&payload));
    }
}

#[test]
fn tuples_of_up_to_six_come_out_as_they_went_in() {
    let (f, i, b) = (|| floats(&[1.0, 2.0]), || ints(&[3]), || bools(&[0, 1]));
    type Six = (Floats, Ints, Bools, Floats, Ints, Bools);
    let payload = (f(), i(), b(), f(), i(), b()).into_payload();
    assert_eq!(payload.tensors().count(), 6);
    assert_eq!(payload.bytes(), payload.tensors().map(AnyTensor::bytes).sum::<usize>());
    assert_eq!(there_and_back::<Six>(payload.clone()), contents(&payload));
    assert!(contents(&().into_payload()).is_empty());
}

#[test]
fn a_tensor_is_handed_on_and_not_copied_in_value() {
    let payload = AnyTensor::new(floats(&[1.5])).into_payload();
    let tensor = AnyTensor::from_payload(payload).unwrap();
    assert_eq!((tensor.kind(), tensor.rank(), tensor.bytes()), (TensorKind::Float, 2, 4));
}

fn refused<T: Boundary>(payload: Payload) -> BoundaryError {
    T::from_payload(payload).err().unwrap()
}

#[test]
fn another_kind_or_rank_is_refused_with_its_place() {
    let (expected, expected_rank) = (TensorKind::Int, 1);
    let error = refused::<(Floats, Ints)>((floats(&[1.0]), bools(&[1])).into_payload());
    assert_eq!(
        error,
        BoundaryError::Mismatch { index: 1, got: TensorKind::Bool, got_rank: 3, expected, expected_rank }
    );
    // Only tensors are counted.
    let error = refused::<(Option<Floats>, i64, Ints)>((Some(floats(&[1.0])), 3_i64, bools(&[1])).into_payload());
    assert!(matches!(error, BoundaryError::Mismatch { index: 1, .. }), "{error}");
    let rank = refused::<Ints>(ints(&[1]).unsqueeze::<2>().into_payload());
    assert_eq!(rank, BoundaryError::Mismatch { index: 0, got: TensorKind::Int, got_rank: 2, expected, expected_rank });
    let said = "tensor 0 of the payload is int of rank 2, but int of rank 1 is expected";
    assert_eq!(rank.to_string(), said);
}

#[test]
fn a_payload_that_ends_too_early_or_too_late_is_refused() {
    let one = || floats(&[1.0]);
    assert_eq!(refused::<(Floats, Floats)>(one().into_payload()), BoundaryError::Missing { expected: "a tensor" });
    assert_eq!(refused::<Floats>((one(), one(), one()).into_payload()), BoundaryError::LeftOver { left: 2 });
    assert_eq!(refused::<()>(one().into_payload()), BoundaryError::LeftOver { left: 1 });
    let expected = "whether an optional value is there";
    assert_eq!(refused::<Option<Floats>>(Payload::default()), BoundaryError::Missing { expected });
    assert_eq!(
        refused::<Vec<Floats>>(Payload::from_parts([PayloadPart::Tag(1)])),
        BoundaryError::Missing { expected: "a tensor" }
    );
}

#[test]
fn a_tensor_for_a_form_or_a_form_for_a_tensor_is_refused() {
    let form = |form| Payload::from_parts([PayloadPart::Tag(form)]);
    assert_eq!(refused::<Floats>(form(0)), BoundaryError::Structure { expected: "a tensor" });
    assert_eq!(refused::<AnyTensor>(form(0)), BoundaryError::Structure { expected: "a tensor" });
    let tensor = || floats(&[1.0]).into_payload();
    assert_eq!(refused::<Vec<Floats>>(tensor()), BoundaryError::Structure { expected: "the length of a list" });
    let expected = "whether an optional value is there";
    assert_eq!(refused::<Option<Floats>>(tensor()), BoundaryError::Structure { expected });
    assert_eq!(refused::<Option<Floats>>(form(2)), BoundaryError::Structure { expected });
    assert_eq!(refused::<Signal>(tensor()), BoundaryError::Structure { expected: "a variant of Signal" });
    assert_eq!(refused::<Signal>(form(3)), BoundaryError::Structure { expected: "a variant of Signal" });
}

#[test]
fn a_list_of_absurd_length_is_refused_without_being_made() {
    let error = refused::<Vec<Floats>>(Payload::from_parts([PayloadPart::Tag(usize::MAX - 1)]));
    assert_eq!(error, BoundaryError::Missing { expected: "a tensor" });
}

/// A program with its own type named `Result`.
mod own_result {
    use super::{Device, Floats, Payload, Tensor};
    use burn_pipeline::boundary;
    use burn_pipeline::payload::Boundary;

    #[expect(dead_code, reason = "it tests that the macro does not take it for the standard library's")]
    type Result<T> = std::result::Result<T, String>;

    #[derive(Debug)]
    enum Either {
        Left(Floats),
        Right(Pair),
    }
    boundary!(
        enum Either {
            Left(x),
            Right(pair),
        }
    );

    #[derive(Debug)]
    struct Pair {
        x: Floats,
        y: Floats,
    }
    boundary!(struct Pair { x, y });

    #[test]
    fn a_boundary_is_made_where_result_is_another_type() {
        let x = Tensor::zeros([1, 2], &Device::flex());
        let sent: Payload = Either::Right(Pair { x: x.clone(), y: x.clone() }).into_payload();
        assert!(matches!(Either::from_payload(sent), Ok(Either::Right(Pair { y, .. })) if y.dims() == [1, 2]));
        assert!(matches!(Either::from_payload(Either::Left(x).into_payload()), Ok(Either::Left(_))));
    }
}
