//! The operations of `burn-pipeline-moe`, compared with the same computation composed of Burn's operations on the
//! same device.
//!
//! `cargo bench -p benches --bench moe [--features cpu] [-- --rounds N --tokens N --experts N --d-model N
//! --d-hidden N --layers N]` (or `--features cuda`, `wgpu`)
//!
//! On CubeCL devices, which need one of these features, the operations are kernels. Otherwise they run on Flex,
//! where each is also composed, but is one autodiff step with its own backward.
//!
//! 1. Both sides compute forward and backward from the same numbers, to gradients of all inputs.
//! 2. The timed region ends with a synchronisation of the device.
//! 3. Rounds alternate between the two, so that other load on the machine affects both alike. The first two rounds
//!    compile and are not counted.

#![allow(missing_docs, clippy::print_stdout, clippy::unwrap_used, reason = "a benchmark prints and may stop")]

use benches::flags::Flags;
use benches::spread::Spread;
use burn::module::{Param, ParamId};
use burn::tensor::activation::softmax;
use burn::tensor::{Device, Distribution, Int, Tensor};
use burn_pipeline::ops::expert_matmul;
use burn_pipeline_moe::ops::{PackedRows, RouteOptions, grouped_matmul, has_kernels, inject_weighted, route, z_loss};
use burn_pipeline_moe::router::{Capacity, TokenDispatch, top_k};
use std::time::Instant;

/// The choices per token.
const K: usize = 2;

#[derive(Debug, Clone, Copy)]
struct Sizes {
    tokens: usize,
    experts: usize,
    d_model: usize,
    d_hidden: usize,
    /// The layers of a stage whose losses are injected.
    layers: usize,
}

/// The same work done in two ways.
struct Contest {
    name: String,
    whole: Box<dyn Fn()>,
    composed: Box<dyn Fn()>,
}

fn draw<const D: usize>(shape: [usize; D], device: &Device) -> Tensor<D> {
    Tensor::random(shape, Distribution::Normal(0.0, 1.0), device).require_grad()
}

/// The devices of this build with kernels, or Flex if there are none.
fn devices() -> Vec<Device> {
    vec![
        #[cfg(feature = "cpu")]
        Device::cpu(),
        #[cfg(feature = "cuda")]
        Device::cuda(0),
        #[cfg(feature = "wgpu")]
        Device::wgpu(burn::tensor::DeviceKind::DefaultDevice),
        #[cfg(not(any(feature = "cpu", feature = "cuda", feature = "wgpu")))]
        Device::flex(),
    ]
}

fn z_losses(at: Sizes, device: &Device) -> Contest {
    let logits = draw([at.tokens, at.experts], device);
    let other = logits.clone();
    let composed = move || {
        let largest = other.clone().detach().max_dim(1);
        let log_sum = (other.clone() - largest.clone()).exp().sum_dim(1).log() + largest;
        drop(log_sum.square().mean().backward());
    };
    let whole = move || drop(z_loss(logits.clone()).backward());
    Contest { name: "z-loss".into(), whole: Box::new(whole), composed: Box::new(composed) }
}

fn injection(at: Sizes, device: &Device) -> Contest {
    let weights = [0.01, 0.001, 0.0];
    let losses = || (0..at.layers).map(|_| draw([1], device)).collect::<Vec<Tensor<1>>>();
    let (hidden, losses) = (draw([at.tokens, at.d_model], device), [losses(), losses()]);
    let scale = Tensor::<1>::from_floats([0.25], device);
    let (hidden_too, losses_too, scale_too) = (hidden.clone(), losses.clone(), scale.clone());
    let whole = move || {
        let [balance, z] = losses.clone();
        drop(inject_weighted(hidden.clone(), [balance, z, Vec::new()], weights, scale.clone()).sum().backward());
    };
    let composed = move || {
        let of_kind = |(losses, weight): (&Vec<Tensor<1>>, f64)| {
            losses.iter().cloned().reduce(|a, b| a + b).unwrap().mul_scalar(weight)
        };
        let total = losses_too.iter().zip(weights).map(of_kind).reduce(|a, b| a + b).unwrap();
        drop((hidden_too.clone().sum() + total * scale_too.clone()).backward());
    };
    let name = format!("injection of two losses of {} layers", at.layers);
    Contest { name, whole: Box::new(whole), composed: Box::new(composed) }
}

fn routing(at: Sizes, device: &Device) -> Contest {
    let logits = draw([at.tokens, at.experts], device);
    let other = logits.clone();
    let options = RouteOptions { top_k: K, sigmoid: false, normalize: true };
    let whole = move || {
        let routed = route(logits.clone(), None, options);
        drop((routed.gates.square().sum() + routed.mean_probabilities.square().sum()).backward());
    };
    let composed = move || {
        let scores = softmax(other.clone(), 1);
        let chosen = top_k(scores.clone().detach(), K);
        let gates = scores.clone().gather(1, chosen.clone());
        let gates = gates.clone() / gates.sum_dim(1);
        let means = scores.mean_dim(0);
        let shape = [at.tokens * K, at.experts];
        let all = Tensor::<1, Int>::arange(0..at.experts as i64, &other.device()).unsqueeze::<2>().expand(shape);
        let _load = chosen.reshape([at.tokens * K, 1]).expand(shape).equal(all).int().sum_dim(0);
        drop((gates.square().sum() + means.square().sum()).backward());
    };
    Contest { name: "routing".into(), whole: Box::new(whole), composed: Box::new(composed) }
}

/// Tokens, gates, choices and load.
fn routed(at: Sizes, device: &Device) -> (Tensor<2>, Tensor<2>, Tensor<2, Int>, Tensor<1, Int>) {
    let options = RouteOptions { top_k: K, sigmoid: false, normalize: true };
    let routed = route(draw([at.tokens, at.experts], device), None, options);
    (draw([at.tokens, at.d_model], device), draw([at.tokens, K], device), routed.experts, routed.load)
}

fn permutation(at: Sizes, device: &Device) -> Contest {
    let (tokens, gates, chosen, load) = routed(at, device);
    let (tokens_too, gates_too, chosen_too) = (tokens.clone(), gates.clone(), chosen.clone());
    let whole = move || {
        let rows = PackedRows::new(chosen.clone(), load.clone(), at.tokens);
        drop(rows.unpermute(rows.permute(tokens.clone()), gates.clone()).sum().backward());
    };
    let composed = move || {
        let places = TokenDispatch::new(chosen_too.clone(), at.experts, Capacity::Factor(1.25));
        drop(places.combine(places.dispatch(tokens_too.clone()), gates_too.clone()).sum().backward());
    };
    let name = "permutation there and back".into();
    Contest { name, whole: Box::new(whole), composed: Box::new(composed) }
}

fn products(at: Sizes, device: &Device) -> Contest {
    let (tokens, _, chosen, load) = routed(at, device);
    let weight = Param::initialized(ParamId::new(), draw([at.experts, at.d_model, at.d_hidden], device));
    let rows = PackedRows::new(chosen.clone(), load, at.tokens);
    let packed = rows.permute(tokens.clone()).detach().require_grad();
    let even = TokenDispatch::new(chosen, at.experts, Capacity::Factor(1.25)).dispatch(tokens).detach().require_grad();
    let weight_too = weight.clone();
    let whole = move || drop(grouped_matmul(packed.clone(), &weight, rows.offsets.clone()).sum().backward());
    let composed = move || drop(expert_matmul(even.clone(), &weight_too).sum().backward());
    let name = "experts' matmul (uneven; composed: even rows, 1.25 of the share)".into();
    Contest { name, whole: Box::new(whole), composed: Box::new(composed) }
}

fn main() {
    let flags = Flags::read(&[
        ("--tokens N", "tokens; 1024 if absent"),
        ("--experts N", "experts; 8 if absent"),
        ("--d-model N", "width of the model; 64 if absent"),
        ("--d-hidden N", "hidden width of an expert; 64 if absent"),
        ("--layers N", "layers; 8 if absent"),
        ("--rounds N", "rounds; 15 if absent"),
    ]);
    let at = Sizes {
        tokens: flags.number("--tokens", 1024),
        experts: flags.number("--experts", 8),
        d_model: flags.number("--d-model", 64),
        d_hidden: flags.number("--d-hidden", 64),
        layers: flags.number("--layers", 8_usize).max(1),
    };
    let rounds = flags.number("--rounds", 15);
    for device in devices() {
        let tracked = device.clone().autodiff();
        println!("{device:?}, {at:?}, {K} choices per token, forward and backward, {rounds} rounds");
        let whole = match has_kernels(&Tensor::<1>::zeros([1], &device)) {
            true => "kernels",
            false => {
                println!("This device runs no kernels; for kernels add --features cpu or --features cuda.");
                "one step of autodiff"
            }
        };
        println!("| operation | {whole} ms (min..max) | composed ms (min..max) | composed / {whole} |");
        println!("|---|---|---|---|");
        for contest in [z_losses, routing, injection, permutation, products].map(|make| make(at, &tracked)) {
            let time = |run: &dyn Fn()| {
                device.sync().unwrap();
                let start = Instant::now();
                run();
                device.sync().unwrap();
                start.elapsed().as_secs_f64()
            };
            let mut times: [Vec<f64>; 2] = Default::default();
            for round in 0..rounds + 2 {
                let both = [time(&contest.whole), time(&contest.composed)];
                if round >= 2 {
                    times.iter_mut().zip(both).for_each(|(times, time)| times.push(time));
                }
            }
            let [whole, composed] = times.map(|times| Spread::of(&times));
            let ms = |s: Spread| format!("{:.3} ({:.3}..{:.3})", s.median * 1e3, s.min * 1e3, s.max * 1e3);
            let ratio = composed.median / whole.median;
            println!("| {} | {} | {} | {ratio:.2} |", contest.name, ms(whole), ms(composed));
        }
    }
}
