//! The codec on arbitrary bytes, in pieces of any size.

use bytes::BytesMut;
use proptest::prelude::*;
use record::{CacheState, Content, LinkFact, LinkLayer, NodeFacts, PrefixCache};
use tokio_util::codec::{Decoder, Encoder};

use super::*;
use crate::control::{
    frame::{Codec, FrameError, MAX_FRAME},
    message::{AuthKind, Hex, MAX_TEXT, Message, clip},
};
use crate::wire::{Description, MAX_DESCRIPTION};

fn content() -> impl Strategy<Value = Option<Content>> {
    prop::option::of(prop_oneof![
        (".{1,64}", "[0-9a-f]{64}").prop_map(|(name, sha256)| Content::File {
            name: clip(&name),
            sha256,
        }),
        "[0-9a-f]{64}".prop_map(|sha256| Content::Settings { sha256 }),
        "[a-z/]{1,99}".prop_map(|name| Content::Server { name }),
    ])
}

fn prefix_cache() -> impl Strategy<Value = Option<PrefixCache>> {
    let states = vec![CacheState::Off, CacheState::On, CacheState::Unknown];
    let state = prop::sample::select(states);
    prop::option::of((state, "[ -~]{0,99}").prop_map(|(state, how)| PrefixCache { state, how }))
}

fn node_facts() -> impl Strategy<Value = NodeFacts> {
    let id = || prop::option::of("[0-9a-f]{32}");
    let link = (any::<u16>(), "[a-z0-9]{1,15}").prop_map(|(nic, name)| LinkFact {
        nic,
        name,
        layer: [LinkLayer::Ethernet, LinkLayer::Virtual][usize::from(nic % 2)],
    });
    let program = (id(), any::<Option<bool>>(), any::<u64>());
    let links = prop::collection::vec(link, 0..5);
    ("[a-zA-Z0-9.-]{0,99}", id(), id(), program, links).prop_map(
        |(host, machine, boot, (commit, dirty, started), links)| NodeFacts {
            host,
            machine,
            boot,
            version: "0.1.0".to_owned(),
            program: commit.clone().map(|half| half.repeat(2)),
            commit,
            dirty,
            started,
            links,
        },
    )
}

/// One message of each type, within its limits.
pub(in crate::control) fn message() -> impl Strategy<Value = Message> {
    let counters = prop::array::uniform6(0..=limits::MAX_COUNT).prop_map(|c| Counters {
        arrived: c[0],
        responded: c[1],
        refused: c[2] / 2,
        dropped_late: c[2],
        batches: c[3],
        copies: c[4],
        parts: c[5],
    });
    let score = (1u32..=65536).prop_map(crate::rails::Score::from_steps);
    let rail = (any::<u16>(), score.clone()).prop_map(|(nic, score)| RailScore { nic, score });
    let scores = (score, prop::collection::vec(rail, 0..9))
        .prop_map(|(interior, rails)| Scores { interior, rails });
    let code = prop::sample::select(vec![
        ErrorCode::Version,
        ErrorCode::Role,
        ErrorCode::Auth,
        ErrorCode::Busy,
        ErrorCode::Model,
        ErrorCode::NameTaken,
        ErrorCode::Budget,
        ErrorCode::Protocol,
        ErrorCode::ShuttingDown,
    ]);
    let requests = (1u16..20, 1u32..9, 1u32..8193).prop_map(|(n, epoch, slots)| {
        (0..n)
            .map(|i| connection(i, epoch, slots))
            .collect::<Vec<_>>()
    });
    let grants = requests.clone().prop_map(|connections| {
        let grant = |l: ConnectionRequest| ConnectionGrant {
            connection: l.connection,
            epoch: l.epoch,
            slots: l.slots,
            nic: l.nic,
            gpu: (!l.connection.is_multiple_of(3)).then_some(u32::from(l.connection)),
            key: Hex([l.connection as u8; 16]),
            transport: GrantTransport::Tcp {
                address: "[::1]:7400".parse().expect("an address"),
            },
        };
        connections.into_iter().map(grant).collect()
    });
    let text = any::<String>().prop_map(|t| clip(&t));
    let id = any::<u64>();
    prop_oneof![
        ("[a-z0-9._-]{1,64}", any::<[u8; 32]>(), 1u32..).prop_map(|(node, nonce, heartbeat_ms)| {
            Message::Hello {
                version: 1,
                role: Role::Frontend,
                node,
                auth: AuthKind::Token,
                nonce: Hex(nonce),
                heartbeat_ms,
            }
        }),
        any::<Option<[u8; 32]>>().prop_map(|mac| Message::Answer { mac: mac.map(Hex) }),
        (
            (1usize..1 << 20, 0usize..100),
            prop::option::of(prop_oneof![
                Just(Stream::None),
                Just(Stream::First),
                Just(Stream::All)
            ]),
            prop::option::of((
                "[a-z]{1,64}",
                any::<bool>(),
                any::<u64>(),
                content(),
                prefix_cache(),
            )),
            node_facts(),
        )
            .prop_map(|((i, o), stream, engine, facts)| Message::Model {
                spec: ModelSpec::opaque("m", i, o),
                stream,
                engine: engine.map(
                    |(name, tokens, at_once, content, prefix_cache)| EngineInfo {
                        name,
                        tokens,
                        at_once: at_once % limits::MAX_COUNT,
                        content,
                        prefix_cache,
                    }
                ),
                facts: Box::new(facts),
            }),
        (id, requests).prop_map(|(id, connections)| Message::Open { id, connections }),
        (id, grants).prop_map(|(id, connections)| Message::Opened { id, connections }),
        id.prop_map(|id| Message::Start { id }),
        id.prop_map(|id| Message::Ready { id }),
        id.prop_map(|id| Message::Name { id }),
        (id, "[ -~]{1,100}").prop_map(|(id, name)| Message::NameIs { id, name }),
        id.prop_map(|id| Message::Drain { id }),
        (id, id).prop_map(|(id, at)| Message::Side { id, at }),
        (id, "[ -~]{0,100}").prop_map(|(id, text)| Message::SideIs { id, of: id, text }),
        (id, counters.clone()).prop_map(|(id, counters)| {
            let mut batches = record::BatchSizes::new(64);
            batches.record(id as usize % 70);
            Message::Drained {
                id,
                counters,
                batches,
                gpus: vec![record::GpuRecord {
                    index: (id % limits::MAX_COUNT) as usize,
                    ..Default::default()
                }],
                used: record::NodeUse {
                    clock_us: id % limits::MAX_COUNT,
                    ..Default::default()
                },
            }
        }),
        id.prop_map(|id| Message::Describe { id }),
        (id, "[ -~\n]{0,300}", "[ -~\n]{0,300}").prop_map(|(id, machine, config)| {
            let description = Box::new(Description { machine, config });
            Message::Described { id, description }
        }),
        (id, code.clone(), text.clone()).prop_map(|(id, code, text)| Message::Refused {
            id,
            code,
            text
        }),
        (id, prop::option::of(counters), prop::option::of(scores)).prop_map(
            |(seq, counters, scores)| {
                Message::Heartbeat {
                    seq,
                    counters,
                    scores,
                }
            }
        ),
        (any::<u16>(), any::<u32>(), text.clone()).prop_map(|(connection, epoch, cause)| {
            Message::ConnectionLost {
                connection,
                epoch,
                cause,
            }
        }),
        (any::<u16>(), any::<u32>())
            .prop_map(|(connection, epoch)| Message::ConnectionReset { connection, epoch }),
        Just(Message::Bye {}),
        (code, text).prop_map(|(code, text)| Message::Error { code, text }),
    ]
}

/// Feeds bytes in pieces, then the end. Returns the messages and the first error.
fn feed(codec: &mut Codec, bytes: &[u8], piece: usize) -> (Vec<Message>, Option<FrameError>) {
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
    fn any_bytes_are_messages_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..300),
        piece in 1usize..300, framed: bool)
    {
        let bytes = if framed {
            [(bytes.len() as u32).to_be_bytes().to_vec(), bytes].concat()
        } else {
            bytes
        };
        let (out, e) = feed(&mut full(), &bytes, piece);
        prop_assert!(out.is_empty(), "random bytes make no message: {out:?}");
        prop_assert_eq!(e.is_none(), bytes.is_empty(), "{:?}", e);
    }

    /// Valid JSON with one changed byte decodes to a message within its limits, or is an error; it
    /// never panics.
    #[test]
    fn a_changed_byte_is_survived(m in message(), at in any::<prop::sample::Index>(), to: u8) {
        let mut bytes = BytesMut::new();
        full().encode(&m, &mut bytes).expect("within limits");
        let at = at.index(bytes.len());
        bytes[at] = to;
        let (out, _) = feed(&mut full(), &bytes, 64);
        for m in out {
            prop_assert_eq!(limits::check(&m), Ok(()));
        }
    }

    #[test]
    fn a_type_says_what_it_is(m in message()) {
        let json = serde_json::to_value(&m).expect("JSON");
        prop_assert_eq!(&json["type"], m.kind());
    }

    #[test]
    fn clipped_text_is_short_and_keeps_to_its_line(text in any::<String>(), n in 0usize..300) {
        let long = text.repeat(n);
        let clipped = clip(&long);
        prop_assert!(clipped.len() <= MAX_TEXT && !clipped.chars().any(char::is_control));
        if long.len() < MAX_TEXT - 3 && !long.chars().any(char::is_control) {
            prop_assert_eq!(clipped, long);
        }
    }
}

/// Every type can be made: `TYPES` and the generator above have the same length as the enum, which
/// [`Message::kind`] matches without a wildcard.
#[test]
fn every_type_is_known_and_no_other() {
    for kind in Message::TYPES {
        let json = json!({"type": kind, "no such field": 1}).to_string();
        let bytes = [&(json.len() as u32).to_be_bytes()[..], json.as_bytes()].concat();
        let (_, e) = feed(&mut full(), &bytes, 1000);
        assert!(
            matches!(&e, Some(FrameError::BadField { kind: k, .. }) if k == kind),
            "{e:?}"
        );
    }
    let e = serde_json::from_value::<Message>(json!({"type": "x"})).expect_err("unknown");
    let listed = e.to_string().matches('`').count() / 2 - 1;
    assert_eq!(listed, Message::TYPES.len(), "{e}");
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
    let (_, e) = feed(&mut Codec::before_auth(), &4097u32.to_be_bytes(), 4);
    assert!(
        matches!(
            e,
            Some(FrameError::TooLong {
                bytes: 4097,
                limit: 4096
            })
        ),
        "{e:?}"
    );
    // A frame past the limit is not sent either.
    let m = Message::Error {
        code: ErrorCode::Protocol,
        text: "x".repeat(MAX_FRAME),
    };
    let e = full()
        .encode(&m, &mut BytesMut::new())
        .expect_err("too long");
    assert!(matches!(e, FrameError::TooLong { .. }), "{e}");
}

#[test]
fn what_a_drained_node_says_is_within_its_limits() {
    let read = |name: &str, threads: usize, count: u64| {
        let group = record::ThreadGroup {
            name: name.to_owned(),
            ..Default::default()
        };
        let message = Message::Drained {
            id: 1,
            counters: Counters {
                responded: count,
                ..Counters::default()
            },
            batches: record::BatchSizes::new(1),
            gpus: vec![record::GpuRecord {
                name: name.to_owned(),
                ..Default::default()
            }],
            used: record::NodeUse {
                threads: vec![group; threads],
                ..Default::default()
            },
        };
        let mut bytes = BytesMut::new();
        full().encode(&message, &mut bytes).expect("small");
        full().decode(&mut bytes)
    };
    assert!(read("H200", 33, 1 << 53).is_ok());
    let escape = read("\u{1b}]0;title\u{7}\u{1b}[2J", 1, 0);
    assert!(escape.is_err(), "a GPU's name that a terminal obeys");
    assert!(
        read("H200", 34, 0).is_err(),
        "more than 33 kinds of threads"
    );
    assert!(read(&"x".repeat(100_000), 1, 0).is_err(), "a long name");
    assert!(read("H200", 1, u64::MAX).is_err(), "a sum would overflow");
}

#[test]
fn names_that_a_terminal_obeys_are_refused_before_and_behind_the_proof() {
    let escape = "\u{1b}[2J";
    let mut spec = model();
    spec.inputs[0].name = escape.to_owned();
    let end = fabric::wire::OfiEnd {
        provider: escape.to_owned(),
        address: String::new(),
        form: fabric::wire::OfiForm::Data,
        slots: fabric::wire::OfiRegion {
            address: 0,
            length: 1,
            key: 0,
        },
        cells: None,
    };
    let transport = RequestTransport::Ofi { end };
    let messages = [
        Message::Model {
            spec,
            stream: None,
            engine: None,
            facts: Box::default(),
        },
        Message::Open {
            id: 1,
            connections: vec![ConnectionRequest {
                transport,
                ..connection(0, 1, 1)
            }],
        },
    ];
    for message in messages {
        let e = limits::check(&message).expect_err("a control character");
        assert!(e.problem.contains("control character"), "{e:?}");
    }
}

#[test]
fn every_field_of_every_message_is_looked_at_or_named_as_free() {
    let check = include_str!("../limits.rs");
    let skipped: Vec<_> = check.lines().filter(|l| l.trim() == "..").collect();
    assert!(skipped.is_empty() && !check.contains(".. }") && !check.contains("..}"));
}

#[test]
fn a_data_connection_at_a_control_port_is_told_by_name() {
    let (_, e) = feed(&mut Codec::before_auth(), b"QDLDATA1\x01\0", 4);
    assert!(matches!(e, Some(FrameError::DataConnection)), "{e:?}");
}
