//! What a device cannot do is refused when the pipeline is built, or before the first forward that needs it.

use crate::{devices, turn};
use burn::module::{Module, Param};
use burn::optim::AdamWConfig;
use burn::tensor::{DType, Device, Tensor, TensorData};
use burn_pipeline::schedule::Size;
use burn_pipeline::stage::{Batch, SplitBackward, Stage, StageBox};
use burn_pipeline::train::{BuildError, Builder, Pipeline};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

#[derive(Module, Debug)]
struct Scaled {
    factors: Param<Tensor<1>>,
}

impl Stage for Scaled {
    type Input = Tensor<1>;
    type Extra = ();
    type Output = Tensor<1>;

    fn forward(&self, x: Tensor<1>, (): ()) -> Tensor<1> {
        (x * self.factors.val()).exp().log().tanh()
    }
}

fn scaled(device: &Device, dtype: DType) -> Scaled {
    Scaled { factors: Param::from_tensor(Tensor::ones([4], (device, dtype))) }
}

fn pipeline(device: Device, dtype: DType) -> Builder {
    let builder = Pipeline::builder().schedule("GPipe", Size::new(1, 2)).devices(vec![device]);
    builder.stages(move |at| {
        StageBox::with_loss(scaled(&at.device, dtype), |y: Tensor<1>, target: Tensor<1>| (y - target).square().mean())
    })
}

/// The loss, computed in this type.
fn loss(mut pipeline: Pipeline, device: &Device, dtype: DType) -> f64 {
    let of = |values: [f64; 8]| Tensor::<1>::from_data(TensorData::from(values), (device, dtype));
    let batch = Batch::new(of([0.25, 0.5, 0.75, 1.0, 0.25, 0.5, 0.75, 1.0])).target(of([0.0; 8]));
    pipeline.eval(batch).unwrap().loss.unwrap()
}

#[test]
fn parameters_of_a_type_that_the_device_does_not_compute_in_are_refused_by_name_and_others_give_right_numbers() {
    let _turn = turn();
    let expected = [0.25, 0.5, 0.75, 1.0f64].map(|x| x.tanh().powi(2)).iter().sum::<f64>() / 4.0;
    for device in devices() {
        for (dtype, most) in [(DType::F32, 1e-5), (DType::F64, 1e-9), (DType::F16, 1e-2), (DType::BF16, 5e-2)] {
            let place = format!("{dtype:?} on {device:?}");
            match pipeline(device.clone(), dtype).build() {
                Ok(pipeline) => {
                    let loss = loss(pipeline, &device, dtype);
                    assert!((loss - expected).abs() <= most * expected, "{place}: {loss} for {expected}");
                    println!("{place}: computed");
                }
                Err(error) => {
                    let message = error.to_string();
                    let refused = format!("rank 0, stage 0: `factors` has elements of {dtype:?}, in which");
                    let wanted = [refused.as_str(), "does not compute: ", "build the stage in f32"];
                    assert!(wanted.iter().all(|wanted| message.contains(wanted)), "{message}");
                    assert!(dtype != DType::F32 && !surely_computes_in(&device, dtype), "{message}");
                    println!("{message}");
                }
            }
        }
    }
}

#[test]
fn modules_that_take_a_stages_place_are_refused_where_their_stage_would_be() {
    let _turn = turn();
    for device in devices() {
        let mut pipeline = pipeline(device.clone(), DType::F32).build().unwrap();
        for dtype in [DType::BF16, DType::F32] {
            let replaced = pipeline.replace_module(0, move |_: Scaled, at| scaled(&at.device, dtype));
            match takes(&device, dtype) {
                true => replaced.unwrap(),
                false => {
                    let message = replaced.unwrap_err().to_string();
                    let wanted = ["stage 0", "`factors` has elements of BF16, in which", "does not compute: "];
                    assert!(wanted.iter().all(|wanted| message.contains(wanted)), "{message}");
                }
            }
        }
    }
}

/// A stage that computes in a type that none of its parameters has.
#[derive(Module, Debug)]
struct Cast {
    factors: Param<Tensor<1>>,
    #[module(skip)]
    forwards: Arc<AtomicUsize>,
    #[module(skip)]
    is_tried: bool,
}

impl Stage for Cast {
    type Input = Tensor<1>;
    type Extra = ();
    type Output = Tensor<1>;

    fn forward(&self, x: Tensor<1>, (): ()) -> Tensor<1> {
        self.forwards.fetch_add(1, Ordering::Relaxed);
        let x = (x * self.factors.val()).cast(DType::BF16).tanh();
        // Without a trial, the type is known only from the output.
        if self.is_tried { x.cast(DType::F32) } else { x }
    }

    fn skip_capture(&self) -> Option<&'static str> {
        (!self.is_tried).then_some("it is not to be tried")
    }
}

/// A pipeline over such a stage, and a count of its forwards.
fn casting(device: &Device, split: SplitBackward, is_tried: bool) -> (Pipeline, Arc<AtomicUsize>) {
    let forwards = Arc::new(AtomicUsize::new(0));
    let counted = forwards.clone();
    let builder = Pipeline::builder().schedule("GPipe", Size::new(1, 2)).devices(vec![device.clone()]).split(split);
    let stages = builder.stages(move |at| {
        let factors = Param::from_tensor(Tensor::ones([4], &at.device));
        let loss = |y: Tensor<1>, target: Tensor<1>| (y.clone() - target.cast(y.dtype())).square().mean();
        StageBox::with_loss(Cast { factors, forwards: counted.clone(), is_tried }, loss)
    });
    (stages.optimizer(|| AdamWConfig::new().init()).build().unwrap(), forwards)
}

fn halves(device: &Device) -> Batch {
    let of = |value: f64| Tensor::<1>::full([8], value, device);
    Batch::new(of(0.5)).target(of(0.0))
}

fn assert_close_to_tanh(loss: f64, device: &Device) {
    let expected = 0.5f64.tanh().powi(2);
    assert!((loss - expected).abs() <= 5e-2 * expected, "{loss} for {expected} on {device:?}");
}

fn assert_refuses_bf16(message: &str, more: &[&str]) {
    let wanted = ["rank 0", "stage 0", "computes in BF16", "does not compute: ", "cast to f32"];
    assert!(wanted.iter().chain(more).all(|wanted| message.contains(wanted)), "{message}");
}

#[test]
fn stages_that_cast_to_a_type_that_the_device_does_not_compute_in_are_refused_by_their_operation_eager_and_captured() {
    let _turn = turn();
    for device in devices() {
        for split in [SplitBackward::Eager, SplitBackward::Captured] {
            let (mut pipeline, forwards) = casting(&device, split, true);
            let stepped = pipeline.step(halves(&device), 1e-2);
            match takes(&device, DType::BF16) {
                true => assert_close_to_tanh(stepped.unwrap().loss, &device),
                false => assert_refuses_bf16(&stepped.unwrap_err().to_string(), &["microbatch 0", "`Cast`"]),
            }
            // A refused forward was only recorded.
            let lacks = [DType::BF16, DType::F16, DType::F64].into_iter().any(|dtype| !takes(&device, dtype));
            let recorded = usize::from(lacks && split == SplitBackward::Eager);
            let expected = if takes(&device, DType::BF16) { 2 + recorded } else { 1 };
            assert_eq!(forwards.load(Ordering::Relaxed), expected, "{split:?} on {device:?}");
        }
    }
}

#[test]
fn what_is_not_recorded_is_refused_by_what_it_gives_in_training_and_in_evaluation() {
    let _turn = turn();
    for device in devices() {
        for trains in [true, false] {
            let (mut pipeline, forwards) = casting(&device, SplitBackward::Auto, false);
            let loss = match trains {
                true => pipeline.step(halves(&device), 1e-2).map(|step| step.loss),
                false => pipeline.eval(halves(&device)).map(|evaluated| evaluated.loss.unwrap()),
            };
            match takes(&device, DType::BF16) {
                true => assert_close_to_tanh(loss.unwrap(), &device),
                false => assert_refuses_bf16(&loss.unwrap_err().to_string(), &["first in what it gives"]),
            }
            let expected = if takes(&device, DType::BF16) { 2 } else { 1 };
            assert_eq!(forwards.load(Ordering::Relaxed), expected, "trains: {trains}, on {device:?}");
        }
    }
}

/// Types that this processor certainly computes in.
fn surely_computes_in(device: &Device, dtype: DType) -> bool {
    #[cfg(target_arch = "x86_64")]
    let rounds_to_bf16 = std::arch::is_x86_feature_detected!("avx512bf16");
    #[cfg(not(target_arch = "x86_64"))]
    let rounds_to_bf16 = false;
    format!("{device:?}").contains("Cpu(") && (dtype == DType::F64 || dtype == DType::BF16 && rounds_to_bf16)
}

/// Returns true if a pipeline can be built on the device.
pub(crate) fn answers(device: &Device) -> bool {
    match pipeline(device.clone(), DType::F32).build() {
        Ok(_) => true,
        Err(BuildError::NoDevice { .. }) => false,
        Err(other) => panic!("{other}"),
    }
}

/// Returns true if a pipeline with parameters of this type can be built there.
pub(crate) fn takes(device: &Device, dtype: DType) -> bool {
    match pipeline(device.clone(), dtype).build() {
        Ok(_) => true,
        Err(refused) if refused.to_string().contains("does not compute: ") => false,
        Err(other) => panic!("{other}"),
    }
}

#[cfg(feature = "cuda")]
#[test]
fn without_a_cuda_driver_building_says_what_to_install() {
    let _turn = turn();
    match pipeline(Device::cuda(0), DType::F32).build() {
        Ok(_) => println!("CUDA's driver is there"),
        Err(error) => {
            let message = error.to_string();
            let wanted = ["does not answer", "install its driver (NVIDIA's for CUDA"];
            assert!(wanted.iter().all(|wanted| message.contains(wanted)), "{message}");
        }
    }
}

/// Set in the child process that continues the test.
#[cfg(feature = "wgpu")]
pub(crate) const CHILD: &str = "BURN_PIPELINE_TEST_CHILD";

/// Returns what the named test prints when run as a process of its own.
#[cfg(feature = "wgpu")]
pub(crate) fn printed_by_child(test: &str, environment: &[(&str, &str)]) -> String {
    let mut child = std::process::Command::new(std::env::current_exe().unwrap());
    child.args([test, "--exact", "--nocapture"]).env(CHILD, "1");
    let output = child.envs(environment.iter().copied()).output().unwrap();
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{printed}");
    printed
}

#[cfg(feature = "wgpu")]
fn wgpu() -> Device {
    Device::wgpu(burn::tensor::DeviceKind::DefaultDevice)
}

#[cfg(feature = "wgpu")]
#[test]
fn without_a_driver_building_says_what_to_install() {
    if std::env::var_os(CHILD).is_some() {
        let error = pipeline(wgpu(), DType::F32).build().unwrap_err();
        println!("refused: {error}");
        return;
    }
    // Points the Vulkan and OpenGL loaders to a place without drivers.
    let none =
        ["VK_DRIVER_FILES", "VK_ICD_FILENAMES", "__EGL_VENDOR_LIBRARY_FILENAMES"].map(|name| (name, "/dev/null"));
    let printed = printed_by_child("refusals::without_a_driver_building_says_what_to_install", &none);
    let wanted = ["refused: ", "does not answer", "install its driver"];
    assert!(wanted.iter().all(|wanted| printed.contains(wanted)), "{printed}");
}
