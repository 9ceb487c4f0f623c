//! Side data of text windows for the mixture-of-experts model: computed once per batch, cut with its samples, and
//! read by the stages that name it.
//!
//! | side data | from the bytes | who reads it |
//! |---|---|---|
//! | documents | they begin at the byte given as `--bos` | every stage |
//! | relations | two bytes stand on one line; in one word | every stage |
//! | structure | what kind of byte it is | the first stage |
//! | platform | how the window begins: within a word, before one, on a new line | the first stage |
//! | tokens | the bytes themselves | the last stage |

use crate::corpus::Windows;
use crate::moe::gpt::MoeGptConfig;
use crate::moe::signal::{DOCUMENTS, PLATFORM, RELATIONS, STRUCTURE, TOKENS};
use crate::training::tokens;
use burn::tensor::{Device, Int, Tensor, TensorData};
use burn_pipeline::stage::Batch;
use burn_pipeline_moe::extras::document_ids;

/// The number of relations in the text.
pub const RELATIONS_OF_TEXT: usize = 2;
/// The number of kinds of bytes.
pub const STRUCTURES_OF_TEXT: usize = 5;
/// The number of ways in which windows start.
pub const PLATFORMS_OF_TEXT: usize = 3;

/// Adds the side data of these windows that the model's stages read. Without `bos`, a window is one document.
pub fn with_sides(batch: Batch, model: &MoeGptConfig, windows: &Windows, bos: Option<u8>, device: &Device) -> Batch {
    let (inputs, seq) = (tokens(&windows.inputs, windows.seq, device), windows.seq);
    let found = match bos {
        Some(bos) => document_ids(inputs.clone(), i64::from(bos)),
        None => Tensor::zeros_like(&inputs),
    };
    let mut batch = batch.extra(DOCUMENTS, found);
    if model.relations > 0 {
        batch = batch.extra(RELATIONS, relations(windows, device));
    }
    if model.structures > 0 {
        let kinds: Vec<i32> = windows.inputs.iter().map(|&byte| kind(byte)).collect();
        let kinds = Tensor::<2, Int>::from_data(TensorData::new(kinds, [windows.rows(), seq]), device);
        batch = batch.extra(STRUCTURE, kinds);
    }
    if model.platforms > 0 {
        let begins: Vec<i32> = windows.inputs.chunks(seq).map(|row| beginning(row[0])).collect();
        batch = batch.extra(PLATFORM, Tensor::<1, Int>::from_ints(&*begins, device));
    }
    if !model.ahead.is_empty() {
        batch = batch.extra(TOKENS, inputs);
    }
    batch
}

/// The kind of a byte: small letter, capital, space, new line, anything else.
fn kind(byte: u8) -> i32 {
    match byte {
        b'a'..=b'z' => 0,
        b'A'..=b'Z' => 1,
        b' ' => 2,
        b'\n' => 3,
        _ => 4,
    }
}

fn beginning(byte: u8) -> i32 {
    match byte {
        b'\n' => 2,
        byte if byte.is_ascii_alphanumeric() => 0,
        _ => 1,
    }
}

/// `[rows, 2, seq, seq]`: 1 if two bytes are on one line, and if they are in one word.
fn relations(windows: &Windows, device: &Device) -> Tensor<4> {
    let (rows, seq) = (windows.rows(), windows.seq);
    let mut values = Vec::with_capacity(rows * RELATIONS_OF_TEXT * seq * seq);
    for row in windows.inputs.chunks(seq) {
        for of in [counted(row, |byte| byte == b'\n'), counted(row, |byte| !byte.is_ascii_alphanumeric())] {
            values.extend(of.iter().flat_map(|one| of.iter().map(move |other| f32::from(u8::from(one == other)))));
        }
    }
    Tensor::from_data(TensorData::new(values, [rows, RELATIONS_OF_TEXT, seq, seq]), device)
}

/// For each byte, the number of line or word ends up to it.
fn counted(row: &[u8], ends: fn(u8) -> bool) -> Vec<usize> {
    let count = |count: &mut usize, &byte: &u8| {
        *count += usize::from(ends(byte));
        Some(*count)
    };
    row.iter().scan(0, count).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_one_line_and_of_one_word_are_related() {
        let windows = Windows { seq: 6, inputs: b"ab c\nd".to_vec(), targets: b"b c\nde".to_vec() };
        let values: Vec<f32> = relations(&windows, &Device::flex()).into_data().iter::<f32>().collect();
        let related = |relation: usize, i: usize, j: usize| values[(relation * 6 + i) * 6 + j] == 1.0;
        for i in 0..6 {
            for j in 0..6 {
                assert_eq!(related(0, i, j), (i < 4) == (j < 4), "line: {i} and {j}");
                let word = |i: usize| [0, 0, 1, 1, 2, 2][i];
                assert_eq!(related(1, i, j), word(i) == word(j), "word: {i} and {j}");
            }
        }
    }

    #[test]
    fn only_what_the_model_reads_is_made() {
        let windows = Windows { seq: 2, inputs: b"Ab\n,".to_vec(), targets: b"b\n,c".to_vec() };
        let names = |model: &MoeGptConfig| {
            let batch = with_sides(Batch::new(()), model, &windows, Some(b'\n'), &Device::flex()).cut(2).unwrap();
            let all = [DOCUMENTS, RELATIONS, STRUCTURE, PLATFORM, TOKENS];
            all.into_iter().filter(|&name| batch.extra(0, &[name], 0).is_ok()).collect::<Vec<_>>()
        };
        assert_eq!(names(&MoeGptConfig::new()), [DOCUMENTS]);
        let model = MoeGptConfig::new().with_relations(2).with_structures(5).with_platforms(3);
        assert_eq!(names(&model.with_ahead("D".to_owned())), [DOCUMENTS, RELATIONS, STRUCTURE, PLATFORM, TOKENS]);
        assert_eq!([b'A', b'b', b'\n', b',', b' '].map(kind), [1, 0, 3, 4, 2]);
        assert_eq!([b'A', b'\n', b',', b' '].map(beginning), [0, 2, 1, 1]);
    }
}
