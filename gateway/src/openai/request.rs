//! Requests of `/v1/completions` and `/v1/chat/completions`.

use std::fmt::{self, Display};
use std::num::NonZeroU32;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Number, Value};

use super::ApiError;

/// OpenAI's bound on the number of stop strings.
const STOPS_MAX: usize = 4;
const STOP_BYTES_MAX: usize = 256;
const STOP_IDS_MAX: usize = 64;
const MESSAGES_MAX: usize = 4096;
const MODEL_BYTES_MAX: usize = 256;

/// Fields that change the answer in a way that no engine here offers. Each is taken while its
/// value changes nothing.
const UNSUPPORTED: [(&str, &str); 21] = [
    ("n", "send the request n times"),
    ("best_of", "send the request several times and choose"),
    (
        "logprobs",
        "leave it out: log probabilities are not computed",
    ),
    (
        "top_logprobs",
        "leave it out: log probabilities are not computed",
    ),
    (
        "prompt_logprobs",
        "leave it out: log probabilities are not computed",
    ),
    ("echo", "leave it out and put the prompt before the answer"),
    (
        "suffix",
        "leave it out: text is only continued, never inserted",
    ),
    ("tools", "leave it out: tools are not called"),
    ("functions", "leave it out: functions are not called"),
    ("response_format", "leave it out: answers are plain text"),
    ("structured_outputs", "leave it out: answers are plain text"),
    ("logit_bias", "leave it out: logits are not changed"),
    ("bad_words", "leave it out: logits are not changed"),
    (
        "presence_penalty",
        "leave it out: penalties are not applied",
    ),
    (
        "frequency_penalty",
        "leave it out: penalties are not applied",
    ),
    (
        "repetition_penalty",
        "leave it out: penalties are not applied",
    ),
    ("min_p", "leave it out and use top_p"),
    (
        "use_beam_search",
        "leave it out: one continuation is sampled",
    ),
    (
        "include_stop_str_in_output",
        "leave it out: the answer ends before the stop string",
    ),
    (
        "continue_final_message",
        "leave it out: each answer is a new message",
    ),
    ("stream_interval", "leave it out: each token is an event"),
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
    let field = fields.current.take();
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
    current: Option<String>,
    is_unsupported: bool,
    prompt: Option<Prompt>,
    stream: bool,
    include_usage: bool,
    return_token_ids: bool,
    max_tokens: Option<NonZeroU32>,
    max_completion_tokens: Option<NonZeroU32>,
    sampling: Sampling,
    stop: Vec<String>,
    stop_token_ids: Vec<i32>,
    skip_special_tokens: bool,
    model: Option<String>,
}

impl Fields {
    fn new(endpoint: Endpoint) -> Self {
        Self {
            endpoint,
            current: None,
            is_unsupported: false,
            prompt: None,
            stream: false,
            include_usage: false,
            return_token_ids: false,
            max_tokens: None,
            max_completion_tokens: None,
            sampling: Sampling::default(),
            stop: Vec::new(),
            stop_token_ids: Vec::new(),
            skip_special_tokens: true,
            model: None,
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
        let limit = self.max_completion_tokens.or(self.max_tokens);
        if let (Some(fewest), Some(limit)) = (self.sampling.min_tokens, limit)
            && fewest > limit.get()
        {
            let message = format!("min_tokens: {fewest} is more than max_tokens, {limit}");
            return Err(ApiError::invalid("min_tokens", message));
        }
        Ok(Completion {
            prompt,
            stream: self.stream,
            include_usage: self.include_usage,
            return_token_ids: self.return_token_ids,
            limit,
            sampling: self.sampling,
            stop: self.stop,
            stop_token_ids: self.stop_token_ids,
            skip_special_tokens: self.skip_special_tokens,
            model: self.model,
        })
    }

    fn field<'de, A: MapAccess<'de>>(&mut self, name: &str, map: &mut A) -> Result<(), A::Error> {
        let sampling = &mut self.sampling;
        match name {
            "prompt" if self.endpoint == Endpoint::Completions => {
                self.prompt = Some(map.next_value()?);
            }
            "messages" if self.endpoint == Endpoint::Chat => {
                self.prompt = Some(Prompt::Chat(map.next_value()?));
            }
            "model" => {
                self.model = map.next_value()?;
                if self
                    .model
                    .as_ref()
                    .is_some_and(|model| model.len() > MODEL_BYTES_MAX)
                {
                    return Err(Error::custom(format!("more than {MODEL_BYTES_MAX} bytes")));
                }
            }
            "stream" => self.stream = flag(map)?.unwrap_or(false),
            "stream_options" => {
                let options: Option<StreamOptions> = map.next_value()?;
                self.include_usage = options.and_then(|it| it.include_usage).unwrap_or(false);
            }
            "return_token_ids" => self.return_token_ids = flag(map)?.unwrap_or(false),
            "skip_special_tokens" => self.skip_special_tokens = flag(map)?.unwrap_or(true),
            "max_tokens" => self.max_tokens = limit(map)?,
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
            "ignore_eos" => sampling.ignore_eos = flag(map)?.unwrap_or(false),
            "stop" => self.stop = map.next_value::<Stops>()?.0,
            "stop_token_ids" => {
                self.stop_token_ids = map
                    .next_value::<Option<StopIds>>()?
                    .map_or(vec![], |it| it.0)
            }
            _ => match UNSUPPORTED.iter().find(|(it, _)| *it == name) {
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
        ("stream_interval", value) => value.as_u64() == Some(1),
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
            self.current = Some(name.clone());
            self.field(&name, &mut map)?;
            self.current = None;
        }
        Ok(())
    }
}

#[derive(Deserialize)]
struct StreamOptions {
    include_usage: Option<bool>,
}

fn flag<'de, A: MapAccess<'de>>(map: &mut A) -> Result<Option<bool>, A::Error> {
    map.next_value()
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
struct IdAt(usize);

impl<'de> DeserializeSeed<'de> for IdAt {
    type Value = i32;

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<i32, D::Error> {
        json.deserialize_u32(self)
    }
}

impl Visitor<'_> for IdAt {
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
    while let Some(id) = list.next_element_seed(IdAt(ids.len()))? {
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

struct ElementAt {
    is_in_list: bool,
}

impl<'de> Deserialize<'de> for Prompt {
    fn deserialize<D: Deserializer<'de>>(json: D) -> Result<Self, D::Error> {
        match json.deserialize_any(ElementAt { is_in_list: false })? {
            Element::Prompt(prompt) => Ok(prompt),
            Element::Id(_) => Err(Error::custom("token ids are sent as a list")),
        }
    }
}

impl<'de> DeserializeSeed<'de> for ElementAt {
    type Value = Element;

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<Element, D::Error> {
        json.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for ElementAt {
    type Value = Element;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text or a list of token ids")
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Element, E> {
        IdAt(0).visit_u64(value).map(Element::Id)
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Element, E> {
        IdAt(0).visit_i64(value).map(Element::Id)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Element, E> {
        Ok(Element::Prompt(Prompt::Text(text.to_owned())))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Element, A::Error> {
        if self.is_in_list {
            return Ok(Element::Prompt(Prompt::Ids(ids(list, Vec::new())?)));
        }
        match list.next_element_seed(ElementAt { is_in_list: true })? {
            None => Err(Error::custom("the list is empty")),
            Some(Element::Id(id)) => Ok(Element::Prompt(Prompt::Ids(ids(list, vec![id])?))),
            Some(prompt) if list.next_element::<IgnoredAny>()?.is_none() => Ok(prompt),
            Some(_) => Err(Error::custom(
                "more than one prompt: send each as its own request",
            )),
        }
    }
}

/// A list of at most `most` elements.
fn bounded<'de, T: Deserialize<'de>, A: SeqAccess<'de>>(
    mut list: A,
    most: usize,
) -> Result<Vec<T>, A::Error> {
    let mut elements = Vec::new();
    while let Some(element) = list.next_element()? {
        if elements.len() == most {
            return Err(Error::custom(format!("more than {most} elements")));
        }
        elements.push(element);
    }
    Ok(elements)
}

struct StopIds(Vec<i32>);

impl<'de> Deserialize<'de> for StopIds {
    fn deserialize<D: Deserializer<'de>>(json: D) -> Result<Self, D::Error> {
        struct Ids;
        impl<'de> Visitor<'de> for Ids {
            type Value = StopIds;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of token ids")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<StopIds, A::Error> {
                bounded(list, STOP_IDS_MAX).map(StopIds)
            }
        }
        json.deserialize_seq(Ids)
    }
}

struct Stops(Vec<String>);

impl Stops {
    fn checked<E: Error>(stops: Vec<String>) -> Result<Self, E> {
        if stops
            .iter()
            .any(|stop| stop.is_empty() || stop.len() > STOP_BYTES_MAX)
        {
            return Err(E::custom(format!(
                "a stop string has 1 to {STOP_BYTES_MAX} bytes"
            )));
        }
        Ok(Self(stops))
    }
}

impl<'de> Deserialize<'de> for Stops {
    fn deserialize<D: Deserializer<'de>>(json: D) -> Result<Self, D::Error> {
        json.deserialize_any(StopsVisitor)
    }
}

struct StopsVisitor;

impl<'de> Visitor<'de> for StopsVisitor {
    type Value = Stops;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string or a list of strings")
    }

    fn visit_unit<E: Error>(self) -> Result<Stops, E> {
        Ok(Stops(Vec::new()))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Stops, E> {
        Stops::checked(vec![text.to_owned()])
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Stops, A::Error> {
        Stops::checked(bounded(list, STOPS_MAX)?)
    }
}

impl<'de> Deserialize<'de> for Messages {
    fn deserialize<D: Deserializer<'de>>(json: D) -> Result<Self, D::Error> {
        json.deserialize_seq(MessagesVisitor)
    }
}

struct MessagesVisitor;

impl<'de> Visitor<'de> for MessagesVisitor {
    type Value = Messages;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of messages")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Messages, A::Error> {
        let messages: Vec<Message> = bounded(list, MESSAGES_MAX)?;
        let known = ["system", "developer", "user", "assistant"];
        match messages
            .iter()
            .find(|message| !known.contains(&&*message.role))
        {
            _ if messages.is_empty() => Err(Error::custom("the list is empty")),
            None => Ok(Messages(messages)),
            Some(message) => Err(Error::custom(format!(
                "role `{}`: system, developer, user or assistant was expected",
                message.role
            ))),
        }
    }
}

fn content<'de, D: Deserializer<'de>>(json: D) -> Result<String, D::Error> {
    json.deserialize_any(ContentVisitor)
}

#[derive(Deserialize)]
struct Part {
    r#type: String,
    text: Option<String>,
}

struct ContentVisitor;

impl<'de> Visitor<'de> for ContentVisitor {
    type Value = String;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("content: a text or a list of parts")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<String, E> {
        Ok(text.to_owned())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<String, A::Error> {
        let mut content = String::new();
        let mut is_first = true;
        while let Some(part) = list.next_element::<Part>()? {
            let Some(text) = part.text.filter(|_| part.r#type == "text") else {
                let message = format!("a part of type `{}`: send parts of type text", part.r#type);
                return Err(Error::custom(message));
            };
            if !is_first {
                content.push('\n');
            }
            is_first = false;
            content += &text;
        }
        Ok(content)
    }
}
