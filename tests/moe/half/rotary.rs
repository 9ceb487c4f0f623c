//! Rotary attention in half precision, far from the start of a sequence, where half precision cannot tell
//! neighbouring positions apart: bf16 from 256 on, f16 from 2,048 on.

use super::{HALVES, Rounded, apart, rounded, values};
use burn::module::Module;
use burn::tensor::{DType, Device, Int, Tensor};
use burn_pipeline::stage::init_seeded;
use burn_pipeline_moe::cache::LayerCache;
use burn_pipeline_moe::layers::{Attention, AttentionConfig, AttentionContext};

const D: usize = 16;
const SEQ: usize = 8;
const STARTS: [usize; 5] = [0, 257, 1000, 4000, 4001];
/// The allowed difference, in units: scores, softmax and matmuls are rounded too.
const CLOSE: f64 = 16.0;

/// Attention whose weights are numbers of `half`, held in the type `to`. They are large enough that attention is far
/// from uniform.
fn attention(half: DType, to: DType) -> Attention {
    let config = AttentionConfig::new(D, 2).with_rotary(true);
    init_seeded(7, &Device::flex(), |device| config.init(device)).map(&mut Rounded::new(40.0, half, to))
}

fn x(half: DType, to: DType) -> Tensor<3> {
    rounded(3, [2, SEQ, D], half).cast(to)
}

fn context(start: usize, tokens: usize) -> AttentionContext {
    AttentionContext::new(Tensor::<2, Int>::zeros([2, tokens], &Device::flex())).starting_at(start)
}

/// The output of tokens whose first one has the position `start`.
fn run(half: DType, to: DType, start: usize) -> Vec<f64> {
    values(attention(half, to).forward(x(half, to), &context(start, SEQ)))
}

#[test]
fn rotary_attention_far_from_the_start_is_that_of_f32_up_to_rounding() {
    for (half, unit) in HALVES {
        for start in STARTS {
            let off = apart(&run(half, half, start), &run(half, DType::F32, start));
            println!("{half:?} from {start}: {:.1} units apart", off / unit);
            assert!(off < CLOSE * unit, "{half:?} from {start}: {off:e}");
        }
    }
}

#[test]
fn rotary_attention_in_half_precision_depends_on_distances_only() {
    for (half, unit) in HALVES {
        let near = run(half, half, 0);
        for start in STARTS {
            let off = apart(&run(half, half, start), &near);
            assert!(off < CLOSE * unit, "{half:?} from {start}: {off:e}");
        }
    }
}

#[test]
fn rotary_attention_in_half_precision_generates_far_tokens_as_it_runs_them_at_once() {
    for (half, unit) in HALVES {
        for start in STARTS {
            let (attention, mut cache, mut got) = (attention(half, half), LayerCache::default(), Vec::new());
            for (first, tokens) in [(0, 3), (3, 1), (4, SEQ - 4)] {
                let new = x(half, half).narrow(1, first, tokens);
                let context = context(start + first, tokens);
                got.push(attention.forward_cached(new, &context, &mut cache).unwrap());
            }
            let off = apart(&values(Tensor::cat(got, 1)), &run(half, DType::F32, start));
            assert!(off < CLOSE * unit, "{half:?} from {start}: {off:e}");
        }
    }
}
