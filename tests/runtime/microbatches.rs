//! Cutting a batch and joining outputs: pieces are cut as in PyTorch, joining is the inverse of cutting, and
//! everything that does not fit is an error.

use crate::cases::read;
use burn::tensor::{Bool, Device, Int, Tensor};
use burn_pipeline::payload::{AnyTensor, Boundary, Payload, PayloadPart};
use burn_pipeline::stage::{Batch, MicrobatchError, Microbatches, Split};
use proptest::{prop_assert, prop_assert_eq, proptest};

/// Samples, requested microbatches, and the sizes that PyTorch 2.7.1's `split_args_kwargs_into_chunks` gives for
/// one tensor (its `torch.tensor_split`).
#[rustfmt::skip]
const PYTORCH: &[(usize, usize, &[usize])] = &[
    (1, 2, &[1]),
    (1, 3, &[1]),
    (1, 4, &[1]),
    (1, 5, &[1]),
    (1, 8, &[1]),
    (3, 2, &[2, 1]),
    (3, 3, &[1, 1, 1]),
    (3, 4, &[1, 1, 1]),
    (3, 5, &[1, 1, 1]),
    (3, 8, &[1, 1, 1]),
    (5, 2, &[3, 2]),
    (5, 3, &[2, 2, 1]),
    (5, 4, &[2, 1, 1, 1]),
    (5, 5, &[1, 1, 1, 1, 1]),
    (5, 8, &[1, 1, 1, 1, 1]),
    (7, 2, &[4, 3]),
    (7, 3, &[3, 2, 2]),
    (7, 4, &[2, 2, 2, 1]),
    (7, 5, &[2, 2, 1, 1, 1]),
    (7, 8, &[1, 1, 1, 1, 1, 1, 1]),
    (10, 2, &[5, 5]),
    (10, 3, &[4, 3, 3]),
    (10, 4, &[3, 3, 2, 2]),
    (10, 5, &[2, 2, 2, 2, 2]),
    (10, 8, &[2, 2, 1, 1, 1, 1, 1, 1]),
    (13, 2, &[7, 6]),
    (13, 3, &[5, 4, 4]),
    (13, 4, &[4, 3, 3, 3]),
    (13, 5, &[3, 3, 3, 2, 2]),
    (13, 8, &[2, 2, 2, 2, 2, 1, 1, 1]),
    (16, 2, &[8, 8]),
    (16, 3, &[6, 5, 5]),
    (16, 4, &[4, 4, 4, 4]),
    (16, 5, &[4, 3, 3, 3, 3]),
    (16, 8, &[2, 2, 2, 2, 2, 2, 2, 2]),
    (32, 2, &[16, 16]),
    (32, 3, &[11, 11, 10]),
    (32, 4, &[8, 8, 8, 8]),
    (32, 5, &[7, 7, 6, 6, 6]),
    (32, 8, &[4, 4, 4, 4, 4, 4, 4, 4]),
];

fn counting(samples: usize, width: usize) -> Tensor<2, Int> {
    Tensor::<1, Int>::arange(0..(samples * width) as i64, &Device::flex()).reshape([samples, width])
}

fn floats(shape: [usize; 2]) -> Tensor<2> {
    counting(shape[0], shape[1]).float()
}

fn sizes(cut: &Microbatches) -> Vec<usize> {
    (0..cut.len()).map(|piece| cut.size(piece)).collect()
}

fn only(payload: &Payload) -> &AnyTensor {
    let mut tensors = payload.tensors();
    tensors.next().filter(|_| tensors.next().is_none()).unwrap()
}

#[test]
fn pieces_have_the_sizes_that_pytorch_gives() {
    for &(samples, count, expected) in PYTORCH {
        let cut = Batch::new(counting(samples, 2)).target(counting(samples, 1)).cut(count).unwrap();
        assert_eq!(sizes(&cut), expected, "{samples} samples in {count}");
        // PyTorch cuts targets into `count` pieces, some empty; here they are cut like their inputs.
        for (piece, &size) in expected.iter().enumerate() {
            assert_eq!(only(&cut.input(piece)).shape().to_vec(), [size, 2]);
            assert_eq!(only(&cut.target(piece).unwrap()).shape().to_vec(), [size, 1]);
        }
    }
}

proptest! {
    #[test]
    fn pieces_differ_by_at_most_one_larger_first_and_none_is_empty(samples in 1usize..60, count in 1usize..20) {
        let cut = Batch::new(counting(samples, 1)).cut(count).unwrap();
        let sizes = sizes(&cut);
        prop_assert_eq!(sizes.len(), count.min(samples));
        prop_assert_eq!((sizes.iter().sum::<usize>(), cut.samples()), (samples, samples));
        prop_assert!(sizes.is_sorted_by(|a, b| a >= b), "{sizes:?}");
        prop_assert!(sizes[0] - sizes[sizes.len() - 1] <= 1 && sizes[sizes.len() - 1] > 0, "{sizes:?}");
    }

    #[test]
    fn joined_pieces_are_the_batch(
        samples in 1usize..30, count in 1usize..10, width in 1usize..5, dims in proptest::array::uniform3(0usize..3)
    ) {
        let tensor = counting(samples, width * 2).reshape([samples, width, 2]);
        // Each tensor has its samples along its own dimension.
        let turned = |place: usize| tensor.clone().swap_dims(0, dims[place]);
        let flags = turned(1).lower_elem((samples * width) as i64);
        let whole = (turned(0), Some(flags.clone()), vec![turned(2).float()]);
        type Whole = (Tensor<3, Int>, Option<Tensor<3, Bool>>, Vec<Tensor<3>>);
        let cut = Batch::new(whole.clone()).split_input(dims.map(Split::Dim).to_vec()).cut(count).unwrap();
        let pieces = || (0..cut.len()).map(|piece| cut.input(piece)).collect();
        let joined = Whole::from_payload(Microbatches::join(pieces(), Some(&dims)).unwrap()).unwrap();
        if dims == [0; 3] {
            let alike = Whole::from_payload(Microbatches::join(pieces(), None).unwrap()).unwrap();
            prop_assert_eq!(alike.0.into_data(), joined.0.clone().into_data());
        }
        prop_assert_eq!(joined.0.into_data(), whole.0.into_data());
        prop_assert_eq!(joined.1.unwrap().into_data(), flags.into_data());
        prop_assert_eq!(joined.2[0].clone().into_data(), whole.2[0].clone().into_data());
    }

    #[test]
    fn inputs_targets_and_extras_are_cut_alike(samples in 1usize..30, count in 1usize..10) {
        let row = || Tensor::<1, Int>::arange(0..samples as i64, &Device::flex());
        let batch = Batch::new(row().unsqueeze::<2>()).split_input(vec![Split::Dim(1)]).target(row());
        let batch = batch.extra("a", row().float()).extra("b", (row(), row().unsqueeze_dim::<2>(1)));
        let cut = batch.cut(count).unwrap();
        let mut start = 0;
        for piece in 0..cut.len() {
            let expected: Vec<f32> = (start..start + cut.size(piece)).map(|i| i as f32).collect();
            start += cut.size(piece);
            let extra = cut.extra(0, &["b", "a"], piece).unwrap();
            prop_assert_eq!(extra.tensors().map(|tensor| tensor.rank()).collect::<Vec<_>>(), [1, 2, 1]);
            let (input, target) = (cut.input(piece), cut.target(piece).unwrap());
            for tensor in input.tensors().chain(target.tensors()).chain(extra.tensors()) {
                prop_assert_eq!(read(tensor), expected.clone());
            }
        }
    }
}

#[test]
fn a_replicated_tensor_goes_whole_to_every_microbatch() {
    let table = floats([3, 2]);
    let batch = Batch::new((counting(7, 1), table.clone())).split_input(vec![Split::Dim(0), Split::Replicate]);
    let cut = batch.extra("table", table.clone()).split_extra("table", vec![Split::Replicate]).cut(4).unwrap();
    assert_eq!(sizes(&cut), [2, 2, 2, 1]);
    for piece in 0..4 {
        let (_, whole) = <(Tensor<2, Int>, Tensor<2>)>::from_payload(cut.input(piece)).unwrap();
        assert_eq!(whole.into_data(), table.clone().into_data());
        assert_eq!(read(only(&cut.extra(0, &["table"], piece).unwrap())), [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
    }
}

fn refused(batch: Batch) -> MicrobatchError {
    batch.cut(4).unwrap_err()
}

#[test]
fn split_rules_that_are_not_one_a_tensor_are_refused() {
    let error = |what: &str, tensors, splits| MicrobatchError::SplitCount { what: what.to_owned(), tensors, splits };
    let (one, two) = (vec![Split::Dim(0)], vec![Split::Dim(0); 2]);
    assert_eq!(refused(Batch::new(floats([8, 1])).split_input(two.clone())), error("the input", 1, 2));
    assert_eq!(refused(Batch::new((floats([8, 1]), floats([8, 1]))).split_input(one)), error("the input", 2, 1));
    let target = Batch::new(floats([8, 1])).target(floats([8, 1])).split_target(two.clone());
    assert_eq!(refused(target), error("the target", 1, 2));
    let extra = Batch::new(floats([8, 1])).extra("mask", floats([8, 1])).split_extra("mask", two);
    assert_eq!(refused(extra), error("the extra `mask`", 1, 2));
}

#[test]
fn a_dimension_that_does_not_exist_is_refused() {
    let error = |what: &str, rank, dim| MicrobatchError::NoSuchDim { what: what.to_owned(), tensor: 0, rank, dim };
    assert_eq!(refused(Batch::new(floats([8, 1])).split_input(vec![Split::Dim(2)])), error("the input", 2, 2));
    let target = Batch::new(floats([8, 1])).target(floats([8, 1])).split_target(vec![Split::Dim(5)]);
    assert_eq!(refused(target), error("the target", 2, 5));
}

/// PyTorch refuses arguments of 8 and 2 or of 4 and 3 samples in 4 chunks, and cuts ones of 2 and 8 or of 3 and 4
/// into pieces that do not match. Here the numbers of samples must agree.
#[test]
fn tensors_that_disagree_on_the_number_of_samples_are_refused() {
    for (expected, got) in [(8, 2), (4, 3), (2, 8), (3, 4)] {
        let what = |what: &str, tensor| MicrobatchError::SampleCount { what: what.to_owned(), tensor, got, expected };
        let first = || floats([expected, 1]);
        assert_eq!(refused(Batch::new((first(), floats([got, 1])))), what("the input", 1));
        assert_eq!(refused(Batch::new(first()).target(floats([got, 1]))), what("the target", 0));
        assert_eq!(refused(Batch::new(first()).extra("mask", floats([got, 1]))), what("the extra `mask`", 0));
    }
    for agreed in [8, 3] {
        let cut = Batch::new((floats([agreed, 1]), floats([agreed, 2]))).cut(4).unwrap();
        assert_eq!(sizes(&cut), if agreed == 8 { vec![2; 4] } else { vec![1; 3] });
    }
}

#[test]
fn one_row_beside_several_samples_is_told_how_all_of_them_get_it() {
    let mask = Batch::new(floats([4, 1])).extra("mask", floats([1, 4])).cut(2).unwrap_err();
    assert!(mask.to_string().contains("`Split::Replicate`"), "{mask}");
    let two = Batch::new(floats([4, 1])).extra("mask", floats([2, 4])).cut(2).unwrap_err();
    assert!(!two.to_string().contains("Replicate"), "{two}");
}

#[test]
fn a_batch_without_samples_is_refused() {
    assert_eq!(refused(Batch::new(floats([0, 3]))), MicrobatchError::Empty);
    assert_eq!(Batch::new(floats([3, 3])).cut(0).unwrap_err(), MicrobatchError::Empty);
    let replicated = Batch::new(floats([3, 3])).split_input(vec![Split::Replicate]);
    assert_eq!(refused(replicated), MicrobatchError::NothingToCut);
    assert_eq!(refused(Batch::new(())), MicrobatchError::NothingToCut);
}

#[test]
fn a_missing_extra_is_named_with_the_stage_that_reads_it() {
    let cut = Batch::new(floats([4, 1])).extra("mask", floats([4, 1])).cut(2).unwrap();
    let error = cut.extra(3, &["mask", "documents"], 0).unwrap_err();
    assert_eq!(error, MicrobatchError::MissingExtra { stage: 3, name: "documents".to_owned() });
    assert!(error.to_string().contains("stage 3 reads the extra `documents`"), "{error}");
}

#[test]
fn outputs_of_different_forms_cannot_be_joined() {
    let refuse = |outputs: Vec<Payload>, dim| {
        let dims = vec![dim; outputs[0].tensors().count()];
        Microbatches::join(outputs, Some(&dims)).unwrap_err()
    };
    let one = |shape| floats(shape).into_payload();
    let cases = [
        ("another width", vec![one([2, 3]), one([2, 4])], 0),
        ("more tensors", vec![one([2, 3]), (floats([2, 3]), floats([2, 3])).into_payload()], 0),
        ("fewer tensors", vec![(floats([2, 3]), floats([2, 3])).into_payload(), one([2, 3])], 0),
        ("another kind", vec![one([2, 3]), counting(2, 3).into_payload()], 0),
        ("another rank", vec![one([2, 3]), floats([2, 3]).unsqueeze::<3>().into_payload()], 0),
        ("no such dimension", vec![one([2, 3]), one([2, 3])], 2),
        (
            "another form",
            vec![Payload::from_parts([PayloadPart::Tag(0)]), Payload::from_parts([PayloadPart::Tag(1)])],
            0,
        ),
        ("a form and a tensor", vec![Payload::from_parts([PayloadPart::Tag(0)]), one([2, 3])], 0),
        (
            "an option that is there once",
            vec![Some(floats([1, 1])).into_payload(), None::<Tensor<2>>.into_payload()],
            0,
        ),
    ];
    for (what, outputs, dim) in cases {
        assert_eq!(refuse(outputs, dim), MicrobatchError::Structure, "{what}");
    }
    assert_eq!(Microbatches::join(Vec::new(), None).unwrap().parts().count(), 0);
    let two = vec![(floats([2, 3]), floats([2, 3])).into_payload()];
    let error = Microbatches::join(two, Some(&[0])).unwrap_err();
    assert_eq!(error, MicrobatchError::JoinCount { tensors: 2, dims: 1 });
}

#[test]
fn split_rules_may_come_first_but_never_for_something_that_is_not_there() {
    let (x, mask) = (floats([4, 1]), floats([3, 1]));
    let early = || Batch::new(x.clone()).split_extra("mask", vec![Split::Replicate]);
    let cut = early().extra("mask", mask).cut(2).unwrap();
    assert_eq!(cut.extra(0, &["mask"], 1).unwrap().tensors().next().unwrap().shape()[0], 3);
    let named = |what: &str| MicrobatchError::SplitOfNothing { what: what.to_owned() };
    assert_eq!(early().cut(2).unwrap_err(), named("the extra `mask`"));
    let target = Batch::new(x).split_target(vec![Split::Dim(0)]);
    assert_eq!(target.cut(2).unwrap_err(), named("the target"));
}
