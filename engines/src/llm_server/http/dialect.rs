//! The dialects: how an answer is requested from each server, and what the server says of itself.
//!
//! `docs/llm-servers.md` has the versions that have run.
//!
//! | dialect | ids of an event | source |
//! | --- | --- | --- |
//! | `vllm` | new | vLLM's `entrypoints/openai/completion/protocol.py` |
//! | `vllm_generate` | new | vLLM's `entrypoints/serve/disagg/{protocol,serving}.py` |
//! | `sglang` | new, or all so far | SGLang's `srt/managers/tokenizer_manager.py` |
//! | `tensorrt_llm` | new | TensorRT-LLM's `serve/openai_protocol.py` |
//! | `llama_cpp` | new, with gaps | llama.cpp's `tools/server/server-context.cpp` |
//!
//! * **vLLM**: the headers arrive before the first token. If a prompt has an id outside the
//!   vocabulary, the whole server ends. `/inference/v1/generate` needs `--enable-scale-out` in
//!   later versions; it accepts prompts longer than the context.
//! * **SGLang** sends only new ids with `--incremental-streaming-output` (`--stream-output` in
//!   older versions). Lists of all ids take time quadratic in an answer's length.
//! * **trtllm-serve** rejects unknown fields of a request. It reports neither its context nor its
//!   vocabulary, nor whether `kv_cache_config.enable_block_reuse` is on (it is by default).
//! * **llama.cpp** cannot be asked for a minimum length or for stop ids. To a prompt longer than a
//!   slot's context, it answers with status 400.
//!
//! In every dialect, the end of sequence or the stop id is among the ids. No function here does
//! I/O.

use record::NodeRole;
use serde::Deserialize;
use serde_json::{Value, json};

use super::chunk::IdList;
use crate::{
    config::{self, HttpConfig},
    llm_server::account::{Account, Limits, signed},
};
use qdl::request::{OptionSet, RequestOption, RequestOptions};

/// Parameters of a request, the same for every sequence.
#[derive(Clone, Debug)]
pub(super) struct AnswerParams {
    pub config: HttpConfig,
    /// The model's name on the server.
    pub model: String,
    pub limits: Limits,
    /// Most ids in a prompt.
    pub max_prompt: usize,
}

impl AnswerParams {
    /// Parameters before the start, which learns the vocabulary.
    pub fn new(
        config: HttpConfig,
        model: &str,
        max_prompt: usize,
        max_tokens: usize,
        role: NodeRole,
    ) -> Self {
        let eos = config.eos.iter().filter(|_| !config.ignore_eos);
        AnswerParams {
            model: config.model.clone().unwrap_or_else(|| model.to_owned()),
            limits: Limits {
                engine: "http",
                vocab: 0,
                // The start compares it with the longest sample.
                context: usize::MAX,
                min_tokens: config.min_tokens,
                max_tokens,
                ends: config.stop.iter().chain(eos).copied().collect(),
                stops: config.stop.clone(),
                are_all_ends: config.ignore_eos || !config.eos.is_empty(),
                counts_answers: true,
                role,
            },
            max_prompt,
            config,
        }
    }

    /// Parameters of the request of `account`: the configuration's, where its `options` have none.
    fn of_request(&self, account: &Account, options: &RequestOptions) -> RequestParams {
        let stops = options
            .stop_ids
            .iter()
            .filter_map(|id| u32::try_from(*id).ok());
        RequestParams {
            max_tokens: account.max,
            min_tokens: account.min,
            temperature: options
                .temperature
                .map_or(self.config.temperature, f64::from),
            ignore_eos: self.config.ignore_eos || options.ignore_eos,
            stop: self.config.stop.iter().copied().chain(stops).collect(),
            top_p: options.top_p,
            top_k: options.top_k,
            seed: options.seed.or(account.seed),
        }
    }
}

/// Parameters of one request.
struct RequestParams {
    max_tokens: usize,
    min_tokens: usize,
    temperature: f64,
    ignore_eos: bool,
    stop: Vec<u32>,
    top_p: Option<f32>,
    top_k: Option<u32>,
    seed: Option<u64>,
}

impl RequestParams {
    /// Adds the parameters that only a request with options has.
    /// `seed` folds a seed to the server's range; `None` for a server without seeds.
    fn put_options(&self, object: Value, seed: Option<fn(u64) -> u64>) -> Value {
        let options = [
            ("top_p", self.top_p.map(Value::from)),
            ("top_k", self.top_k.map(Value::from)),
            (
                "seed",
                self.seed.zip(seed).map(|(own, fold)| fold(own).into()),
            ),
        ];
        let set = options
            .into_iter()
            .filter_map(|(key, value)| Some((key.to_owned(), value?)));
        merge(object, Value::Object(set.collect()))
    }
}

/// What a server says of itself.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct ServerFacts {
    pub models: Vec<String>,
    /// Most tokens of prompt and answer together.
    pub context: Option<usize>,
    pub vocab: Option<usize>,
    pub prefix_cache: Option<bool>,
    /// Most tokens of a prompt, where the context holds more.
    pub max_prompt: Option<usize>,
    /// Why the server would refuse the requests, and what to change.
    pub refusal: Option<String>,
    /// Limit of concurrent sequences; further requests wait in the server's queue.
    pub at_once: Option<usize>,
    /// Further notes for the operator, one sentence each.
    pub notes: Vec<String>,
}

/// A query that the engine sends at the start.
pub(super) struct Question {
    pub paths: &'static [&'static str],
    /// Parses the response into [`ServerFacts`].
    pub read: fn(&str, &AnswerParams, &mut ServerFacts) -> Result<(), serde_json::Error>,
    /// True if the engine's start fails without a usable response.
    pub needed: bool,
}

/// A row of the table of dialects.
pub(super) struct Dialect {
    kind: config::Dialect,
    /// Path of the requests for answers.
    pub path: &'static str,
    /// Key of the prompt's ids in a request.
    prompt: &'static str,
    /// Makes a request's body without the prompt.
    rest: fn(&AnswerParams, &RequestParams) -> Value,
    /// Options of a request that the server takes.
    pub options: OptionSet,
    /// Which ids of an answer an event carries.
    pub ids: IdList,
    /// Whether an answer without a stream has ids that its stream lacks.
    pub is_whole_better: bool,
    /// Queries that the engine sends once the server is ready.
    pub questions: &'static [Question],
    /// Advice on turning the server's prefix cache off.
    pub without_prefix_cache: &'static str,
}

const VLLM: Dialect = Dialect {
    kind: config::Dialect::Vllm,
    path: "/v1/completions",
    prompt: "prompt",
    rest: |ask, of| {
        merge(
            sampling(of),
            json!({
                "model": ask.model,
                "stream": true,
                "stream_options": {"include_usage": true},
                "return_token_ids": true,
            }),
        )
    },
    options: OptionSet::OF_CLIENTS,
    ids: IdList::New,
    is_whole_better: false,
    questions: &[
        MODELS,
        Question {
            paths: &["/metrics"],
            read: metrics,
            needed: false,
        },
    ],
    without_prefix_cache: "start vLLM with --no-enable-prefix-caching",
};

static DIALECTS: [Dialect; 5] = [
    VLLM,
    Dialect {
        kind: config::Dialect::VllmGenerate,
        path: "/inference/v1/generate",
        prompt: "token_ids",
        rest: |ask, of| {
            json!({
                "model": ask.model,
                "sampling_params":
                    merge(sampling(of), json!({"detokenize": false})),
                "stream": true,
                "stream_options": {"include_usage": true},
            })
        },
        ..VLLM
    },
    Dialect {
        kind: config::Dialect::Sglang,
        path: "/generate",
        prompt: "input_ids",
        rest: |_, of| {
            let params = json!({
                "max_new_tokens": of.max_tokens,
                "min_new_tokens": of.min_tokens,
                "temperature": of.temperature,
                "ignore_eos": of.ignore_eos,
                "stop_token_ids": of.stop,
                "skip_special_tokens": false,
            });
            json!({"sampling_params": of.put_options(params, None), "stream": true})
        },
        // Only with `--enable-deterministic-inference` does it take seeds, by another name.
        options: OptionSet::OF_CLIENTS.without(OptionSet::of(&[RequestOption::Seed])),
        ids: IdList::NewOrAll,
        is_whole_better: false,
        questions: &[
            MODELS,
            Question {
                paths: &["/server_info", "/get_server_info"],
                read: server_info,
                needed: false,
            },
        ],
        without_prefix_cache: "start SGLang with --disable-radix-cache",
    },
    Dialect {
        kind: config::Dialect::TensorRtLlm,
        rest: |ask, of| {
            merge(
                sampling(of),
                json!({
                    "model": ask.model,
                    "include_stop_str_in_output": true,
                    "add_special_tokens": false,
                    "detokenize": false,
                    "stream": true,
                    "stream_options": {"include_usage": true},
                }),
            )
        },
        questions: &[MODELS],
        without_prefix_cache: "start trtllm-serve with \
            `kv_cache_config: {enable_block_reuse: false}` in its options file",
        ..VLLM
    },
    Dialect {
        kind: config::Dialect::LlamaCpp,
        path: "/completion",
        prompt: "prompt",
        rest: |_, of| {
            let params = json!({
                "n_predict": of.max_tokens,
                "temperature": of.temperature,
                "ignore_eos": of.ignore_eos,
                "cache_prompt": false,
                "return_tokens": true,
                "stream": true,
            });
            // Seeds have 32 bits, and the highest one stands for a random seed.
            of.put_options(params, Some(|seed| seed % u64::from(u32::MAX)))
        },
        options: OptionSet::OF_CLIENTS.without(OptionSet::of(&[
            RequestOption::MinTokens,
            RequestOption::StopIds,
        ])),
        ids: IdList::NewWithGaps,
        is_whole_better: true,
        questions: &[
            MODELS,
            Question {
                paths: &["/props"],
                read: props,
                needed: true,
            },
        ],
        without_prefix_cache: "its requests say `cache_prompt: false` already",
    },
];

impl Dialect {
    pub fn of(kind: config::Dialect) -> &'static Dialect {
        let found = DIALECTS.iter().find(|dialect| dialect.kind == kind);
        // Unreachable: a test finds the row of each kind.
        found.unwrap_or(&DIALECTS[0])
    }

    /// The body of a request, for a stream unless `is_whole`. Writes the ids without a copy: a
    /// prompt may have 100,000 ids.
    /// Error: a parameter cannot be written as JSON.
    pub fn body(
        &self,
        ask: &AnswerParams,
        prompt: &[u32],
        account: &Account,
        options: &RequestOptions,
        is_whole: bool,
    ) -> serde_json::Result<Vec<u8>> {
        let params = ask.of_request(account, options);
        let mut rest = (self.rest)(ask, &params);
        if let Some(params) = &account.transfer {
            rest["kv_transfer_params"] = Value::clone(params);
        }
        if is_whole {
            rest["stream"] = false.into();
            // Only a stream may have them.
            if let Some(keys) = rest.as_object_mut() {
                keys.remove("stream_options");
            }
        }
        let mut body = serde_json::to_vec(&rest)?;
        // Remove the closing brace after the other keys; every dialect has at least one key.
        body.pop();
        body.extend_from_slice(format!(",\"{}\":", self.prompt).as_bytes());
        serde_json::to_writer(&mut body, prompt)?;
        body.push(b'}');
        Ok(body)
    }
}

/// The sampling parameters of vLLM, and of `trtllm-serve`.
fn sampling(of: &RequestParams) -> Value {
    let params = json!({
        "max_tokens": of.max_tokens,
        "min_tokens": of.min_tokens,
        "temperature": of.temperature,
        "ignore_eos": of.ignore_eos,
        "stop_token_ids": of.stop,
    });
    of.put_options(params, Some(signed))
}

/// The keys of two objects.
fn merge(mut object: Value, mut more: Value) -> Value {
    if let (Some(all), Some(more)) = (object.as_object_mut(), more.as_object_mut()) {
        all.append(more);
    }
    object
}

const MODELS: Question = Question {
    paths: &["/v1/models"],
    read: models,
    needed: true,
};

/// Parses the response to `/v1/models`, which every supported server has.
fn models(
    body: &str,
    ask: &AnswerParams,
    about: &mut ServerFacts,
) -> Result<(), serde_json::Error> {
    #[derive(Deserialize)]
    struct Models {
        data: Vec<Model>,
    }
    #[derive(Deserialize)]
    struct Model {
        id: String,
        /// The context in tokens; vLLM and SGLang send this field.
        max_model_len: Option<usize>,
        /// llama.cpp sends this field.
        meta: Option<Meta>,
    }
    #[derive(Deserialize)]
    struct Meta {
        n_vocab: Option<usize>,
    }
    let models: Models = serde_json::from_str(body)?;
    let ours = models.data.iter().find(|m| m.id == ask.model);
    if let Some(model) = ours.or(models.data.first()) {
        about.context = model.max_model_len.or(about.context);
        let vocab = model.meta.as_ref().and_then(|m| m.n_vocab);
        about.vocab = vocab.or(about.vocab);
    }
    about.models = models.data.into_iter().map(|m| m.id).collect();
    Ok(())
}

/// Reads the prefix cache's label in vLLM's metrics: `True`, `False`, or `None` in old versions.
fn metrics(
    body: &str,
    _ask: &AnswerParams,
    about: &mut ServerFacts,
) -> Result<(), serde_json::Error> {
    let info = body
        .lines()
        .find(|line| line.starts_with("vllm:cache_config_info{"));
    about.prefix_cache = info.and_then(|line| {
        let label = |value: &str| line.contains(&format!("enable_prefix_caching=\"{value}\""));
        (label("True") || label("False")).then(|| label("True"))
    });
    Ok(())
}

fn server_info(
    body: &str,
    ask: &AnswerParams,
    about: &mut ServerFacts,
) -> Result<(), serde_json::Error> {
    #[derive(Deserialize)]
    struct ServerInfo {
        max_req_input_len: Option<usize>,
        skip_tokenizer_init: Option<bool>,
        disable_radix_cache: Option<bool>,
        context_length: Option<usize>,
        incremental_streaming_output: Option<bool>,
        max_running_requests: Option<usize>,
        stream_output: Option<bool>,
    }
    let info: ServerInfo = serde_json::from_str(body)?;
    about.prefix_cache = info.disable_radix_cache.map(|off| !off);
    about.context = about.context.or(info.context_length);
    about.at_once = info.max_running_requests;
    // The scheduler refuses prompts of this length.
    about.max_prompt = info.max_req_input_len.map(|len| len.saturating_sub(1));
    if info.skip_tokenizer_init == Some(true) && ask.config.min_tokens > 0 {
        about.refusal = Some(
            "SGLang refuses min_new_tokens with --skip-tokenizer-init: start it without, or set \
             engine.http.min_tokens: 0"
                .to_owned(),
        );
    }
    if info.incremental_streaming_output.or(info.stream_output) == Some(false) {
        about.notes.push(
            "SGLang sends all ids of an answer with each of its tokens: start it with \
             --incremental-streaming-output"
                .to_owned(),
        );
    }
    Ok(())
}

fn props(
    body: &str,
    _ask: &AnswerParams,
    about: &mut ServerFacts,
) -> Result<(), serde_json::Error> {
    #[derive(Deserialize)]
    struct Props {
        default_generation_settings: Option<Slot>,
        total_slots: Option<usize>,
    }
    #[derive(Deserialize)]
    struct Slot {
        n_ctx: Option<usize>,
    }
    let props: Props = serde_json::from_str(body)?;
    about.context = props.default_generation_settings.and_then(|s| s.n_ctx);
    about.prefix_cache = Some(false);
    about.at_once = props.total_slots;
    about.notes.push(
        "llama.cpp does not stream all ids of a character of several tokens: answers in Server, \
         and in runs with token latencies, lack some; whole answers have all"
            .to_owned(),
    );
    if let Some(slots) = props.total_slots {
        about.notes.push(format!(
            "llama.cpp works on {slots} sequences at once, the rest waits in its queue: \
             start it with --parallel for more"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_shows_each_dialects_request_and_events_that_are_an_answer() {
        let params = |keys| {
            let config = serde_json::from_str::<HttpConfig>(keys).expect("sound");
            AnswerParams::new(config, "m", 8, 64, NodeRole::Both)
        };
        let mut ask = params(r#"{"min_tokens": 2, "eos": [2]}"#);
        ask.limits.vocab = 1000;
        let keys = r#"{"min_tokens": 7, "stop": [5], "temperature": 0.5, "ignore_eos": true}"#;
        let other = params(keys);
        let page = include_str!("../../../../docs/llm-servers.md");
        let block = page.split("```text\n").find(|b| b.starts_with("vllm  "));
        let block = block.and_then(|b| b.split("```").next()).expect("a block");
        // A long line goes on behind its comma. A dialect without events has the next one's.
        let block = block.replace(",\n               ", ",");
        let (mut events, mut dialects) = (Vec::new(), 0);
        let mut request = Value::Null;
        for line in block.lines().rev() {
            match line.split_whitespace().collect::<Vec<_>>()[..] {
                ["data:", event] if request.is_null() => events.insert(0, event),
                ["data:", event] => (events, request) = (vec![event], Value::Null),
                [name, "POST", path] => {
                    let kind = serde_json::from_value(name.into()).expect("a dialect");
                    let dialect = Dialect::of(kind);
                    assert_eq!(dialect.kind, kind);
                    let (account, none) = (ask.limits.account(3, 64), RequestOptions::default());
                    let body = dialect
                        .body(&ask, &[5, 6, 7], &account, &none, false)
                        .expect("JSON");
                    let body: Value = serde_json::from_slice(&body).expect("JSON");
                    assert_eq!((dialect.path, &body), (path, &request), "{name}");
                    let account = other.limits.account(3, 64);
                    let body = dialect
                        .body(&other, &[5, 6, 7], &account, &none, false)
                        .expect("JSON");
                    let body = String::from_utf8(body).expect("text");
                    // llama.cpp has neither a minimum nor stop ids.
                    let words = ["\":0.5", "_eos\":true", "_tokens\":7", "_ids\":[5]"];
                    let words = &words[..if name == "llama_cpp" { 2 } else { 4 }];
                    let has = |word: &&str| body.contains(*word);
                    assert!(words.iter().all(has), "{name}: {body}");
                    let options = RequestOptions {
                        seed: Some(u64::MAX),
                        top_p: Some(0.5),
                        top_k: Some(9),
                        ..RequestOptions::default()
                    };
                    let body = dialect
                        .body(&ask, &[5], &account, &options, false)
                        .expect("JSON");
                    let body = String::from_utf8(body).expect("text");
                    let seed = match name {
                        "llama_cpp" => "\"seed\":0",
                        _ => "\"seed\":9223372036854775807",
                    };
                    assert_eq!(
                        body.contains(seed),
                        dialect.options.has(RequestOption::Seed)
                    );
                    assert!(body.contains("\"top_p\":0.5") && body.contains("\"top_k\":9"));
                    let (mut account, mut ids) = (ask.limits.account(3, 64), Vec::new());
                    for event in &events {
                        let read = dialect.ids.read(event, account.received).expect(event);
                        ids.extend(account.take(&ask.limits, read).expect(event).0);
                    }
                    assert_eq!(ids, [504, 17, 2], "{name}");
                    dialects += 1;
                }
                _ => request = serde_json::from_str(line).expect(line),
            }
        }
        assert_eq!(dialects, 5);
    }
}
