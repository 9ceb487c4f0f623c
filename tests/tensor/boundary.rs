//! Activations that cross stage boundaries in pieces: how many bytes move, also along skips, and what is refused.

use crate::model::{batch, builder_of, weights};
use crate::plain::{Config, SEQUENCE};
use crate::watched::counted;
use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::SgdConfig;
use burn::tensor::{Device, Tensor};
use burn_pipeline::nn::{ColumnLinear, RowLinear};
use burn_pipeline::payload::{Boundary, PayloadSpec, Skips, Validate};
use burn_pipeline::stage::{SplitBackward, Stage, StageBox};
use burn_pipeline::tensor_parallel::{Cut, TensorGroup};
use burn_pipeline::train::GroupSizes;
use burn_pipeline::{Batch, Builder, Pipeline, Size, StageContext, init_seeded};
use pipeline_tests::reference::Reference;

#[test]
fn bytes_at_a_boundary_fall_to_the_groups_share() {
    for members in [2, 3] {
        // Both group sizes divide the heads, the hidden features and the vocabulary.
        let config = Config { width: 12, heads: 6, hidden: 12, vocab: 24, blocks: 2, ..SEQUENCE };
        let sent = |sequence| {
            let config = Config { sequence, ..config };
            let build = || builder_of(config, ("1F1B", 1), (2, 1, members));
            counted(2 * members, build, |pipeline| drop(pipeline.step(batch(&config, 8), 0.5).unwrap()))
        };
        let (whole, pieces) = (sent(false), sent(true));
        // 8 samples of 6 positions and 12 features of 4 bytes, from each member to its counterpart, and back.
        assert_eq!(whole.len(), 2 * members);
        for ((from, to, kind), bytes) in &whole {
            assert_eq!((*from + members) % (2 * members), *to);
            assert_eq!(*bytes, 8 * 6 * 12 * 4, "{kind}");
            assert_eq!(pieces[&(*from, *to, kind.clone())] * members, *bytes, "{kind} from {from} to {to}");
        }
        assert_eq!(pieces.len(), whole.len());
    }
}

pub(crate) const WIDTH: usize = 6;

/// `x + down(up(x))`; on stage 2, `x + s + down(up(x + s))`, where `s` is stage 0's output.
#[derive(Module, Debug)]
struct Plain {
    up: Linear,
    down: Linear,
}

fn plain(stage: usize, device: &Device) -> Plain {
    init_seeded(stage as u64, device, |device| Plain {
        up: LinearConfig::new(WIDTH, 6).init(device),
        down: LinearConfig::new(6, WIDTH).init(device),
    })
}

/// The same in pieces along axis 1, which the stages in `cut` pass on.
#[derive(Module, Debug)]
struct Part {
    up: ColumnLinear,
    down: RowLinear,
    #[module(skip)]
    group: TensorGroup,
    /// The group that its output claims to be cut over, if not its own.
    #[module(skip)]
    claims: Option<TensorGroup>,
    #[module(skip)]
    place: (usize, usize),
}

impl Stage for Part {
    type Input = (Option<Tensor<3>>, Option<Cut<3, 1>>, Skips<Cut<3, 1>>);
    type Extra = ();
    type Output = (Option<Tensor<3>>, Option<Cut<3, 1>>, Skips<Cut<3, 1>>);

    fn forward(&self, (whole, piece, skips): Self::Input, (): ()) -> Self::Output {
        let group = &self.group;
        let piece = piece.map(|piece| piece.piece(group));
        let x = piece.unwrap_or_else(|| group.scatter_to(whole.unwrap(), 1));
        let x = skips.0.into_iter().fold(x, |x, skip| x + skip.piece(group));
        let y = x.clone() + self.down.forward_cut(self.up.forward_cut(x, 1), 1);
        let (index, stages) = self.place;
        let skips = Skips(if index == 0 { vec![Cut::new(y.clone(), group)] } else { Vec::new() });
        match index + 1 == stages {
            true => (Some(group.gather_from(y, 1)), None, skips),
            false => (None, Some(Cut::new(y, self.claims.as_ref().unwrap_or(group))), skips),
        }
    }
}

pub(crate) fn part(at: &StageContext, claims: Option<TensorGroup>) -> StageBox {
    let Plain { up, down } = plain(at.index, &at.device);
    let (up, down) = (ColumnLinear::cut(up, &at.group), RowLinear::cut(down, &at.group));
    let part = Part { up, down, group: at.group.clone(), claims, place: (at.index, at.stages) };
    match at.is_last() {
        false => StageBox::new(part),
        true => StageBox::with_loss(part, |(y, _, _): <Part as Stage>::Output, t: Tensor<3>| {
            (y.unwrap() - t).square().mean()
        }),
    }
}

pub(crate) fn skipping(members: impl Into<GroupSizes>, split: SplitBackward, compile: bool) -> Builder {
    Pipeline::builder()
        .schedule("ZBH1", Size::new(3, 4))
        .skip(0, 2)
        .devices(vec![Device::flex()])
        .stages(|at| part(at, None))
        .optimizer(|| SgdConfig::new().init())
        .split(split)
        .compile(compile)
        .tensor_parallel(members)
}

fn data() -> (Tensor<3>, Tensor<3>) {
    let x = Tensor::<1, burn::tensor::Int>::arange(0..(8 * 6 * WIDTH) as i64, &Device::flex()).float();
    let x = x.reshape([8, 6, WIDTH]);
    (x.clone().sin(), (x * 0.7).cos())
}

pub(crate) fn skipping_batch() -> Batch {
    let (x, target) = data();
    Batch::new((Some(x), None::<Cut<3, 1>>, Skips::<Cut<3, 1>>(Vec::new()))).target(target)
}

#[test]
fn skips_in_pieces_train_as_the_plain_loop_does_and_move_their_share() {
    let device = Device::flex().autodiff();
    let model: Vec<Plain> = (0..3).map(|stage| plain(stage, &device)).collect();
    let mut reference = Reference::resumed(model, SgdConfig::new().init());
    let (x, target) = data();
    let expected = reference.step(&[2; 4], 0.3, None, |model: &Vec<Plain>, i| {
        let piece = |of: &Tensor<3>| of.clone().narrow(0, 2 * i, 2).autodiff();
        let run = |part: &Plain, x: Tensor<3>| x.clone() + part.down.forward(part.up.forward(x));
        let first = run(&model[0], piece(&x));
        let y = run(&model[2], run(&model[1], first.clone()) + first);
        (y - piece(&target)).square().mean()
    });
    for (sizes, split, compile) in [
        ([1; 3], SplitBackward::Eager, false),
        ([2; 3], SplitBackward::Eager, false),
        ([2; 3], SplitBackward::Captured, false),
        ([3; 3], SplitBackward::Captured, true),
        // The skip goes past a group of another size, to one that may have a third size.
        ([2, 1, 2], SplitBackward::Eager, false),
        ([1, 3, 3], SplitBackward::Captured, false),
        ([6, 2, 1], SplitBackward::Captured, true),
        ([2, 1, 6], SplitBackward::Eager, false),
    ] {
        let place = format!("{sizes:?}, {split:?}, compiled: {compile}");
        let build = || skipping(sizes, split, compile).validate(Validate::EveryMicrobatch);
        let bytes = counted(sizes.iter().sum(), build, |pipeline| {
            let report = pipeline.step(skipping_batch(), 0.3).unwrap();
            assert!((report.loss - expected.loss).abs() < 1e-5 * expected.loss, "{place}: {}", report.loss);
            let got = weights(pipeline);
            let pairs = got.iter().flatten().zip(reference.weights().into_iter().flatten());
            let apart = pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(apart < 2e-6, "{place}: weights differ by {apart}");
        });
        // Metadata are learned in two runs on zeros, with the microbatch's 2 samples and with 3.
        let of = |kind: &str| bytes.iter().filter(|(key, _)| key.2 == kind).map(|(_, bytes)| *bytes).sum::<usize>();
        for (kind, boundaries) in [("activation", 2), ("gradient", 2), ("skip", 1), ("skip gradient", 1)] {
            assert_eq!(of(kind), boundaries * (8 + 2 + 3) * 6 * WIDTH * 4, "{place}: {kind}, of all members together");
        }
    }
}

#[test]
fn metadata_and_validation_name_piece_and_whole() {
    let mut pipeline = skipping(2, SplitBackward::Eager, false).build().unwrap();
    let metadata = pipeline.metadata(skipping_batch()).unwrap();
    let output = metadata[0].1.output.clone().unwrap().to_string();
    assert!(output.contains("float F32 [?, 3, 6], a piece of [?, 6, 6] cut along axis 1 over 2 rank(s)"), "{output}");
    // The last stage declares an input of another width.
    let wrong = skipping(2, SplitBackward::Eager, false).validate(Validate::FirstStep).stages(|at| {
        let piece = || Cut::<3, 1>::new(Tensor::zeros([2, 3, WIDTH + 2], &Device::flex()), &at.group);
        let spec = PayloadSpec::of((None::<Tensor<3>>, Some(piece()), Skips(vec![piece()])));
        let stage = part(at, None);
        if at.is_last() { stage.declare(spec.free(0), None) } else { stage }
    });
    let error = wrong.build().unwrap().step(skipping_batch(), 0.3).unwrap_err().to_string();
    for words in [
        "[?, 3, 8], a piece of [?, 6, 8] cut along axis 1 over 2 rank(s)",
        "3, 6], a piece of [",
        "6, 6] cut along axis 1",
    ] {
        assert!(error.contains(words), "{words}: {error}");
    }
}

#[test]
fn pieces_that_are_cut_otherwise_are_refused_with_both_shapes() {
    let group = TensorGroup::alone();
    let x = || Tensor::<3>::zeros([2, 3, 4], &Device::flex());
    let error = Cut::<3, 1>::from_payload(Cut::<3, 0>::new(x(), &group).into_payload()).unwrap_err().to_string();
    let got = "tensor 0 of the payload is float F32 [2, 3, 4], a piece of [2, 3, 4] cut along axis 0 over 1 rank(s), ";
    assert_eq!(
        error,
        format!("{got}but a piece of a float tensor of rank 3 that is cut along axis 1 over a group is expected")
    );
    let error = Cut::<3, 1>::from_payload(x().into_payload()).unwrap_err().to_string();
    assert!(error.contains("is float F32 [2, 3, 4], but a piece of"), "{error}");
    let second = (Some(x()), x()).into_payload();
    let error = <(Option<Tensor<3>>, Cut<3, 1>)>::from_payload(second).unwrap_err().to_string();
    assert!(error.starts_with("tensor 1 of the payload is"), "{error}");
    let error = Tensor::<3>::from_payload(Cut::<3, 1>::new(x(), &group).into_payload()).unwrap_err().to_string();
    assert!(
        error.contains("a piece of [2, 3, 4]") && error.ends_with("but a whole float tensor of rank 3 is expected")
    );
    assert!(Cut::<3, 1>::from_payload(Default::default()).is_err());
}

#[test]
fn pieces_of_another_group_than_the_stages_own_are_refused() {
    let mut pipeline = skipping(2, SplitBackward::Eager, false)
        .stages(|at| part(at, (at.index == 1).then(TensorGroup::alone)))
        .build()
        .unwrap();
    let error = pipeline.step(skipping_batch(), 0.3).unwrap_err().to_string();
    assert!(error.contains("stage 2, microbatch 0, F"), "{error}");
    assert!(
        error.contains(
            "the piece [2, 3, 6] of [2, 3, 6] is cut along axis 1 over 1 rank(s), but this stage's group has 2"
        ),
        "{error}"
    );
}
