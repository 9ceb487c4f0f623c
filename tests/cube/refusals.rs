//! What a device cannot do is refused when the pipeline is built.

use crate::{devices, turn};
use burn::module::{Module, Param};
use burn::tensor::{DType, Device, Tensor};
use burn_pipeline::schedule::Size;
use burn_pipeline::stage::{Stage, StageBox};
use burn_pipeline::train::{BuildError, Builder, Pipeline};

#[derive(Module, Debug)]
struct Scaled {
    factors: Param<Tensor<1>>,
}

impl Stage for Scaled {
    type Input = Tensor<1>;
    type Extra = ();
    type Output = Tensor<1>;

    fn forward(&self, x: Tensor<1>, (): ()) -> Tensor<1> {
        x * self.factors.val()
    }
}

fn scaled(device: &Device, dtype: DType) -> Scaled {
    Scaled { factors: Param::from_tensor(Tensor::ones([4], (device, dtype))) }
}

fn pipeline(device: Device, dtype: DType) -> Builder {
    let builder = Pipeline::builder().schedule("GPipe", Size::new(1, 2)).devices(vec![device]);
    builder.stages(move |at| StageBox::new(scaled(&at.device, dtype)))
}

#[test]
fn parameters_of_a_type_that_the_device_does_not_compute_in_are_refused_by_name() {
    let _turn = turn();
    for device in devices() {
        let built = pipeline(device.clone(), DType::BF16).build();
        match device.supports_dtype(DType::BF16) {
            true => drop(built.unwrap()),
            false => {
                let message = built.unwrap_err().to_string();
                let wanted = ["rank 0, stage 0: `factors` has elements of BF16", "does not compute", "f32"];
                assert!(wanted.iter().all(|wanted| message.contains(wanted)), "{message}");
            }
        }
        drop(pipeline(device, DType::F32).build().unwrap());
    }
}

/// Can a pipeline be built on the device?
pub(crate) fn answers(device: &Device) -> bool {
    match pipeline(device.clone(), DType::F32).build() {
        Ok(_) => true,
        Err(BuildError::NoDevice { .. }) => false,
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

/// Set in a process that goes on where the test began.
#[cfg(feature = "wgpu")]
pub(crate) const CHILD: &str = "BURN_PIPELINE_TEST_CHILD";

/// What the test of this name prints where it runs as a process of its own.
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
    // The loaders of Vulkan and of OpenGL look for drivers where there are none.
    let none =
        ["VK_DRIVER_FILES", "VK_ICD_FILENAMES", "__EGL_VENDOR_LIBRARY_FILENAMES"].map(|name| (name, "/dev/null"));
    let printed = printed_by_child("refusals::without_a_driver_building_says_what_to_install", &none);
    let wanted = ["refused: ", "does not answer", "install its driver"];
    assert!(wanted.iter().all(|wanted| printed.contains(wanted)), "{printed}");
}
