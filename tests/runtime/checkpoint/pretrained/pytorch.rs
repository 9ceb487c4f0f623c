//! Files of PyTorch 2.15's `torch.save` (`goldens/pytorch.py`): a state dict, and a training checkpoint in the
//! format of before 1.6, both with tensors that are views.

use super::{COMPUTED, MODEL, assert_close, builder, exported, floats, logits};
use burn::store::{PyTorchToBurnAdapter, PytorchStore};
use burn_pipeline::train::{CheckpointError, Pretrained};
use std::path::Path;
use tempfile::{TempDir, tempdir};

pub(super) const STATE_DICT: &[u8] = include_bytes!("goldens/model.pt");
const LEGACY: &[u8] = include_bytes!("goldens/legacy.pt");

/// The weights stored in a file under this key.
fn stored(folder: &TempDir, file: &[u8], key: Option<&'static str>) -> Pretrained {
    let path = folder.path().join("model.pt");
    std::fs::write(&path, file).unwrap();
    let open = move |path: &Path| {
        let store = PytorchStore::from_file(path);
        key.into_iter().fold(store, |store, key| store.with_top_level_key(key))
    };
    Pretrained::new(move || open(&path)).adapter(PyTorchToBurnAdapter)
}

#[test]
fn a_llama_that_torch_saved_computes_as_in_pytorch_and_has_its_weights_to_the_bit() {
    let folder = tempdir().unwrap();
    for (what, file, key) in [("a state dict", STATE_DICT, None), ("a checkpoint", LEGACY, Some("state_dict"))] {
        let weights = stored(&folder, file, key);
        for (schedule, ranks, chunks) in [("GPipe", 1, 1), ("1F1B", 2, 1), ("1F1B", 4, 1), ("ZBVZeroBubble", 2, 2)] {
            let place = format!("{what}, {schedule} on {ranks}");
            let mut pipeline = builder(schedule, ranks, chunks).build().unwrap();
            pipeline.load_pretrained(&weights).unwrap();
            assert_close(&logits(&mut pipeline), &floats(COMPUTED)["logits"].1, 1e-4, &place);
            assert!(
                floats(&exported(&mut pipeline, &folder.path().join("back"))) == floats(MODEL),
                "{place}: other weights"
            );
        }
    }
}

#[test]
fn a_file_of_torch_that_is_cut_off_or_holds_its_weights_elsewhere_is_refused() {
    let folder = tempdir().unwrap();
    let mut pipeline = builder("1F1B", 2, 1).build().unwrap();
    for length in [0, 100, STATE_DICT.len() / 2, STATE_DICT.len() - 1] {
        let error = pipeline.load_pretrained(&stored(&folder, &STATE_DICT[..length], None)).unwrap_err();
        assert!(matches!(error, CheckpointError::Store { store: 0, .. }), "{length} bytes: {error}");
    }
    let error = pipeline.load_pretrained(&stored(&folder, LEGACY, Some("weights"))).unwrap_err();
    assert!(error.to_string().contains("weights"), "{error}");
    // The whole checkpoint: every name starts with `state_dict.`.
    let error = pipeline.load_pretrained(&stored(&folder, LEGACY, None)).unwrap_err();
    let CheckpointError::Pretrained { missing, unused, .. } = &error else { panic!("{error}") };
    assert_eq!((missing.len(), unused.len()), (39, 39), "{error}");
}
