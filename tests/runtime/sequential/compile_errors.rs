//! Layers that do not fit do not compile, and the compiler's message says which layer it is and what does not fit.
//!
//! 1. `rustc` compiles programs against libraries that are built beside this test: the newest ones with which the
//!    program that fits compiles.
//! 2. The first error of each program that does not fit has all parts that are listed here, the first one in its title,
//!    and quotes the layer. If a layer's type cannot be in a model, a second error says that there is no `loss`.
//!
//! `trybuild` would check Burn a second time, in a target folder of its own, which takes minutes.

use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::tempdir;

const FITS: &str = r#"
use burn::nn::{Embedding, EmbeddingConfig, Linear, LinearConfig};
use burn::tensor::{Int, Tensor};
use burn_pipeline::{Layer, Sequential};

pub struct Hidden { pub x: Tensor<3> }
pub type Indices = Tensor<2, Int>;

pub fn model() {
    let _ = Sequential::new()
        .then(Layer::new("embed", |at| EmbeddingConfig::new(32, 16).init(&at.device), Embedding::forward))
        .then(Layer::new("head", |at| LinearConfig::new(16, 32).init(&at.device), Linear::forward::<3>))
        .loss(|y: Tensor<3>, wanted: Tensor<3>| (y - wanted).square().mean());
}
"#;

/// What is changed in [`FITS`], and the parts of the compiler's message, its title first.
const DO_NOT_FIT: [(&str, &str, &[&str]); 6] = [
    // A layer that takes two dimensions after one that gives three.
    (
        "Linear::forward::<3>",
        "Linear::forward::<2>",
        &[
            "mismatched types",
            "^ expected `3`, found `2`",
            "Layer<_, burn::Tensor<3>, _>",
            "Tensor<2>, burn::Tensor<2>>",
        ],
    ),
    // Floats after a layer that takes indices.
    (
        "Linear::forward::<3>",
        "|head: &Linear, x: Indices| head.forward(x.float())",
        &["mismatched types", "burn::Tensor<3, burn::tensor::Float>", "burn::Tensor<2, burn::tensor::Int>"],
    ),
    // A loss of another type than the last layer's output.
    (
        "y: Tensor<3>, wanted: Tensor<3>",
        "y: Tensor<2>, wanted: Tensor<2>",
        &["type mismatch in closure arguments", "fn(burn::Tensor<3>, _)", "fn(burn::Tensor<2>, burn::Tensor<2>)"],
    ),
    // A loss that is no number.
    (
        ".mean()",
        "",
        &[
            "the trait bound `burn_pipeline::Loss: From<burn::Tensor<3>>` is not satisfied",
            "`From<burn::Tensor<3>>` is not implemented for `burn_pipeline::Loss`",
            "`From<burn::Tensor<1>>` is implemented",
        ],
    ),
    // An output that cannot be sent.
    (
        "Linear::forward::<3>",
        "|head: &Linear, x: Tensor<3>| Hidden { x: head.forward(x) }",
        &["`Hidden` cannot cross a stage boundary", "not a `Boundary`", "write `burn_pipeline::boundary!(struct Name"],
    ),
    // A layer whose value is no module.
    (
        "LinearConfig::new(16, 32).init(&at.device), Linear::forward::<3>",
        "Hidden { x: Tensor::zeros([1, 1, 1], &at.device) }, |_: &Hidden, x: Tensor<3>| x",
        &["`Hidden: burn::module::Module` is not satisfied"],
    ),
];

/// The libraries of this name that are built, the newest first.
fn built(folder: &Path, name: &str) -> Vec<PathBuf> {
    let is_one = |path: &PathBuf| {
        let file = path.file_name().unwrap().to_str().unwrap();
        file.starts_with(&format!("lib{name}-")) && file.ends_with(".rlib")
    };
    let mut found: Vec<_> = std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()).filter(is_one).collect();
    found.sort_by_key(|path| std::cmp::Reverse(path.metadata().unwrap().modified().unwrap()));
    found
}

/// Compiles the text, and returns the compiler's messages if it fails.
fn compile(text: &str, libraries: &Path, [burn, pipeline]: [&Path; 2]) -> Result<(), String> {
    let folder = tempdir().unwrap();
    let source = folder.path().join("model.rs");
    std::fs::write(&source, text).unwrap();
    let output = Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()))
        .args(["--edition", "2024", "--cap-lints", "allow", "--crate-type", "lib", "--emit", "metadata", "--out-dir"])
        .arg(folder.path())
        .arg("-L")
        .arg(format!("dependency={}", libraries.display()))
        .args(["--extern", &format!("burn={}", burn.display())])
        .args(["--extern", &format!("burn_pipeline={}", pipeline.display())])
        .arg(&source)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    if output.status.success() { Ok(()) } else { Err(text) }
}

#[test]
fn a_layer_that_does_not_fit_is_named_by_the_compiler_with_both_types() {
    let program_of_this_test = std::env::current_exe().unwrap();
    let libraries = program_of_this_test.parent().unwrap();
    let (burns, pipelines) = (built(libraries, "burn"), built(libraries, "burn_pipeline"));
    let pairs: Vec<[&Path; 2]> = pipelines.iter().flat_map(|p| burns.iter().map(move |b| [&**b, &**p])).collect();
    let fits = |pair: &&[&Path; 2]| compile(FITS, libraries, **pair).is_ok();
    let pair = pairs.iter().find(fits).expect("no libraries beside this test fit `rustc`");
    for (from, to, parts) in DO_NOT_FIT {
        assert!(FITS.contains(from), "{from}");
        let said = compile(&FITS.replace(from, to), libraries, *pair).unwrap_err();
        let first = said.lines().next().unwrap();
        assert!(first.starts_with("error") && first.contains(parts[0]), "{:?} is not the title of:\n{said}", parts[0]);
        for part in parts.iter().chain([&to]) {
            assert!(said.contains(part), "{part:?} is not in:\n{said}");
        }
    }
}
