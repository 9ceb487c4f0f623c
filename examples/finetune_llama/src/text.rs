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
        let failed = |error: tokenizers::Error| {
            let (path, message) = (path.clone(), error.to_string());
            FinetuneError::Tokenizer { path, message }
        };
        let mut tokenizer = tokenizers::Tokenizer::from_bytes(text).map_err(failed)?;
        // Both are saved for batches of inputs; here a text is encoded as a whole.
        tokenizer.with_truncation(None).map_err(failed)?;
        tokenizer.with_padding(None);
        Ok(Self { tokenizer, vocab, path })
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

    /// The prompt with what follows it. `start` are the prompt's tokens, and `new` those after them.
    ///
    /// They are decoded together, as some decoders drop the space before the first token.
    ///
    /// # Errors
    /// Returns a [`FinetuneError`] if they are no text.
    pub fn continued(&self, prompt: &str, start: &[u32], new: &[u32]) -> Result<String, FinetuneError> {
        let all = self.text(&[start, new].concat())?;
        Ok(match all.strip_prefix(&self.text(start)?) {
            Some(rest) => format!("{prompt}{rest}"),
            None => all,
        })
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

#[cfg(test)]
mod tests {
    use super::*;
    use tempfile::tempdir;

    /// A tokenizer of five words, saved by a training that cut its inputs to two tokens and filled them up to eight.
    const SAVED: &str = r#"{"version": "1.0",
        "truncation": {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0},
        "padding": {"strategy": {"Fixed": 8}, "direction": "Right", "pad_to_multiple_of": null, "pad_id": 0,
            "pad_type_id": 0, "pad_token": "none"},
        "added_tokens": [], "normalizer": null, "pre_tokenizer": {"type": "WhitespaceSplit"}, "post_processor": null,
        "decoder": null, "model": {"type": "WordLevel", "vocab": {"none": 0, "to": 1, "be": 2, "or": 3, "not": 4},
            "unk_token": "none"}}"#;

    #[test]
    fn a_text_is_encoded_as_a_whole_whatever_the_tokenizer_was_saved_with() {
        let folder = tempdir().unwrap();
        std::fs::write(folder.path().join("tokenizer.json"), SAVED).unwrap();
        let text = Text::open(folder.path(), 5).unwrap();
        assert_eq!(text.tokens("to be or not to be", false).unwrap(), [1, 2, 3, 4, 1, 2]);
        assert_eq!(text.tokens("to", true).unwrap(), [1]);
    }

    /// `to  be`, and what tokens after it decode to with a tokenizer's decoder.
    fn after_to_be(decoder: &str, new: &[u32]) -> String {
        let folder = tempdir().unwrap();
        let saved = SAVED.replace(r#""decoder": null"#, &format!(r#""decoder": {decoder}"#));
        std::fs::write(folder.path().join("tokenizer.json"), saved).unwrap();
        let text = Text::open(folder.path(), 5).unwrap();
        text.continued("to  be", &[1, 2], new).unwrap()
    }

    #[test]
    fn a_prompt_is_written_as_given_unless_what_follows_changes_how_it_decodes() {
        assert_eq!(after_to_be("null", &[3, 4]), "to  be or not");
        assert_eq!(after_to_be("null", &[]), "to  be");
        // Words are joined, and the last one of the prompt becomes part of another.
        let joins = r#"{"type": "Sequence", "decoders": [{"type": "Fuse"},
            {"type": "Replace", "pattern": {"String": "beor"}, "content": "abhor"}]}"#;
        assert_eq!(after_to_be(joins, &[4]), "to  benot");
        assert_eq!(after_to_be(joins, &[3]), "toabhor");
    }
}
