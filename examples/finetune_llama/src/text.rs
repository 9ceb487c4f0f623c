//! Text as tokens, by the `tokenizer.json` of a model's folder.

use crate::error::FinetuneError;
use burn::tensor::{Device, Int, Tensor, TensorData};
use std::path::Path;

/// A model's tokenizer.
#[derive(Debug)]
pub struct Text {
    tokenizer: tokenizers::Tokenizer,
    vocab: usize,
    path: std::path::PathBuf,
}

impl Text {
    /// Opens the tokenizer of a folder, for a model with this many tokens.
    ///
    /// # Errors
    /// Returns a [`FinetuneError`] if there is none, or it cannot be used.
    pub fn open(folder: &Path, vocab: usize) -> Result<Self, FinetuneError> {
        let path = folder.join("tokenizer.json");
        let text = std::fs::read(&path).map_err(FinetuneError::reading(&path))?;
        match tokenizers::Tokenizer::from_bytes(text) {
            Ok(tokenizer) => Ok(Self { tokenizer, vocab, path }),
            Err(error) => Err(FinetuneError::Tokenizer { path, message: error.to_string() }),
        }
    }

    /// The tokens of a text; with `start`, after those that the tokenizer puts before every text.
    ///
    /// # Errors
    /// Returns a [`FinetuneError`] if the model does not have one of the tokens.
    pub fn tokens(&self, text: &str, start: bool) -> Result<Vec<u32>, FinetuneError> {
        let encoding = self.tokenizer.encode(text, start).map_err(|error| self.failed(error))?;
        let tokens = encoding.get_ids().to_vec();
        match tokens.iter().max() {
            Some(&token) if token as usize >= self.vocab => Err(FinetuneError::Vocabulary { token, vocab: self.vocab }),
            _ => Ok(tokens),
        }
    }

    /// The text of tokens.
    ///
    /// # Errors
    /// Returns a [`FinetuneError`] if they are no text.
    pub fn text(&self, tokens: &[u32]) -> Result<String, FinetuneError> {
        self.tokenizer.decode(tokens, true).map_err(|error| self.failed(error))
    }

    fn failed(&self, error: tokenizers::Error) -> FinetuneError {
        FinetuneError::Tokenizer { path: self.path.clone(), message: error.to_string() }
    }
}

/// Tokens as ids `[rows, seq]`.
pub fn ids(tokens: &[u32], seq: usize, device: &Device) -> Tensor<2, Int> {
    let ids: Vec<i32> = tokens.iter().map(|&token| token as i32).collect();
    Tensor::from_data(TensorData::new(ids, [tokens.len() / seq, seq]), device)
}
