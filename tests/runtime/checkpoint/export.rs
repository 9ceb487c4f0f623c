//! The whole model in one safetensors file, as any other tool reads it.

use super::{Cut, Folder, RATE, SAMPLES};
use crate::cases::{Case, Text, read};
use burn_pipeline::train::Checkpoints;
use safetensors::{Dtype, SafeTensors};

#[test]
fn an_exported_model_holds_every_weight_under_its_name_whatever_the_cut() {
    let folder = Folder::new("export");
    let mut files = Vec::new();
    for (place, (family, ranks)) in [("GPipe", 1), ("1F1B", 3), ("ZBVZeroBubble", 2)].into_iter().enumerate() {
        let chunks = if family == "ZBVZeroBubble" { 2 } else { 1 };
        let mut pipeline = Cut { family, ranks, chunks }.pipeline();
        pipeline.step(Text::new(SAMPLES).batch(), RATE).unwrap();
        let checkpoints = Checkpoints::new(folder.join(place.to_string()));
        pipeline.save(&checkpoints, &()).unwrap();
        let (direct, stored) = (folder.join(format!("{place}-direct")), folder.join(format!("{place}-stored")));
        pipeline.export(&direct).unwrap();
        checkpoints.latest().unwrap().export(&stored).unwrap();
        files.extend([std::fs::read(direct).unwrap(), std::fs::read(stored).unwrap()]);
        let tensors = SafeTensors::deserialize(&files[0]).unwrap();
        let mut held = 0;
        for weight in pipeline.named_weights().unwrap().into_iter().flatten() {
            let tensor = tensors.tensor(&weight.names[0]).unwrap();
            let bytes: Vec<u8> = read(&weight.value).iter().flat_map(|x| x.to_le_bytes()).collect();
            assert_eq!((tensor.dtype(), tensor.data()), (Dtype::F32, &*bytes), "{:?}", weight.names);
            assert_eq!(tensor.shape(), weight.value.shape().to_vec());
            held += 1;
        }
        assert_eq!(tensors.len(), held);
    }
    let missing = Cut { family: "GPipe", ranks: 1, chunks: 1 }.pipeline().export(folder.join("no/such/folder/model"));
    assert!(missing.unwrap_err().to_string().contains("no/such/folder/model"));
    assert!(files.windows(2).all(|pair| pair[0] == pair[1]), "the cut shows in the file");
}
