use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

fn completion(body: &Value) -> Result<Completion, ApiError> {
    parse(Endpoint::Completions, body.to_string().as_bytes())
}

fn with(field: &str, value: Value) -> Value {
    let mut body = json!({"prompt": "x"});
    body[field] = value;
    body
}

#[test]
fn the_body_of_the_mlperf_client_is_read() {
    let body = json!({"model": "m", "prompt": [3, 0, i32::MAX], "max_tokens": 64, "min_tokens": 1,
        "skip_special_tokens": true, "stream": true, "temperature": 0.5, "top_p": 1, "top_k": -1,
        "n": 1, "repetition_penalty": 1.0, "presence_penalty": 0, "stop": null, "user": "u"});
    let read = completion(&body).unwrap();
    assert_eq!(read.prompt, Prompt::Ids(vec![3, 0, i32::MAX]));
    assert!(read.stream && read.skip_special_tokens && !read.include_usage);
    assert_eq!(read.limit.unwrap().get(), 64);
    let expected = Sampling {
        min_tokens: Some(1),
        temperature: Some(0.5),
        top_p: Some(1.0),
        top_k: Some(-1),
        ..Sampling::default()
    };
    assert_eq!(read.sampling, expected);
    assert_eq!(read.model.as_deref(), Some("m"));
}

#[test]
fn a_prompt_is_a_text_or_ids_or_a_list_of_one_of_them() {
    let prompt = |prompt: Value| completion(&json!({"prompt": prompt})).map(|it| it.prompt);
    assert_eq!(prompt(json!("é\n")).unwrap(), Prompt::Text("é\n".into()));
    assert_eq!(prompt(json!(["a"])).unwrap(), Prompt::Text("a".into()));
    assert_eq!(prompt(json!([[1, 2]])).unwrap(), Prompt::Ids(vec![1, 2]));
    for (wrong, why) in [
        (json!([]), "the list is empty"),
        (json!([[]]), "is empty"),
        (json!(["a", "b"]), "more than one prompt"),
        (json!([[1], [2]]), "more than one prompt"),
        (json!([[[1]]]), "as element 0"),
        (
            json!([1, -2]),
            "integer `-2`, expected a token id, 0 to 2147483647, as element 1",
        ),
        (
            json!([1, 2, 2_147_483_648_u32]),
            "element 2: 2147483648 is no token id",
        ),
        (json!([1, 2.5]), "as element 1"),
        (json!([1, "a"]), "as element 1"),
        (json!(7), "sent as a list"),
        (json!(null), "a text or a list of token ids"),
        (json!({"a": 1}), "a text or a list of token ids"),
    ] {
        let error = prompt(wrong).unwrap_err();
        assert_eq!(
            (error.status, error.param.as_deref()),
            (400, Some("prompt"))
        );
        assert!(error.message.contains(why), "{error}");
    }
}

#[test]
fn messages_hold_texts() {
    let chat = |messages: Value| {
        let body = json!({"messages": messages, "max_completion_tokens": 9, "max_tokens": 8});
        parse(Endpoint::Chat, body.to_string().as_bytes())
    };
    let parts = json!([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]);
    let read = chat(json!([{"role": "user", "content": parts, "name": "n"}])).unwrap();
    let message = Message {
        role: "user".into(),
        content: "a\nb".into(),
    };
    assert_eq!(read.prompt, Prompt::Chat(Messages(vec![message])));
    assert_eq!(read.limit.unwrap().get(), 9);
    for wrong in [
        json!([]),
        json!([{"role": "tool", "content": "a"}]),
        json!([{"role": "user"}]),
        json!([{"role": "user", "content": null}]),
        json!([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]),
    ] {
        let error = chat(wrong).unwrap_err();
        assert_eq!(
            (error.status, error.param.as_deref()),
            (400, Some("messages")),
            "{error}"
        );
    }
}

#[test]
fn values_out_of_range_are_named() {
    for (field, value) in [
        ("temperature", json!(2.01)),
        ("temperature", json!(-0.1)),
        ("top_p", json!(0)),
        ("top_p", json!(1.1)),
        ("top_k", json!(-2)),
        ("max_tokens", json!(0)),
        ("max_tokens", json!(1_u64 << 32)),
        ("max_completion_tokens", json!(1.5)),
        ("min_tokens", json!(-1)),
        ("seed", json!(1.5)),
        ("stop", json!(["a", "b", "c", "d", "e"])),
        ("stop", json!("")),
        ("stop_token_ids", json!(vec![1; 33])),
        ("stop_token_ids", json!([-1])),
        ("stream", json!("yes")),
        ("model", json!("m".repeat(257))),
        ("n", json!(2)),
        ("best_of", json!(0)),
        ("logprobs", json!(0)),
        ("top_logprobs", json!(3)),
        ("echo", json!(true)),
        ("suffix", json!("s")),
        ("tools", json!([{}])),
        ("response_format", json!({"type": "json_object"})),
        ("logit_bias", json!({"5": 1})),
        ("presence_penalty", json!(0.1)),
        ("repetition_penalty", json!(1.1)),
    ] {
        let error = completion(&with(field, value)).unwrap_err();
        assert_eq!(
            (error.status, error.param.as_deref()),
            (400, Some(field)),
            "{error}"
        );
        assert!(error.message.starts_with(field), "{error}");
    }
    let error = completion(&json!({"prompt": "x", "min_tokens": 5, "max_tokens": 4})).unwrap_err();
    assert_eq!(error.param.as_deref(), Some("min_tokens"));
    assert_eq!(
        completion(&json!({})).unwrap_err().param.as_deref(),
        Some("prompt")
    );
}

#[test]
fn values_that_ask_for_nothing_are_accepted() {
    for (field, value) in [
        ("logprobs", json!(false)),
        ("echo", json!(false)),
        ("suffix", json!("")),
        ("tools", json!([])),
        ("response_format", json!({"type": "text"})),
        ("logit_bias", json!({})),
        ("stop", json!(["a"])),
        ("messages", json!(7)),
        ("unknown", json!({"deep": [[]]})),
    ] {
        completion(&with(field, value)).unwrap();
        completion(&with(field, json!(null))).unwrap();
    }
    let body = json!({"prompt": "x", "seed": -1, "stream_options": {"include_usage": true}});
    let read = completion(&body).unwrap();
    assert_eq!(
        (read.sampling.seed, read.include_usage),
        (Some(u64::MAX), true)
    );
}

#[test]
fn a_body_that_is_no_json_object_is_refused_with_its_position() {
    let deep = "[".repeat(100_000);
    let deep = format!("{{\"suffix\":{deep}");
    for (body, why) in [
        (&b"{\"prompt\": \"\xFF\"}"[..], "line 1 column"),
        (b"{\"prompt\": \"x\"", "line 1 column 14"),
        (b"{\"prompt\": \"x\"} 1", "trailing"),
        (b"[]", "expected an object"),
        (b"", "line 1 column 0"),
        (deep.as_bytes(), "recursion limit"),
    ] {
        let error = parse(Endpoint::Completions, body).unwrap_err();
        assert_eq!((error.status, error.code), (400, Some("invalid_json")));
        assert!(error.message.contains(why), "{error}");
    }
    let error = completion(&with("stream", json!("é".repeat(9_999)))).unwrap_err();
    assert!(error.message.len() <= 512 && error.message.contains("expected a boolean"));
    let mut out = Vec::new();
    error.event(&mut out);
    let event: Value = serde_json::from_slice(out.strip_prefix(b"data: ").unwrap()).unwrap();
    assert_eq!(event["error"]["message"], error.message);
    assert_eq!(event["error"]["param"], "stream");
}

fn writer(request: &Value, endpoint: Endpoint) -> Writer {
    let request = parse(endpoint, request.to_string().as_bytes()).unwrap();
    Writer::new(
        &Identity {
            id: "cmpl-1",
            created: 1_700_000_000,
            model: "a\"b",
        },
        endpoint,
        &request,
    )
}

/// The events in `out`, each of one line and an empty one.
fn events(out: &[u8]) -> Vec<Value> {
    let text = std::str::from_utf8(out).unwrap();
    let events = text.strip_suffix("\n\n").unwrap().split("\n\n");
    events
        .map(|it| serde_json::from_str(it.strip_prefix("data: ").unwrap()).unwrap())
        .collect()
}

#[test]
fn answers_are_those_of_openai_s_api() {
    let request = json!({"prompt": "x", "messages": [{"role": "user", "content": "x"}],
        "stream": true, "return_token_ids": true, "stream_options": {"include_usage": true}});
    let usage = Usage {
        prompt_tokens: 3,
        completion_tokens: u32::MAX,
    };
    let counts = json!({"prompt_tokens": 3, "completion_tokens": u32::MAX,
        "total_tokens": 4_294_967_298_u64});
    let head = |object: &str, choices: Value, usage: &Value| {
        json!({"id": "cmpl-1", "object": object, "created": 1_700_000_000, "model": "a\"b",
            "choices": choices, "usage": usage})
    };
    let answer = Answer {
        text: "ab",
        ids: &[7, 0],
        finish: Finish::Stop,
        usage,
    };
    let mut streams = [Endpoint::Completions, Endpoint::Chat].map(|endpoint| {
        let mut out = Vec::new();
        let mut writer = writer(&request, endpoint);
        writer.event(&mut out, "a", &[7], None);
        writer.event(&mut out, "b", &[0, -1], Some(Finish::Length));
        writer.usage_event(&mut out, usage);
        events(&out)
    });
    let choice = |key: &str, text: Value, finish: Value, ids: Value| {
        json!([{"index": 0, key: text, "logprobs": null, "finish_reason": finish,
            "token_ids": ids}])
    };
    for (events, (object, key, texts)) in streams.iter_mut().zip([
        ("text_completion", "text", [json!("a"), json!("b")]),
        (
            "chat.completion.chunk",
            "delta",
            [
                json!({"role": "assistant", "content": "a"}),
                json!({"content": "b"}),
            ],
        ),
    ]) {
        let [a, b] = texts;
        assert_eq!(
            *events,
            [
                head(
                    object,
                    choice(key, a, json!(null), json!([7])),
                    &json!(null)
                ),
                head(
                    object,
                    choice(key, b, json!("length"), json!([0, -1])),
                    &json!(null)
                ),
                head(object, json!([]), &counts),
            ]
        );
    }
    let request = json!({"prompt": "x", "messages": [{"role": "user", "content": "x"}],
        "return_token_ids": true});
    for (endpoint, object, key, text) in [
        (
            Endpoint::Completions,
            "text_completion",
            "text",
            json!("ab"),
        ),
        (
            Endpoint::Chat,
            "chat.completion",
            "message",
            json!({"role": "assistant", "content": "ab"}),
        ),
    ] {
        let mut out = Vec::new();
        writer(&request, endpoint).whole(&mut out, &answer);
        let read: Value = serde_json::from_slice(&out).unwrap();
        assert_eq!(
            read,
            head(
                object,
                choice(key, text, json!("stop"), json!([7, 0])),
                &counts
            )
        );
    }
    let read: Value = serde_json::from_str(&models("m", 5)).unwrap();
    assert_eq!(
        (&read["object"], &read["data"][0]["id"]),
        (&json!("list"), &json!("m"))
    );
    assert_eq!(health(2), r#"{"connections":2,"status":"ok"}"#);
}

proptest! {
    #[test]
    fn no_bytes_make_parse_panic(
        bytes in any::<Vec<u8>>(),
        field in "prompt|messages|stop|seed|n|top_p|max_tokens|stream_options|stop_token_ids",
        value in "[\\[\\]{}\",:0-9a-e.\\-]{0,20}|null|-?[0-9]{1,30}|\"\\PC*\"",
        is_chat in any::<bool>(),
    ) {
        let endpoint = if is_chat { Endpoint::Chat } else { Endpoint::Completions };
        let _ = parse(endpoint, &bytes);
        let _ = parse(endpoint, format!("{{\"{field}\":{value}}}").as_bytes());
        let prompt = format!("{{\"prompt\":[1,2],\"{field}\":{value}}}");
        if let Err(error) = parse(endpoint, prompt.as_bytes()) {
            let read: Value = serde_json::from_str(&error.body()).unwrap();
            prop_assert_eq!(read["error"]["message"].as_str(), Some(&*error.message));
        }
    }

    #[test]
    fn any_text_is_read_as_it_was_written(text in any::<String>(), is_chat in any::<bool>()) {
        let endpoint = if is_chat { Endpoint::Chat } else { Endpoint::Completions };
        let request = json!({"prompt": "x", "messages": [{"role": "user", "content": "x"}]});
        let mut out = Vec::new();
        writer(&request, endpoint).event(&mut out, &text, &[], None);
        let read = events(&out);
        let place = if is_chat { "/choices/0/delta/content" } else { "/choices/0/text" };
        prop_assert_eq!(read[0].pointer(place), Some(&json!(text)));
    }
}
