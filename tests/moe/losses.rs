//! Auxiliary losses, compared with closed forms and with loops on the host.

use crate::cases::noise;
use burn::tensor::{Bool, Device, Int, Tensor};
use burn_pipeline_moe::auxiliary::{
    AuxiliaryLosses, AuxiliaryWeights, LayerObservation, combine_microbatches, observation_rows, parse_rows,
};
use burn_pipeline_moe::layers::{BlockKind, LayerAuxiliary};
use burn_pipeline_moe::losses::{depth_router, load_balance, router_z};

fn number(tensor: Tensor<1>) -> f64 {
    tensor.into_scalar::<f32>() as f64
}

fn matrix(seed: u64, rows: usize, columns: usize) -> (Tensor<2>, Vec<Vec<f64>>) {
    let values = noise(seed, rows * columns);
    let host = values.chunks(columns).map(|row| row.iter().map(|&x| x as f64).collect()).collect();
    (Tensor::<1>::from_floats(&*values, &Device::flex()).reshape([rows, columns]), host)
}

#[test]
fn load_balance_is_one_where_even_and_the_number_of_experts_where_one_gets_all() {
    let device = Device::flex();
    let even = Tensor::<2>::full([6, 4], 0.25, &device);
    let loads = |loads: [i64; 4]| Tensor::<1, Int>::from_ints(loads, &device);
    assert!((number(load_balance(even, loads([3, 3, 3, 3]))) - 1.0).abs() < 1e-6);
    let one = Tensor::<2>::from_floats([[0.0, 0.0, 1.0, 0.0]; 6], &device);
    assert!((number(load_balance(one.clone(), loads([0, 0, 12, 0]))) - 4.0).abs() < 1e-6);
    // Without routed tokens the loss is zero, with no division by zero.
    assert_eq!(number(load_balance(one, loads([0; 4]))), 0.0);
}

#[test]
fn load_balance_is_the_sum_of_shares_times_mean_probabilities() {
    let (logits, host) = matrix(1, 7, 5);
    let load = [4, 0, 7, 2, 1];
    let got = load_balance(logits, Tensor::<1, Int>::from_ints(load, &Device::flex()));
    let mean = |e: usize| host.iter().map(|row| row[e]).sum::<f64>() / 7.0;
    let expected: f64 = (0..5).map(|e| 5.0 * load[e] as f64 / 14.0 * mean(e)).sum();
    assert!((number(got) - expected).abs() < 1e-6);
}

#[test]
fn router_z_is_the_mean_squared_log_sum_and_survives_large_logits() {
    let (logits, host) = matrix(2, 6, 3);
    let log_sum = |row: &Vec<f64>| row.iter().map(|x| x.exp()).sum::<f64>().ln();
    let expected = host.iter().map(|row| log_sum(row).powi(2)).sum::<f64>() / 6.0;
    assert!((number(router_z(logits)) - expected).abs() < 1e-5);
    let device = Device::flex();
    let zeros = Tensor::<2>::zeros([2, 8], &device);
    assert!((number(router_z(zeros)) - 8f64.ln().powi(2)).abs() < 1e-5);
    let large = Tensor::<2>::from_floats([[1000.0, 0.0], [-1000.0, -1000.0]], &device);
    let expected = (1000f64.powi(2) + (2f64.ln() - 1000.0).powi(2)) / 2.0;
    assert!((number(router_z(large)) / expected - 1.0).abs() < 1e-5);
}

#[test]
fn depth_router_is_the_binary_cross_entropy_of_the_choice() {
    let (logits, host) = matrix(3, 4, 5);
    let chosen = logits.clone().greater_scalar(0.2);
    let one = |x: f64| if x > 0.2 { (1.0 + (-x).exp()).ln() } else { (1.0 + x.exp()).ln() };
    let expected = host.iter().flatten().map(|&x| one(x)).sum::<f64>() / 20.0;
    assert!((number(depth_router(logits, chosen)) - expected).abs() < 1e-6);
    let certain = Tensor::<2>::from_floats([[200.0, -200.0]], &Device::flex());
    let right = Tensor::<2, Bool>::from_data([[true, false]], &Device::flex());
    assert!(number(depth_router(certain, right)) < 1e-6, "the loss of a certain, correct router");
}

fn one(value: f32) -> Option<Tensor<1>> {
    Some(Tensor::from_floats([value], &Device::flex()))
}

fn layer(values: [Option<f32>; 3]) -> LayerAuxiliary {
    let [load_balance, router_z, depth_router] = values.map(|value| value.and_then(one));
    LayerAuxiliary { load_balance, router_z, depth_router, ..LayerAuxiliary::default() }
}

#[test]
fn each_kind_is_averaged_over_the_layers_of_the_whole_model_that_have_it() {
    use BlockKind::{Dense, DenseDepths, Experts, ExpertsDepths};
    let blocks = [Dense, Experts, ExpertsDepths, DenseDepths, Experts];
    let weights = AuxiliaryWeights { load_balance: 0.5, router_z: 0.25, depth_router: 2.0 };
    let losses = AuxiliaryLosses::new(weights, &blocks);
    let stages = [
        vec![layer([None; 3]), layer([Some(3.0), Some(6.0), None])],
        vec![layer([Some(6.0), Some(0.0), Some(5.0)])],
        vec![layer([None, None, Some(1.0)]), layer([Some(9.0), Some(3.0), None])],
    ];
    let expected = 0.5 * (3.0 + 6.0 + 9.0) / 3.0 + 0.25 * (6.0 + 0.0 + 3.0) / 3.0 + 2.0 * (5.0 + 1.0) / 2.0;
    let cut: f64 = stages.iter().filter_map(|stage| losses.total(stage)).map(number).sum();
    assert!((cut - expected).abs() < 1e-6, "the loss depends on the cut: {cut}");
    let whole = losses.total(&stages.concat()).map(number).unwrap();
    assert!((whole - expected).abs() < 1e-6);
    // The sum of per-stage means is a different number: it depends on the cut.
    let per_stage: f64 = 0.5 * (3.0 + 6.0 + 9.0) + 0.25 * (6.0 + 0.0 + 3.0) + 2.0 * (5.0 + 1.0);
    assert!((per_stage - expected).abs() > 1.0);
    assert!(losses.total(&[layer([None; 3])]).is_none());
}

#[test]
fn observations_travel_downstream_and_are_read_back() {
    let device = Device::flex();
    let counts = |counts: &[i32]| Some(Tensor::<1, Int>::from_ints(counts, &device));
    let with_experts =
        LayerAuxiliary { load: counts(&[3, 0, 5]), dropped: counts(&[2]), ..layer([Some(1.5), Some(2.5), None]) };
    let upstream = observation_rows(None, &[layer([None; 3]), with_experts], 3, &device);
    let rows = observation_rows(upstream, &[layer([None, None, Some(0.5)])], 3, &device).unwrap();
    let numbers: Vec<f64> = rows.into_data().iter::<f64>().collect();
    let expected = [
        LayerObservation { load: vec![0.0; 3], ..LayerObservation::default() },
        LayerObservation {
            load_balance: 1.5,
            router_z: 2.5,
            dropped: 2.0,
            load: vec![3.0, 0.0, 5.0],
            ..Default::default()
        },
        LayerObservation { depth_router: 0.5, load: vec![0.0; 3], ..Default::default() },
    ];
    assert_eq!(parse_rows(&numbers, 3), expected);
    assert_eq!(expected[1].imbalance(), 5.0 * 3.0 / 8.0);
    assert_eq!(expected[0].imbalance(), 1.0);
    let twice = combine_microbatches(&[&expected, &expected]);
    assert_eq!((twice[1].load_balance, twice[1].dropped, &*twice[1].load), (1.5, 4.0, &[6.0, 0.0, 10.0][..]));
    assert!(observation_rows(None, &[], 3, &device).is_none());
}
