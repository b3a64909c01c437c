//! The codec on arbitrary bytes, in pieces of any size.

use bytes::BytesMut;
use proptest::prelude::*;
use tokio_util::codec::{Decoder, Encoder};

use serde_json::{Value, json};

use super::*;
use crate::control::{
    frame::{Codec, FrameError, MAX_FRAME, refusal},
    limits::Limit,
    message::{MAX_TEXT, Message, clip},
};
use crate::wire::{Description, MAX_DESCRIPTION};

/// Frames of every type, with and without the fields that may be absent.
const FRAMES: [&str; 33] = [
    r#"{"type": "hello", "version": 11, "role": "frontend", "auth": "token",
        "nonce": "1111111111111111111111111111111111111111111111111111111111111111"}"#,
    r#"{"type": "answer",
        "noise": "2222222222222222222222222222222222222222222222222222222222222222"}"#,
    r#"{"type": "model", "node": "fe-1", "heartbeat_ms": 500, "stream": "first", "facts": {},
        "spec": {"name": "m", "inputs": [{"name": "i", "dtype": "u8", "shape": [64]}],
                 "output": {"name": "o", "dtype": "i32", "shape": [9], "ragged": true}}}"#,
    r#"{"type": "model", "node": "acc-1", "heartbeat_ms": 500,
        "spec": {"name": "m", "inputs": [{"name": "i", "dtype": "u8", "shape": [64]}],
                 "output": {"name": "o", "dtype": "u8", "shape": [8]}},
        "engine": {"name": "onnx", "tokens": true, "at_once": 64,
                   "prefix_cache": {"state": "off", "how": "as it says"},
                   "content": {"kind": "server", "name": "meta/llama"}},
        "facts": {"host": "dgx", "machine": "0123456789abcdef0123456789abcdef",
                  "boot": "0123456789abcdef0123456789abcdef", "version": "0.1.0",
                  "commit": "bea8f30", "dirty": true, "started": 7,
                  "links": [{"nic": 0, "name": "eth0", "layer": "ethernet"}]}}"#,
    r#"{"type": "model", "node": "acc-1", "heartbeat_ms": 500,
        "spec": {"name": "m", "inputs": [{"name": "i", "dtype": "u8", "shape": [64]}],
                 "output": {"name": "o", "dtype": "u8", "shape": [8]},
                 "other_outputs": [{"name": "p", "dtype": "i64", "shape": [4]}]},
        "engine": {"name": "onnx", "tokens": false, "at_once": 64, "content": {
            "kind": "file", "name": "m.onnx",
            "sha256": "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"}},
        "facts": {"program":
            "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"}}"#,
    r#"{"type": "open", "id": 1, "connections": [
        {"connection": 0, "nic": 1, "gpu_turn": 2, "epoch": 3, "slots": 8192,
         "request_stride": 64, "response_stride": 24, "transport": {"fabric": "tcp", "end":
            "3333333333333333333333333333333333333333333333333333333333333333"}},
        {"connection": 1, "nic": 1, "gpu_turn": 0, "epoch": 1, "slots": 1,
         "request_stride": 1, "response_stride": 1, "transport": {"fabric": "tcp", "end":
            "4444444444444444444444444444444444444444444444444444444444444444"}}]}"#,
    r#"{"type": "open", "id": 1, "connections": [
        {"connection": 0, "nic": 0, "gpu_turn": 0, "epoch": 1, "slots": 1,
         "request_stride": 1, "response_stride": 1, "transport": {"fabric": "ofi", "end":
            "{\"provider\": \"efa\", \"address\": \"00ff\"}"}}]}"#,
    r#"{"type": "opened", "id": 1, "connections": [
        {"connection": 0, "epoch": 3, "slots": 8192, "nic": 1, "gpu": 5,
         "transport": {"fabric": "tcp", "end": "[::1]:7400"}},
        {"connection": 1, "epoch": 1, "slots": 1, "nic": 0, "gpu": null,
         "transport": {"fabric": "tcp", "end": "10.0.0.1:7410"}}]}"#,
    r#"{"type": "opened", "id": 1, "connections": [
        {"connection": 0, "epoch": 1, "slots": 1, "nic": 0, "gpu": null,
         "transport": {"fabric": "ofi", "end":
            "{\"provider\": \"efa\", \"address\": \"00ff\"}"}}]}"#,
    r#"{"type": "start", "id": 2}"#,
    r#"{"type": "ready", "id": 2}"#,
    r#"{"type": "name", "id": 3}"#,
    r#"{"type": "name_is", "id": 3, "name": "acc-1 (null engine)"}"#,
    r#"{"type": "drain", "id": 4}"#,
    r#"{"type": "drained", "id": 4, "batches": {"9": 1},
        "counters": {"arrived": 9007199254740992, "responded": 1, "refused": 2,
                     "dropped_late": 3, "batches": 4, "copies": 5, "parts": 6, "progress": 7}}"#,
    r#"{"type": "drained", "id": 4, "batches": {},
        "counters": {"arrived": 1, "responded": 1, "refused": 0, "dropped_late": 0,
                     "batches": 1, "copies": 0, "parts": 0, "progress": 0},
        "gpus": [{"index": 1, "name": "H200", "batches": {"8": 2}}],
        "used": {"clock_us": 7, "threads": [{"name": "nic", "threads": 1, "ran_us": 2}],
                 "nics": {"sleeps": 3},
                 "engine": {"max_batch": 8}}}"#,
    r#"{"type": "describe", "id": 5}"#,
    r#"{"type": "described", "id": 5, "description": {"machine": "{}", "config": "a: 1\n"}}"#,
    r#"{"type": "side", "id": 6, "at": 0}"#,
    r#"{"type": "side_is", "id": 6, "of": 2, "text": "{}"}"#,
    r#"{"type": "refused", "id": 7, "code": "budget", "text": "193 of 200 MiB are in use"}"#,
    r#"{"type": "heartbeat", "seq": 1}"#,
    r#"{"type": "heartbeat", "seq": 2, "scores": {"interior": 1.0, "standing": {"away": "gone"}, "rails": [
        {"nic": 0, "score": 0.5}]},
        "counters": {"arrived": 1, "responded": 1, "refused": 0, "dropped_late": 0,
                     "batches": 1, "copies": 0, "parts": 0, "progress": 0}}"#,
    r#"{"type": "heartbeat", "seq": 3, "scores": {"interior": 1.0, "standing": {"overdue": "gone"}, "rails": []}}"#,
    r#"{"type": "connection_lost", "connection": 3, "epoch": 1, "cause": "Kabel gezogen: ä…"}"#,
    r#"{"type": "refused_sample", "connection": 3, "epoch": 1, "slot": 9, "use": 7,
        "text": "HTTP 500"}"#,
    r#"{"type": "connection_reset", "connection": 3, "epoch": 1}"#,
    r#"{"type": "bye"}"#,
    r#"{"type": "error", "code": "version", "text": ""}"#,
    r#"{"type": "error", "code": "name_taken", "text": "x"}"#,
    r#"{"type": "error", "code": "shutting_down", "text": "SIGINT"}"#,
    r#"{"type": "error", "code": "protocol", "text": "open.id"}"#,
    r#"{"type": "error", "code": "busy", "text": "fe-1"}"#,
];

/// One of [`FRAMES`].
pub(in crate::control) fn message() -> impl Strategy<Value = Message> {
    let read = |json: &str| serde_json::from_str(json).unwrap_or_else(|e| panic!("{json}: {e}"));
    prop::sample::select(FRAMES.map(read).to_vec())
}

/// Feeds bytes in pieces, then the end. Returns the messages and the first error.
pub(in crate::control) fn feed(
    codec: &mut Codec,
    bytes: &[u8],
    piece: usize,
) -> (Vec<Message>, Option<FrameError>) {
    let mut buffer = BytesMut::new();
    let mut out = Vec::new();
    for chunk in bytes.chunks(piece) {
        buffer.extend_from_slice(chunk);
        loop {
            match codec.decode(&mut buffer) {
                Ok(Some(m)) => out.push(m),
                Ok(None) => break,
                Err(e) => return (out, Some(e)),
            }
        }
    }
    loop {
        match codec.decode_eof(&mut buffer) {
            Ok(Some(m)) => out.push(m),
            Ok(None) => return (out, None),
            Err(e) => return (out, Some(e)),
        }
    }
}

fn full() -> Codec {
    let mut codec = Codec::before_auth();
    codec.authenticated();
    codec
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn messages_survive_in_pieces_of_any_size(messages in prop::collection::vec(message(), 1..5),
        piece in 1usize..200, cut in any::<prop::sample::Index>())
    {
        let mut bytes = BytesMut::new();
        let mut ends = vec![0];
        for m in &messages {
            full().encode(m, &mut bytes).expect("within limits");
            ends.push(bytes.len());
        }
        let (out, e) = feed(&mut full(), &bytes, piece);
        prop_assert!(e.is_none(), "{e:?}");
        prop_assert_eq!(&out, &messages);

        // Cut at any place, the whole frames are decoded, and a cut inside a frame is an error.
        let cut = cut.index(bytes.len());
        let (out, e) = feed(&mut full(), &bytes[..cut], piece);
        let whole = ends.iter().filter(|e| **e <= cut).count() - 1;
        prop_assert_eq!(&out[..], &messages[..whole]);
        match e {
            None => prop_assert!(ends.contains(&cut)),
            Some(FrameError::Truncated { got }) => prop_assert_eq!(got, cut - ends[whole]),
            Some(e) => prop_assert!(false, "{e}"),
        }
    }

    #[test]
    fn clipped_text_is_short_and_keeps_to_its_line(text in any::<String>(), n in 0usize..300) {
        let long = text.repeat(n);
        let clipped = clip(&long);
        prop_assert!(clipped.len() <= MAX_TEXT && !clipped.chars().any(record::is_unprintable));
        if long.len() < MAX_TEXT - 3 && !long.chars().any(record::is_unprintable) {
            prop_assert_eq!(clipped, long);
        }
    }
}

#[test]
fn every_type_is_known_and_no_other() {
    let mut types = std::collections::BTreeSet::new();
    for json in FRAMES {
        let json: Value = serde_json::from_str(json).expect("JSON");
        let message: Message = serde_json::from_value(json.clone()).expect("a message");
        assert_eq!(json["type"], message.kind());
        types.insert(message.kind());
    }
    let e = serde_json::from_value::<Message>(json!({"type": "x"})).expect_err("unknown");
    let listed = e.to_string().matches('`').count() / 2 - 1;
    assert_eq!(listed, types.len(), "{e}");
}

#[test]
fn the_longest_description_fits_a_frame_and_a_longer_one_is_refused() {
    // Quotation marks grow most when escaped.
    let of = |bytes: usize| Message::Described {
        id: u64::MAX,
        description: Box::new(Description {
            machine: "\"".repeat(bytes),
            config: "\n".repeat(bytes),
        }),
    };
    let mut bytes = BytesMut::new();
    let longest = of(MAX_DESCRIPTION);
    full().encode(&longest, &mut bytes).expect("it fits");
    let (out, e) = feed(&mut full(), &bytes, 1 << 16);
    assert!(e.is_none() && out == [longest], "{e:?}");
    assert!(limits::check(&of(MAX_DESCRIPTION + 1)).is_err());
    let odd = Description {
        config: "a: \u{1b}[2J".to_owned(),
        ..Description::default()
    };
    assert!(odd.check().is_err(), "it would move a terminal's cursor");
}

#[test]
fn a_frame_past_the_limit_is_refused_before_it_is_read() {
    let (_, e) = feed(&mut full(), &(MAX_FRAME as u32 + 1).to_be_bytes(), 1);
    assert!(
        matches!(e, Some(FrameError::TooLong { bytes, limit: MAX_FRAME })
            if bytes == MAX_FRAME as u64 + 1),
        "{e:?}"
    );
    // A frame past the limit is not sent either.
    let of = |bytes: usize| Message::Error {
        code: ErrorCode::Protocol,
        text: "x".repeat(bytes),
    };
    let longest = MAX_FRAME - serde_json::to_vec(&of(0)).expect("JSON").len();
    let send = |bytes: usize| full().encode(&of(bytes), &mut BytesMut::new());
    send(longest).expect("it fits");
    let e = send(longest + 1).expect_err("too long");
    assert!(matches!(e, FrameError::TooLong { .. }), "{e}");
}

#[test]
fn another_protocol_is_named() {
    for (begin, name) in [
        ("HTTP/1.1 404 Not Found", "HTTP"),
        ("GET /health HTTP/1.1", "HTTP"),
        ("PRI * HTTP/2.0", "HTTP"),
        ("<!DOCTYPE html>", "HTTP"),
        ("\u{16}\u{3}\u{1}\u{2}", "TLS"),
        ("SSH-2.0-OpenSSH", "SSH"),
    ] {
        let (_, e) = feed(&mut Codec::before_auth(), begin.as_bytes(), 3);
        let found = matches!(e, Some(FrameError::OtherProtocol { protocol }) if protocol == name);
        assert!(found, "{begin}: {e:?}");
    }
}

#[test]
fn a_model_has_as_many_outputs_as_inputs_at_most() {
    let frame = FRAMES.iter().find(|f| f.contains("other_outputs"));
    let mut frame: Value = serde_json::from_str(frame.expect("one")).expect("JSON");
    let mut check = |others: usize| {
        let other = json!({"name": "p", "dtype": "u8", "shape": [1]});
        frame["spec"]["other_outputs"] = vec![other; others].into();
        limits::check(&serde_json::from_value(frame.clone()).expect("a message"))
    };
    check(limits::MAX_INPUTS - 1).expect("64 in all");
    let problem = "64, must be 0 to 63".to_owned();
    assert_eq!(check(64), Err(("spec.other_outputs", problem)));
}

#[test]
fn a_refusal_is_a_frame_that_an_unauthenticated_peer_reads() {
    let (out, e) = feed(&mut Codec::before_auth(), &refusal("elsewhere"), 64);
    let text = "elsewhere".to_owned();
    let code = ErrorCode::Protocol;
    assert!(
        e.is_none() && out == [Message::Error { code, text }],
        "{out:?} {e:?}"
    );
}

#[test]
fn a_field_without_an_entry_has_the_limit_of_others() {
    let check = |value: Value| limits::check_value("x", &mut "x".to_owned(), &value);
    let most = limits::MAX_NAME;
    for (new, words) in [
        (
            json!({"new": vec![0; most + 1]}),
            "new: 257, must be 0 to 256",
        ),
        (
            json!({"new": ["x".repeat(most + 1)]}),
            "new: 257 bytes, must be 0 to 256",
        ),
    ] {
        assert_eq!(check(new), Err(("x", words.to_owned())));
    }
    check(json!({"new": vec!["x".repeat(most); most]})).expect("within");
}

/// The value at a path as [`limits::LIMITS`] writes it; of a list, that of its first element.
fn value_at<'v>(frame: &'v mut Value, path: &str) -> Option<&'v mut Value> {
    let (kind, fields) = path.split_once('.').expect("a message and a field");
    let frame = Some(frame).filter(|f| f["type"] == kind)?;
    fields.split('.').try_fold(frame, |at, name| match at {
        Value::Array(items) => items.first_mut()?.get_mut(name),
        fields => fields.get_mut(name),
    })
}

/// A number of a value: itself, or a field of an object or of a list's first object.
fn number_of(value: &mut Value) -> Option<&mut Value> {
    match value {
        Value::Array(items) => number_of(items.first_mut()?),
        Value::Object(fields) => fields.values_mut().find(|v| v.is_number()),
        number => Some(number),
    }
}

/// A path that no message has would be a field without its limit.
#[test]
fn every_limit_is_that_of_a_field_and_refuses_one_more() {
    let refuse = |path: &str, change: &dyn Fn(&mut Value) -> Option<String>| {
        let mut read = FRAMES
            .iter()
            .map(|f| serde_json::from_str(f).expect("JSON"));
        let (mut frame, words) = read
            .find_map(|mut frame: Value| {
                let words = value_at(&mut frame, path).and_then(change)?;
                Some((frame, words))
            })
            .unwrap_or_else(|| panic!("{path}: no frame has it"));
        let message: Message = serde_json::from_value(frame.take()).expect(path);
        let (field, problem) = limits::check(&message).expect_err(path);
        let whole = path.split_once('.').expect("a field").1;
        // The description checks itself, and names its own fields.
        assert_eq!(field, whole.trim_start_matches("description."));
        assert!(problem.contains(&words), "{path}: {problem} lacks {words}");
    };
    for (path, limit) in &limits::LIMITS {
        refuse(path, &|value| {
            let (other, words) = match limit {
                Limit::List(may) => {
                    let item = |i: usize| match value[0].clone() {
                        Value::Number(_) => 1.into(),
                        mut item => {
                            if let Some(number) = item.get_mut("connection") {
                                *number = i.into();
                            }
                            item
                        }
                    };
                    let n = may.end() + 1;
                    ((0..n).map(item).collect(), format!("{n}, must be"))
                }
                Limit::Words(may) | Limit::Text(may) => {
                    let n = may.end() + 1;
                    ("x".repeat(n).into(), format!("{n} bytes"))
                }
                Limit::Hash(n) => ("A".repeat(*n).into(), format!("{n} hexadecimal")),
                Limit::Free => ("\u{1b}".into(), "control ".to_owned()),
            };
            *value = other;
            Some(words)
        });
    }
    for path in limits::COUNTS {
        refuse(path, &|value| {
            *number_of(value)? = (limits::MAX_COUNT + 1).into();
            Some("must be at most".to_owned())
        });
    }
}

/// A value outside a type, a rule of its own, or the limit of fields that have none of their own.
#[test]
fn a_field_outside_its_limits_is_refused_by_name() {
    let escape = "\u{1b}[2J";
    let gpu = record::GpuRecord {
        name: "x".repeat(1000),
        ..Default::default()
    };
    let ofi = json!({"fabric": "ofi", "end": escape});
    let cases = [
        ("model", "/node", json!("two words"), "node: holds ' '"),
        ("hello", "/nonce", json!("00"), "64 hexadecimal digits"),
        ("model", "/heartbeat_ms", json!(0), "heartbeat_ms: 0"),
        ("model", "/spec/inputs", json!([]), "spec.inputs: 0, must"),
        ("model", "/spec/name", json!(escape), "control "),
        (
            "model",
            "/spec/inputs/0/shape",
            json!([1u64 << 40]),
            "spec.inputs: more",
        ),
        (
            "open",
            "/connections/0/request_stride",
            json!(0),
            "a stride of 0",
        ),
        ("open", "/connections/0/transport", ofi, "control "),
        ("drained", "/gpus", json!([gpu]), "1000 bytes"),
        ("opened", "/connections/0/epoch", json!(0), "epoch 0"),
    ];
    for (kind, pointer, value, words) in cases {
        let mut frames = FRAMES
            .iter()
            .map(|f| serde_json::from_str(f).expect("JSON"));
        let mut frame: Value = frames.find(|f: &Value| f["type"] == kind).expect(kind);
        let (parent, name) = pointer.rsplit_once('/').expect("a pointer");
        let parent = frame.pointer_mut(parent).expect(pointer);
        parent[name] = value;
        let json = frame.to_string();
        let bytes = [&(json.len() as u32).to_be_bytes()[..], json.as_bytes()].concat();
        match feed(&mut full(), &bytes, 1 << 16) {
            (messages, Some(FrameError::BadField { detail, .. })) if messages.is_empty() => {
                assert!(
                    detail.contains(words),
                    "{kind}{pointer}: {detail} lacks {words}"
                );
            }
            other => panic!("{kind}{pointer}: {other:?}"),
        }
    }
}
