//! The model's tokenizer and chat template, read from the model's folder.

mod decoder;
mod stop;
mod template;
#[cfg(test)]
mod tests;

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use serde_json::Value;
use tokenizers::{Model, Tokenizer};

use crate::openai::Messages;
pub use decoder::Decoder;
use decoder::Table;
pub use stop::{Released, StopStrings};
use template::Template;

/// Why text or messages could not be turned into ids.
#[derive(Debug, thiserror::Error)]
pub enum TextError {
    /// A file of the model's folder is missing or not what it should be.
    #[error("{path}: {why}", path = path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// The folder has no chat template, or one that cannot be used.
    #[error("no chat template: {0}: send prompts to /v1/completions")]
    NoTemplate(String),
    /// The template does not take these messages.
    #[error("messages do not fit the model's chat template: {0}")]
    Messages(String),
    /// The tokenizer does not take this text.
    #[error("the tokenizer refused the text: {0}")]
    Encode(String),
}

/// A model's tokenizer and chat template. Shared between threads.
pub struct Text {
    tokenizer: Tokenizer,
    /// `None` if the decoder's text of a token depends on the tokens around it.
    table: Option<Table>,
    template: Result<Template, String>,
    vocabulary_len: usize,
    end_ids: Vec<i32>,
}

impl Text {
    /// Reads `tokenizer.json` of a model's folder and, if they exist, `tokenizer_config.json`,
    /// `generation_config.json` and `chat_template.jinja`.
    ///
    /// # Errors
    ///
    /// [`TextError::File`]. A chat template with an error is reported by [`Text::encode_chat`].
    pub fn open(folder: &Path) -> Result<Self, TextError> {
        let path = folder.join("tokenizer.json");
        let json = read(&path)?.ok_or_else(|| TextError::File {
            path: path.clone(),
            why: "no such file: it comes with the model from Hugging Face".to_owned(),
        })?;
        let wrong = |why: String| TextError::File {
            path: path.clone(),
            why,
        };
        let mut tokenizer = Tokenizer::from_bytes(&json).map_err(|it| wrong(it.to_string()))?;
        tokenizer.with_padding(None);
        tokenizer
            .with_truncation(None)
            .map_err(|it| wrong(it.to_string()))?;
        let written: Value = serde_json::from_slice(&json).map_err(|it| wrong(it.to_string()))?;
        let ids = tokenizer.get_vocab(true);
        let vocabulary_len = ids.values().max().map_or(0, |id| *id as usize + 1);
        if vocabulary_len > 1 << 24 {
            return Err(wrong(format!(
                "token id {}: at most 2^24 are read",
                vocabulary_len - 1
            )));
        }
        drop(ids);

        let config = json_file(&folder.join("tokenizer_config.json"))?;
        let generation = json_file(&folder.join("generation_config.json"))?;
        let as_id = |id: &Value| id.as_i64().and_then(|id| i32::try_from(id).ok());
        let mut end_ids: Vec<i32> = match &generation["eos_token_id"] {
            Value::Array(list) => list.iter().filter_map(as_id).collect(),
            id => as_id(id).into_iter().collect(),
        };
        if end_ids.is_empty()
            && let Some(end) = template::special(&config["eos_token"])
        {
            end_ids.extend(
                tokenizer
                    .token_to_id(end)
                    .and_then(|id| i32::try_from(id).ok()),
            );
        }
        let source = read(&folder.join("chat_template.jinja"))?;
        Ok(Self {
            table: Table::new(&tokenizer, &written["decoder"], vocabulary_len),
            template: Template::new(source, &config),
            tokenizer,
            vocabulary_len,
            end_ids,
        })
    }

    /// Ids of a prompt, with the special tokens that the tokenizer puts around a text.
    ///
    /// # Errors
    ///
    /// [`TextError::Encode`].
    pub fn encode(&self, text: &str) -> Result<Vec<i32>, TextError> {
        self.ids(text, true)
    }

    /// Ids of a conversation up to where the assistant's next message begins.
    ///
    /// # Errors
    ///
    /// [`TextError::Messages`] if the template refuses the messages or they take too long;
    /// [`TextError::NoTemplate`]; [`TextError::Encode`].
    pub fn encode_chat(&self, messages: &Messages) -> Result<Vec<i32>, TextError> {
        let template = self
            .template
            .as_ref()
            .map_err(|it| TextError::NoTemplate(it.clone()))?;
        self.ids(&template.render(messages)?, false)
    }

    /// The text of `ids`, all at once. Ids outside the vocabulary have none.
    pub fn decode(&self, ids: &[i32], skip_special_tokens: bool) -> String {
        let ids: Vec<u32> = ids
            .iter()
            .filter_map(|id| u32::try_from(*id).ok())
            .collect();
        self.tokenizer
            .decode(&ids, skip_special_tokens)
            .unwrap_or_default()
    }

    /// One more than the largest id.
    pub fn vocabulary_len(&self) -> usize {
        self.vocabulary_len
    }

    /// Ids that end an answer: `eos_token_id` of `generation_config.json`, else `eos_token`.
    pub fn end_ids(&self) -> &[i32] {
        &self.end_ids
    }

    /// Turns samples of ids into text and back, and counts those whose number of ids changes.
    ///
    /// MLPerf Endpoints' client counts the tokens of an answer from its text.
    pub fn check_round_trip<'a>(&self, samples: impl Iterator<Item = &'a [i32]>) -> RoundTrip {
        let mut result = RoundTrip::default();
        for ids in samples {
            result.tried += 1;
            let sent = ids.iter().filter(|id| !self.is_special(**id)).count();
            let text = self.decode(ids, true);
            let counted = self.ids(&text, false).map_or(0, |ids| ids.len());
            result.differing += usize::from(counted != sent);
        }
        result
    }

    fn ids(&self, text: &str, add_special: bool) -> Result<Vec<i32>, TextError> {
        let encoding = self
            .tokenizer
            .encode_fast(text, add_special)
            .map_err(|it| TextError::Encode(it.to_string()))?;
        // An id is below 2^24.
        Ok(encoding
            .get_ids()
            .iter()
            .map(|id| id.cast_signed())
            .collect())
    }

    /// The token with this id as the vocabulary has it.
    fn token(tokenizer: &Tokenizer, id: u32) -> Option<String> {
        let added = tokenizer.get_added_vocabulary().simple_id_to_token(id);
        added.or_else(|| tokenizer.get_model().id_to_token(id))
    }

    fn is_special(&self, id: i32) -> bool {
        u32::try_from(id)
            .ok()
            .and_then(|id| Self::token(&self.tokenizer, id))
            .is_some_and(|token| {
                self.tokenizer
                    .get_added_vocabulary()
                    .is_special_token(&token)
            })
    }
}

/// What [`Text::check_round_trip`] found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RoundTrip {
    /// Samples looked at.
    pub tried: usize,
    /// Samples whose text has another number of ids.
    pub differing: usize,
}

/// A file's bytes, `None` if there is no such file.
fn read(path: &Path) -> Result<Option<Vec<u8>>, TextError> {
    match fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(TextError::File {
            path: path.to_owned(),
            why: error.to_string(),
        }),
    }
}

/// A JSON file, null if there is no such file.
fn json_file(path: &Path) -> Result<Value, TextError> {
    match read(path)? {
        None => Ok(Value::Null),
        Some(json) => serde_json::from_slice(&json).map_err(|it| TextError::File {
            path: path.to_owned(),
            why: it.to_string(),
        }),
    }
}
