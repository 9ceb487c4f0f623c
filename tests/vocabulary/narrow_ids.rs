//! Ids of 8 and 16 bits, whose type does not hold the number of the first word of each piece.

use burn::module::Module;
use burn::nn::{Embedding, EmbeddingConfig, Linear, LinearConfig};
use burn::optim::SgdConfig;
use burn::tensor::{DType, Device, Int, Tensor};
use burn_pipeline::stage::init_seeded;
use burn_pipeline::{Batch, Pipeline, Size, Stage, StageBox, StageContext, Vocabulary};

const WORDS: usize = 512;
const WIDTH: usize = 4;

#[derive(Module, Debug)]
struct Middle {
    linear: Linear,
}

impl Stage for Middle {
    type Input = Tensor<3>;
    type Extra = ();
    type Output = Tensor<3>;

    fn forward(&self, x: Tensor<3>, (): ()) -> Tensor<3> {
        self.linear.forward(x)
    }
}

fn middle(at: &StageContext) -> StageBox {
    let linear = init_seeded(at.index as u64, &at.device, |device| LinearConfig::new(WIDTH, WIDTH).init(device));
    StageBox::new(Middle { linear })
}

fn table(device: &Device) -> Embedding {
    init_seeded(7, device, |device| EmbeddingConfig::new(WORDS, WIDTH).init(device))
}

fn scores(device: &Device) -> Linear {
    init_seeded(8, device, |device| LinearConfig::new(WIDTH, WORDS).with_bias(false).init(device))
}

#[test]
fn ids_of_any_integer_type_are_the_same_words() {
    let losses = |dtype: DType| {
        let mut pipeline = Pipeline::builder()
            .schedule("1F1B", Size::new(2, 2))
            .devices(vec![Device::flex()])
            .stages(middle)
            .vocabulary(Vocabulary::new().embedding("token", table).head("scores", scores))
            .optimizer(|| SgdConfig::new().init())
            .build()
            .unwrap();
        let ids = |ids: [i64; 4]| Tensor::<1, Int>::from_ints(ids, &Device::flex()).reshape([2, 2]).cast(dtype);
        let mut step = || {
            let batch = Batch::new(ids([5, 100, 0, 127])).target(ids([3, 77, 126, 1]));
            pipeline.step(batch, 0.5).unwrap().loss
        };
        [step(), step()]
    };
    let expected = losses(DType::I64);
    assert!(expected[1] < expected[0], "{expected:?}");
    for dtype in [DType::I32, DType::I16, DType::I8, DType::U16, DType::U8] {
        assert_eq!(losses(dtype), expected, "{dtype:?}");
    }
}
