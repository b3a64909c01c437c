//! The codec on arbitrary bytes, in pieces of any size.

use std::fs;

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
use crate::{
    testkit::assert_has,
    wire::{Description, MAX_DESCRIPTION},
};

/// Frames of every type, with and without the fields that may be absent: the seeds of the fuzz
/// target. Behind a byte for the target, each file has frames.
fn frames() -> Vec<Value> {
    let seeds = concat!(env!("CARGO_MANIFEST_DIR"), "/../fuzz/seeds/control_frames");
    let files = fs::read_dir(seeds).expect("a folder");
    let mut paths: Vec<_> = files.map(|f| f.expect("readable").path()).collect();
    paths.sort();
    let mut frames = Vec::new();
    for path in paths {
        let bytes = fs::read(path).expect("readable");
        let mut rest = &bytes[1..];
        while let Some((length, behind)) = rest.split_first_chunk() {
            let (json, behind) = behind.split_at(u32::from_be_bytes(*length) as usize);
            frames.push(serde_json::from_slice(json).expect("JSON"));
            rest = behind;
        }
    }
    frames
}

/// The first frame for which `of` returns something, and that.
fn frame_with<T>(mut of: impl FnMut(&mut Value) -> Option<T>) -> Option<(Value, T)> {
    frames().into_iter().find_map(|mut frame| {
        let it = of(&mut frame)?;
        Some((frame, it))
    })
}

/// The message of one of [`frames`].
pub(in crate::control) fn message() -> impl Strategy<Value = Message> {
    let read = |json: Value| serde_json::from_value(json).expect("a message");
    let messages: Vec<_> = frames().into_iter().map(read).collect();
    prop::sample::select(messages)
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
            Some(e) => {
                let got = format!("inside a frame, {} bytes into it", cut - ends[whole]);
                prop_assert!(e.to_string().ends_with(&got), "{e}");
            }
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
    for json in frames() {
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
    let words = format!(
        "a frame of {} bytes, {MAX_FRAME} are allowed",
        MAX_FRAME + 1
    );
    let (_, e) = feed(&mut full(), &(MAX_FRAME as u32 + 1).to_be_bytes(), 1);
    assert_has(&e.expect("too long").to_string(), &[&words]);
    // A frame past the limit is not sent either.
    let of = |bytes: usize| Message::Error {
        code: ErrorCode::Protocol,
        text: "x".repeat(bytes),
    };
    let longest = MAX_FRAME - serde_json::to_vec(&of(0)).expect("JSON").len();
    let send = |bytes: usize| full().encode(&of(bytes), &mut BytesMut::new());
    send(longest).expect("it fits");
    let e = send(longest + 1).expect_err("too long");
    assert_has(&e.to_string(), &[&words]);
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
        let text = e.expect(begin).to_string();
        let words = format!("{name} on a control connection");
        assert!(text.starts_with(&words), "{begin}: {text}");
    }
}

#[test]
fn a_model_has_as_many_outputs_as_inputs_at_most() {
    let others = |frame: &mut Value| frame["spec"].get("other_outputs").map(drop);
    let (mut frame, ()) = frame_with(others).expect("one");
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
        let found = frame_with(|frame| value_at(frame, path).and_then(change));
        let (frame, words) = found.unwrap_or_else(|| panic!("{path}: no frame has it"));
        let message: Message = serde_json::from_value(frame).expect(path);
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
        let is_kind = |frame: &mut Value| (frame["type"] == kind).then_some(());
        let (mut frame, ()) = frame_with(is_kind).expect(kind);
        let (parent, name) = pointer.rsplit_once('/').expect("a pointer");
        let parent = frame.pointer_mut(parent).expect(pointer);
        parent[name] = value;
        let json = frame.to_string();
        let bytes = [&(json.len() as u32).to_be_bytes()[..], json.as_bytes()].concat();
        let (messages, e) = feed(&mut full(), &bytes, 1 << 16);
        assert!(messages.is_empty(), "{kind}{pointer}: {messages:?}");
        let frame = format!("frame {kind}: ");
        assert_has(&e.expect(pointer).to_string(), &[&frame, words]);
    }
}
