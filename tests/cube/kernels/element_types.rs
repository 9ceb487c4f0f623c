//! Kernels called directly, without a pipeline, in types that the device does not compute in. Each operation
//! returns an error before it runs, whether the runtime reports that it lacks the type (bf16 on wgpu) or only a
//! trial computation shows it (f64 on Mesa's software Vulkan, bf16 on processors without the instruction).

use super::{ints, tensor};
use crate::{devices, over_stand_in, refusals, turn};
use burn::module::Param;
use burn::tensor::{DType, Device, Tensor};
use burn_pipeline_moe::ops::{PackedRows, RouteOptions, grouped_matmul, inject, route, z_loss};
use std::panic::{AssertUnwindSafe, catch_unwind};

type Run<'a> = Box<dyn Fn() + 'a>;

/// Every public operation, on tensors of one type.
fn operations(device: &Device, dtype: DType) -> Vec<(&'static str, Run<'_>)> {
    let of = move |shape: [usize; 2]| tensor(&vec![0.5; shape[0] * shape[1]], shape, device, dtype);
    let packed = move || PackedRows::new(ints(&[0, 1], [2, 1], device), ints(&[1, 1], [2], device), 2);
    let one = move || Tensor::<1>::from_data([1.0], (device, dtype));
    let options = RouteOptions { top_k: 1, sigmoid: false, normalize: true };
    vec![
        ("route", Box::new(move || drop(route(of([2, 2]), None, options)))),
        ("z_loss", Box::new(move || drop(z_loss(of([2, 2]))))),
        ("permute", Box::new(move || drop(packed().permute(of([2, 2]))))),
        ("unpermute", Box::new(move || drop(packed().unpermute(of([2, 2]), of([2, 1]))))),
        (
            "grouped_matmul",
            Box::new(move || {
                let weight = Param::from_tensor(tensor::<3>(&[0.5; 8], [2, 2, 2], device, dtype));
                drop(grouped_matmul(of([2, 2]), &weight, ints(&[0, 1, 2], [3], device)));
            }),
        ),
        (
            "inject",
            Box::new(move || {
                let hidden = Tensor::<2>::ones([2, 2], &device.clone().autodiff());
                let lifted = |x: Tensor<1>| x.autodiff();
                drop(inject(hidden, lifted(one()), lifted(one())));
            }),
        ),
    ]
}

#[test]
fn every_operation_refuses_types_that_its_device_does_not_compute_in() {
    let _turn = turn();
    let mut refused = Vec::new();
    for device in devices() {
        for dtype in [DType::F32, DType::F64, DType::BF16] {
            let takes = refusals::takes(&device, dtype);
            for (name, run) in operations(&device, dtype) {
                let place = format!("{name} in {dtype:?} on {device:?}");
                let ran = catch_unwind(AssertUnwindSafe(run));
                assert_eq!(ran.is_ok(), takes, "{place}");
                let Err(panic) = ran else { continue };
                let message = panic.downcast::<String>().map_or_else(|_| String::new(), |message| *message);
                let wanted = format!("does not compute in {dtype:?}: ");
                assert!(message.contains(&wanted) && message.contains("cast to f32"), "{place}: {message}");
                refused.push(place);
            }
        }
    }
    println!("refused: {refused:?}");
    // A stand-in for CUDA's driver is alone, and computes in all of them.
    let has_wgpu = cfg!(feature = "wgpu") && !over_stand_in();
    assert!(!has_wgpu || refused.iter().any(|place| place.contains("BF16 on") && place.contains("Wgpu")));
}
