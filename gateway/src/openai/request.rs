//! Requests of `/v1/completions` and `/v1/chat/completions`.

use std::fmt::{self, Display};
use std::num::NonZeroU32;

use qdl::request::MAX_STOP_IDS;
use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Number, Value};

use super::ApiError;

/// OpenAI's bound on the number of stop strings.
const STOPS_MAX: usize = 4;
const STOP_BYTES_MAX: usize = 256;
const MESSAGES_MAX: usize = 4096;
const MODEL_BYTES_MAX: usize = 256;

/// Fields that change the answer in a way that no engine here offers, with what to do about them.
/// Each is accepted while its value changes nothing.
const UNSUPPORTED: [(&[&str], &str); 9] = [
    (
        &["n", "best_of", "use_beam_search"],
        "send a request for each answer",
    ),
    (
        &["logprobs", "top_logprobs", "prompt_logprobs"],
        "leave it out: no engine returns them",
    ),
    (
        &["echo", "continue_final_message"],
        "leave it out: answers begin after the prompt",
    ),
    (&["suffix"], "leave it out: text is continued, not inserted"),
    (
        &["tools", "functions"],
        "leave it out: the model calls no tools",
    ),
    (
        &["response_format", "structured_outputs"],
        "leave it out: answers are plain text",
    ),
    (
        &["logit_bias", "bad_words", "min_p"],
        "leave it out: use temperature, top_k and top_p",
    ),
    (
        &[
            "presence_penalty",
            "frequency_penalty",
            "repetition_penalty",
        ],
        "leave it out",
    ),
    (
        &["include_stop_str_in_output"],
        "leave it out: answers end before the stop string",
    ),
];

/// The two ways to ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// `POST /v1/completions`.
    Completions,
    /// `POST /v1/chat/completions`.
    Chat,
}

/// A request, checked.
#[derive(Clone, Debug, PartialEq)]
pub struct Completion {
    /// What is to be continued.
    pub prompt: Prompt,
    /// Whether the answer is sent as events.
    pub stream: bool,
    /// Whether the last event of a stream has the counts of tokens.
    pub include_usage: bool,
    /// Whether choices have `token_ids` beside their text.
    pub return_token_ids: bool,
    /// Most tokens of the answer.
    pub limit: Option<NonZeroU32>,
    /// How tokens are drawn.
    pub sampling: Sampling,
    /// Strings before the first of which the answer ends.
    pub stop: Vec<String>,
    /// Token ids with which the answer ends.
    pub stop_token_ids: Vec<i32>,
    /// Whether special tokens have no text.
    pub skip_special_tokens: bool,
    /// The model that the client names.
    pub model: Option<String>,
}

/// What is to be continued.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Prompt {
    /// Token ids, at least one, none negative. Ids beyond the vocabulary are not noticed here.
    Ids(Vec<i32>),
    /// A text.
    Text(String),
    /// Messages for the model's chat template.
    Chat(Messages),
}

/// A conversation, at least one message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Messages(pub Vec<Message>);

/// A message of a conversation.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Message {
    /// `system`, `developer`, `user` or `assistant`.
    pub role: String,
    /// The text; parts are joined with line feeds.
    #[serde(deserialize_with = "content")]
    pub content: String,
}

/// How tokens are drawn. `None` is the model's own default.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sampling {
    /// Fewest tokens of the answer.
    pub min_tokens: Option<u32>,
    /// 0 to 2; 0 takes the likeliest token.
    pub temperature: Option<f32>,
    /// Above 0, at most 1.
    pub top_p: Option<f32>,
    /// -1 or 0 for all tokens.
    pub top_k: Option<i32>,
    /// The bits of the client's 64-bit integer.
    pub seed: Option<u64>,
    /// Whether end tokens do not end the answer.
    pub ignore_eos: bool,
}

/// Reads the body of a request. The caller bounds its length; memory is a small multiple of it.
///
/// # Errors
///
/// Status 400 with the field at fault, the position in the body, and what to do.
pub fn parse(endpoint: Endpoint, body: &[u8]) -> Result<Completion, ApiError> {
    let mut fields = Fields::new(endpoint);
    let mut json = serde_json::Deserializer::from_slice(body);
    let result = DeserializeSeed::deserialize(&mut fields, &mut json).and_then(|()| json.end());
    let field = fields.current_field.take();
    match (result, field) {
        (Ok(()), _) => {}
        (Err(error), Some(field)) if error.is_data() => {
            let code = if fields.is_unsupported {
                "unsupported_parameter"
            } else {
                "invalid_value"
            };
            let error = ApiError::invalid(&field, format!("{field}: {error}"));
            return Err(ApiError {
                code: Some(code),
                ..error
            });
        }
        (Err(error), _) => {
            return Err(ApiError::unreadable(format!(
                "the body is no JSON object: {error}"
            )));
        }
    }
    fields.finish()
}

struct Fields {
    endpoint: Endpoint,
    /// The field that is being read, or was when reading failed.
    current_field: Option<String>,
    is_unsupported: bool,
    prompt: Option<Prompt>,
    max_completion_tokens: Option<NonZeroU32>,
    /// All other fields.
    completion: Completion,
}

impl Fields {
    fn new(endpoint: Endpoint) -> Self {
        let completion = Completion {
            prompt: Prompt::Ids(Vec::new()),
            stream: false,
            include_usage: false,
            return_token_ids: false,
            limit: None,
            sampling: Sampling::default(),
            stop: Vec::new(),
            stop_token_ids: Vec::new(),
            skip_special_tokens: true,
            model: None,
        };
        Self {
            endpoint,
            current_field: None,
            is_unsupported: false,
            prompt: None,
            max_completion_tokens: None,
            completion,
        }
    }

    fn finish(self) -> Result<Completion, ApiError> {
        let Some(prompt) = self.prompt else {
            return Err(match self.endpoint {
                Endpoint::Completions => {
                    ApiError::invalid("prompt", "prompt is missing: send a text or token ids")
                }
                Endpoint::Chat => ApiError::invalid("messages", "messages is missing"),
            });
        };
        let limit = self.max_completion_tokens.or(self.completion.limit);
        if let (Some(fewest), Some(limit)) = (self.completion.sampling.min_tokens, limit)
            && fewest > limit.get()
        {
            let message = format!("min_tokens: {fewest} is more than max_tokens, {limit}");
            return Err(ApiError::invalid("min_tokens", message));
        }
        Ok(Completion {
            prompt,
            limit,
            ..self.completion
        })
    }

    fn field<'de, A: MapAccess<'de>>(&mut self, name: &str, map: &mut A) -> Result<(), A::Error> {
        let completion = &mut self.completion;
        let sampling = &mut completion.sampling;
        match name {
            "prompt" if self.endpoint == Endpoint::Completions => {
                self.prompt = Some(map.next_value()?);
            }
            "messages" if self.endpoint == Endpoint::Chat => {
                self.prompt = Some(Prompt::Chat(messages(map.next_value()?)?));
            }
            "model" => {
                completion.model = map.next_value()?;
                if completion
                    .model
                    .as_ref()
                    .is_some_and(|it| it.len() > MODEL_BYTES_MAX)
                {
                    return Err(Error::custom(format!("more than {MODEL_BYTES_MAX} bytes")));
                }
            }
            "stream" => completion.stream = flag(map, false)?,
            "stream_options" => {
                let options: Option<StreamOptions> = map.next_value()?;
                completion.include_usage = options.and_then(|it| it.include_usage).unwrap_or(false);
            }
            "return_token_ids" => completion.return_token_ids = flag(map, false)?,
            "skip_special_tokens" => completion.skip_special_tokens = flag(map, true)?,
            "max_tokens" => completion.limit = limit(map)?,
            "max_completion_tokens" => self.max_completion_tokens = limit(map)?,
            "min_tokens" => sampling.min_tokens = map.next_value()?,
            "temperature" => sampling.temperature = number(map, "0 to 2", |it| it <= 2.0)?,
            "top_p" => {
                sampling.top_p = number(map, "above 0, at most 1", |it| it > 0.0 && it <= 1.0)?;
            }
            "top_k" => {
                let value: Option<i32> = map.next_value()?;
                sampling.top_k = within(value, "-1, 0 or a number of tokens", |it| it >= -1)?;
            }
            "seed" => {
                let value: Option<Number> = map.next_value()?;
                let bits = |it: &Number| it.as_u64().or(it.as_i64().map(i64::cast_unsigned));
                let is_integer = value.as_ref().is_none_or(|it| bits(it).is_some());
                if !is_integer {
                    return Err(Error::custom("an integer of 64 bits was expected"));
                }
                sampling.seed = value.as_ref().and_then(bits);
            }
            "ignore_eos" => sampling.ignore_eos = flag(map, false)?,
            "stop" => completion.stop = stops(map.next_value()?)?,
            "stop_token_ids" => {
                let ids: Vec<i32> = map.next_value::<Option<_>>()?.unwrap_or_default();
                at_most(ids.len(), MAX_STOP_IDS)?;
                if let Some(id) = ids.iter().find(|id| **id < 0) {
                    return Err(Error::custom(format!("{id} is no token id")));
                }
                completion.stop_token_ids = ids;
            }
            _ => match UNSUPPORTED.iter().find(|(names, _)| names.contains(&name)) {
                None => {
                    map.next_value::<IgnoredAny>()?;
                }
                Some((_, advice)) => {
                    if !is_neutral(name, &map.next_value()?) {
                        self.is_unsupported = true;
                        return Err(Error::custom(format!("not supported: {advice}")));
                    }
                }
            },
        }
        Ok(())
    }
}

/// Whether `value` of the unsupported field `name` asks for nothing.
fn is_neutral(name: &str, value: &Value) -> bool {
    match (name, value) {
        (_, Value::Null) => true,
        ("n" | "best_of" | "repetition_penalty", value) => value.as_f64() == Some(1.0),
        ("logprobs" | "prompt_logprobs", value) => *value == Value::Bool(false),
        ("response_format", value) => value.get("type").is_some_and(|it| it == "text"),
        (_, Value::Bool(value)) => !value,
        (_, Value::Number(value)) => value.as_f64() == Some(0.0),
        (_, Value::String(value)) => value.is_empty(),
        (_, Value::Array(value)) => value.is_empty(),
        (_, Value::Object(value)) => value.is_empty(),
    }
}

impl<'de> DeserializeSeed<'de> for &mut Fields {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<(), D::Error> {
        json.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for &mut Fields {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(name) = map.next_key::<String>()? {
            self.current_field = Some(name.clone());
            self.field(&name, &mut map)?;
            self.current_field = None;
        }
        Ok(())
    }
}

#[derive(Deserialize)]
struct StreamOptions {
    include_usage: Option<bool>,
}

fn flag<'de, A: MapAccess<'de>>(map: &mut A, default: bool) -> Result<bool, A::Error> {
    Ok(map.next_value::<Option<bool>>()?.unwrap_or(default))
}

fn limit<'de, A: MapAccess<'de>>(map: &mut A) -> Result<Option<NonZeroU32>, A::Error> {
    let range = "1 to 4294967295";
    let value = within(map.next_value::<Option<i64>>()?, range, |it| {
        u32::try_from(it).is_ok_and(|it| it > 0)
    })?;
    Ok(value
        .and_then(|it| u32::try_from(it).ok())
        .and_then(NonZeroU32::new))
}

/// A number that is not negative, and inside a range.
fn number<'de, A: MapAccess<'de>>(
    map: &mut A,
    range: &str,
    is_inside: fn(f32) -> bool,
) -> Result<Option<f32>, A::Error> {
    within(map.next_value()?, range, |it| it >= 0.0 && is_inside(it))
}

fn within<T: Copy + Display, E: Error>(
    value: Option<T>,
    range: &str,
    is_inside: impl Fn(T) -> bool,
) -> Result<Option<T>, E> {
    match value {
        Some(value) if !is_inside(value) => {
            Err(E::custom(format!("{value} is out of range: {range}")))
        }
        value => Ok(value),
    }
}

/// Reads one token id, element `.0` of its list.
struct IdVisitor(usize);

impl<'de> DeserializeSeed<'de> for IdVisitor {
    type Value = i32;

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<i32, D::Error> {
        json.deserialize_u32(self)
    }
}

impl Visitor<'_> for IdVisitor {
    type Value = i32;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a token id, 0 to {}, as element {}", i32::MAX, self.0)
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<i32, E> {
        i32::try_from(value).map_err(|_| {
            E::custom(format!(
                "element {}: {value} is no token id: 0 to {}",
                self.0,
                i32::MAX
            ))
        })
    }
}

fn ids<'de, A: SeqAccess<'de>>(mut list: A, mut ids: Vec<i32>) -> Result<Vec<i32>, A::Error> {
    while let Some(id) = list.next_element_seed(IdVisitor(ids.len()))? {
        ids.push(id);
    }
    if ids.is_empty() {
        Err(Error::custom("the list of token ids is empty"))
    } else {
        Ok(ids)
    }
}

/// What a prompt's place holds, or the first element of a list there.
enum Element {
    Id(i32),
    Prompt(Prompt),
}

struct PromptVisitor {
    is_in_list: bool,
}

impl<'de> Deserialize<'de> for Prompt {
    fn deserialize<D: Deserializer<'de>>(json: D) -> Result<Self, D::Error> {
        match json.deserialize_any(PromptVisitor { is_in_list: false })? {
            Element::Prompt(prompt) => Ok(prompt),
            Element::Id(_) => Err(Error::custom("token ids are sent as a list")),
        }
    }
}

impl<'de> DeserializeSeed<'de> for PromptVisitor {
    type Value = Element;

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<Element, D::Error> {
        json.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for PromptVisitor {
    type Value = Element;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text or a list of token ids")
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Element, E> {
        IdVisitor(0).visit_u64(value).map(Element::Id)
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Element, E> {
        IdVisitor(0).visit_i64(value).map(Element::Id)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Element, E> {
        Ok(Element::Prompt(Prompt::Text(text.to_owned())))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Element, A::Error> {
        if self.is_in_list {
            return Ok(Element::Prompt(Prompt::Ids(ids(list, Vec::new())?)));
        }
        match list.next_element_seed(PromptVisitor { is_in_list: true })? {
            None => Err(Error::custom("the list is empty")),
            Some(Element::Id(id)) => Ok(Element::Prompt(Prompt::Ids(ids(list, vec![id])?))),
            Some(prompt) if list.next_element::<IgnoredAny>()?.is_none() => Ok(prompt),
            Some(_) => Err(Error::custom(
                "more than one prompt: send each as its own request",
            )),
        }
    }
}

fn at_most<E: Error>(count: usize, most: usize) -> Result<(), E> {
    if count > most {
        return Err(E::custom(format!(
            "{count} elements: at most {most} are accepted"
        )));
    }
    Ok(())
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "a string or a list of strings was expected")]
enum Stops {
    One(String),
    Several(Vec<String>),
}

fn stops<E: Error>(stops: Option<Stops>) -> Result<Vec<String>, E> {
    let stops = match stops {
        None => Vec::new(),
        Some(Stops::One(stop)) => vec![stop],
        Some(Stops::Several(stops)) => stops,
    };
    at_most(stops.len(), STOPS_MAX)?;
    if stops
        .iter()
        .any(|stop| stop.is_empty() || stop.len() > STOP_BYTES_MAX)
    {
        return Err(E::custom(format!(
            "a stop string has 1 to {STOP_BYTES_MAX} bytes"
        )));
    }
    Ok(stops)
}

fn messages<E: Error>(messages: Vec<Message>) -> Result<Messages, E> {
    at_most(messages.len(), MESSAGES_MAX)?;
    if messages.is_empty() {
        return Err(E::custom("the list is empty"));
    }
    let known = ["system", "developer", "user", "assistant"];
    if let Some(message) = messages
        .iter()
        .find(|message| !known.contains(&&*message.role))
    {
        let role = &message.role;
        let expected = "system, developer, user or assistant was expected";
        return Err(E::custom(format!("role `{role}`: {expected}")));
    }
    Ok(Messages(messages))
}

#[derive(Deserialize)]
#[serde(
    untagged,
    expecting = "content is a text, or a list of parts of type text"
)]
enum Content {
    Text(String),
    Parts(Vec<Part>),
}

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
enum Part {
    Text { text: String },
}

fn content<'de, D: Deserializer<'de>>(json: D) -> Result<String, D::Error> {
    Ok(match Content::deserialize(json)? {
        Content::Text(text) => text,
        Content::Parts(parts) => {
            let texts: Vec<&str> = parts.iter().map(|Part::Text { text }| &**text).collect();
            texts.join("\n")
        }
    })
}
