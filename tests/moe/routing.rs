//! Routers and row placement, compared with loops on the host, over random sizes.

use crate::cases::noise;
use burn::module::{Module, Param};
use burn::tensor::{Device, Int, Tensor};
use burn_pipeline::stage::init_seeded;
use burn_pipeline_moe::router::{Capacity, RouterConfig, Scoring, TokenDispatch, top_k};
use proptest::prelude::{ProptestConfig, Strategy, prop_assert, prop_assert_eq, proptest};

fn matrix(values: &[f32], columns: usize) -> Tensor<2> {
    Tensor::<1>::from_floats(values, &Device::flex()).reshape([values.len() / columns, columns])
}

fn ints<const D: usize>(tensor: Tensor<D, Int>) -> Vec<usize> {
    tensor.into_data().iter::<i64>().map(|x| x as usize).collect()
}

fn floats<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.into_data().iter::<f32>().collect()
}

/// The `k` best experts of a row, by sorting: larger scores first, and the lower index among equal ones.
fn best(row: &[f32], k: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..row.len()).collect();
    order.sort_by(|&a, &b| row[b].total_cmp(&row[a]).then(a.cmp(&b)));
    order.truncate(k);
    order
}

/// Which choices are kept, `[token][choice]`: first choices of all tokens come first.
fn kept(chosen: &[Vec<usize>], experts: usize, capacity: usize) -> Vec<Vec<bool>> {
    let mut taken = vec![0; experts];
    let mut kept = vec![vec![false; chosen[0].len()]; chosen.len()];
    for choice in 0..chosen[0].len() {
        for (token, experts) in chosen.iter().enumerate() {
            let expert = experts[choice];
            kept[token][choice] = taken[expert] < capacity;
            taken[expert] += 1;
        }
    }
    kept
}

fn sizes() -> impl Strategy<Value = (usize, usize, usize, u64)> {
    (1usize..12, 1usize..7).prop_flat_map(|(tokens, experts)| {
        (proptest::strategy::Just(tokens), proptest::strategy::Just(experts), 1..=experts, 0u64..1000)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn top_k_is_what_sorting_finds((rows, columns, k, seed) in sizes()) {
        // Few different values, and one zero, so that ties are common.
        let values: Vec<f32> = noise(seed, rows * columns).iter().map(|x| (x * 3.0).round() + 0.0).collect();
        let expected: Vec<usize> = values.chunks(columns).flat_map(|row| best(row, k)).collect();
        prop_assert_eq!(ints(top_k(matrix(&values, columns), k)), expected);
    }

    #[test]
    fn tokens_reach_their_experts_and_come_back((tokens, experts, k, seed) in sizes(), factor in 0.3f64..2.5) {
        let (d, scores) = (3, noise(seed, tokens * experts));
        let chosen: Vec<Vec<usize>> = scores.chunks(experts).map(|row| best(row, k)).collect();
        let choices: Vec<i32> = chosen.iter().flatten().map(|&e| e as i32).collect();
        let choices = Tensor::<1, Int>::from_ints(&*choices, &Device::flex()).reshape([tokens, k]);
        let load: Vec<usize> = (0..experts).map(|e| chosen.iter().flatten().filter(|&&c| c == e).count()).collect();
        let (x, gates) = (noise(seed + 1, tokens * d), noise(seed + 2, tokens * k));
        for capacity in [Capacity::Factor(factor), Capacity::Dropless] {
            let places = TokenDispatch::new(choices.clone(), experts, capacity);
            let room = match capacity {
                Capacity::Factor(_) => {
                    ((factor * (tokens * k) as f64 / experts as f64).ceil() as usize).clamp(1, tokens)
                }
                Capacity::Dropless => *load.iter().max().unwrap(),
            };
            prop_assert_eq!(places.capacity, room);
            prop_assert_eq!(ints(places.load.clone()), load.clone());
            let kept = kept(&chosen, experts, room);
            let lost = kept.iter().flatten().filter(|&&kept| !kept).count();
            prop_assert_eq!(ints(places.dropped.clone()), vec![lost]);
            prop_assert!(capacity != Capacity::Dropless || lost == 0);
            // Expert e multiplies by e + 1, so that a row at the wrong expert is noticed.
            let by_expert = Tensor::<1, Int>::arange(1..experts as i64 + 1, &Device::flex()).float();
            let by_expert = by_expert.reshape([experts, 1, 1]);
            let rows = places.dispatch(matrix(&x, d));
            prop_assert_eq!(rows.dims(), [experts, room, d]);
            let rows = rows * by_expert.expand([experts, room, d]);
            let got = floats(places.combine(rows, matrix(&gates, k)));
            for token in 0..tokens {
                for i in 0..d {
                    let choice = |c: usize| {
                        let factor = (chosen[token][c] + 1) as f32 * gates[token * k + c];
                        if kept[token][c] { x[token * d + i] * factor } else { 0.0 }
                    };
                    let expected: f32 = (0..k).map(choice).sum();
                    prop_assert!((got[token * d + i] - expected).abs() < 1e-4);
                }
            }
        }
    }
}

#[test]
fn gates_are_scores_of_the_chosen_normalised_where_asked() {
    let x = matrix(&noise(5, 6 * 4), 4);
    for (scoring, normalize, k) in [
        (Scoring::Softmax, true, 2),
        (Scoring::Softmax, false, 2),
        (Scoring::Softmax, true, 1),
        (Scoring::Sigmoid, true, 3),
        (Scoring::Sigmoid, true, 1),
    ] {
        let config = RouterConfig::new(4, 5).with_top_k(k).with_scoring(scoring).with_normalize(normalize);
        let router = init_seeded(21, &Device::flex(), |device| config.init(device));
        let routing = router.forward(x.clone());
        let (logits, means) = (floats(routing.logits), floats(routing.mean_probabilities));
        let (mut expected_means, mut expected_load) = ([0.0f32; 5], [0usize; 5]);
        let (experts, gates) = (ints(routing.experts), floats(routing.gates));
        for token in 0..6 {
            let row = &logits[token * 5..][..5];
            let score: Vec<f32> = match scoring {
                Scoring::Sigmoid => row.iter().map(|x| 1.0 / (1.0 + (-x).exp())).collect(),
                Scoring::Softmax => row.iter().map(|x| x.exp() / row.iter().map(|x| x.exp()).sum::<f32>()).collect(),
            };
            assert_eq!(experts[token * k..][..k], best(row, k));
            let sum: f32 = best(row, k).iter().map(|&e| score[e]).sum();
            // A single choice is never divided by itself: its gate would not depend on the router.
            let divisor = if normalize && k > 1 { sum } else { 1.0 };
            for (c, &e) in best(row, k).iter().enumerate() {
                assert!((gates[token * k + c] - score[e] / divisor).abs() < 1e-5, "{scoring:?} {normalize} {k}");
            }
            let all: f32 = score.iter().sum();
            expected_means.iter_mut().zip(&score).for_each(|(mean, score)| *mean += score / all / 6.0);
            best(row, k).into_iter().for_each(|expert| expected_load[expert] += 1);
        }
        assert!(means.iter().zip(expected_means).all(|(mean, expected)| (mean - expected).abs() < 1e-5));
        assert_eq!(ints(routing.load), expected_load);
    }
}

#[test]
fn an_expert_bias_changes_who_is_chosen_but_not_the_gates_and_moves_towards_balance() {
    let device = Device::flex();
    let config = RouterConfig::new(4, 3).with_expert_bias(true).with_scoring(Scoring::Sigmoid);
    let mut router = init_seeded(22, &device, |device| config.init(device));
    let x = matrix(&noise(6, 8 * 4), 4);
    router.bias = router.bias.map(|bias| Param::initialized(bias.id, Tensor::from_floats([0.0, 0.0, 5.0], &device)));
    let routing = router.forward(x.clone());
    assert!(ints(routing.experts).chunks(2).all(|chosen| chosen[0] == 2), "the expert with a large bias is not chosen");
    let gates = floats(routing.gates);
    assert!(gates.chunks(2).all(|gates| gates[0] < 0.7), "the bias changes the gate: {gates:?}");
    // The overloaded expert's bias falls and the others' rise by the rate, however large the difference.
    let moved = router.with_updated_bias(&[2.0, 4.0, 30.0], 0.25).bias.unwrap().val();
    assert_eq!(floats(moved), [0.25, 0.25, 4.75]);
    let trained = init_seeded(23, &device.autodiff(), |device| config.init(device));
    assert!(
        !trained.bias.as_ref().unwrap().val().is_require_grad(),
        "the bias must not be trained by gradient descent"
    );
    assert_eq!(trained.num_params(), 4 * 3 + 3);
}

#[test]
#[should_panic(expected = "choose 1 to 3")]
fn more_choices_than_experts_are_refused() {
    RouterConfig::new(4, 3).with_top_k(4).init(&Device::flex());
}
