//! A program on the path captures, changes, repeats, cuts or replaces units of the handshake. The
//! fuzz target `handshake` changes records of a session.

use super::*;
use crate::{testkit::assert_has, wire::Description};

#[test]
fn a_capture_of_a_session_holds_no_secret_name_configuration_or_address() {
    let mut pair = Pair::in_session();
    let mut asked = vec![connection(0, 1), connection(1, 1)];
    asked[1].transport = End::new("ib", "987654321".to_owned());
    pair.front.open(asked.clone(), 0);
    pair.front.ask("name_is", |id| Message::Name { id }, 0);
    pair.front
        .ask("described", |id| Message::Describe { id }, 0);
    pair.meet();
    let node = &mut pair.node.core;
    node.opened(Ok(asked.iter().map(grant).collect()));
    let name = "acc-1 (digest)".to_owned();
    node.answer(2, Ok(Message::NameIs { id: 2, name }));
    let description = Box::new(Description {
        machine: "{}".to_owned(),
        config: "node: acc-1\n".to_owned(),
    });
    node.answer(3, Ok(Message::Described { id: 3, description }));
    assert_eq!(pair.meet().0.len(), 3, "three answers");
    let captured = pair.ways.map(|way| way.units).concat().concat();
    let holds = |bytes: &[u8]| captured.windows(bytes.len()).any(|w| w == bytes);
    assert!(holds(b"\"nonce\""), "the hellos are there");
    let token = "0123456789abcdef".repeat(4);
    for secret in [
        &*token,
        "07070707",
        "fe-1",
        "acc-1",
        "host of",
        "digest",
        "node:",
        "127.0.0.1",
        "987654321",
    ] {
        assert!(!holds(secret.as_bytes()), "{secret} is in the capture");
    }
    assert!(!holds(&hex::decode(&token).expect("digits")) && !holds(&[7; 32]));
}

/// A handshake that is changed begins no session, and each end has one line about it.
#[test]
fn a_changed_handshake_begins_no_session() {
    const TO_FRONT: usize = 0;
    const TO_NODE: usize = 1;
    const MISSING: &str = "set token_file";
    const DIGITS: &str = "64 hexadecimal digits";
    const DIFFER: &str = "tokens differ";
    const ITS_TOKEN: &str = "token is not this node's";
    const SEALED: &str = "does not open";
    const CUT: &str = "ended inside a frame";
    const HERE: &str = "version 9, this node speaks 13";
    let before = {
        let pair = Pair::in_session();
        pair.ways.map(|way| way.units)
    };
    let again = |way: usize, i: usize| Attack::Splice(before[way][i].clone());
    let downgrade = Attack::Replace("\"token\"", "\"none\"");
    let older = Attack::Replace("\"version\":13", "\"version\":9");
    let nonce = Attack::Replace("\"nonce\":\"", "\"nonce\":\"0");
    let cases = [
        (TO_NODE, 0, downgrade.clone(), [MISSING, MISSING]),
        (TO_FRONT, 0, downgrade, [MISSING, MISSING]),
        (TO_NODE, 0, older.clone(), ["13, the frontend 9", HERE]),
        (TO_FRONT, 0, older, [HERE, "13, the accelerator 9"]),
        (TO_NODE, 0, nonce.clone(), [DIGITS, DIGITS]),
        (TO_FRONT, 0, nonce, [DIGITS, DIGITS]),
        (TO_NODE, 0, again(TO_NODE, 0), [DIFFER, ITS_TOKEN]),
        (TO_FRONT, 0, again(TO_FRONT, 0), [DIFFER, ITS_TOKEN]),
        (TO_NODE, 1, again(TO_NODE, 1), [DIFFER, ITS_TOKEN]),
        (TO_FRONT, 1, again(TO_FRONT, 1), [ITS_TOKEN, SEALED]),
        (TO_NODE, 1, Attack::Flip(-3), [DIFFER, ITS_TOKEN]),
        (TO_FRONT, 1, Attack::Flip(-3), [ITS_TOKEN, SEALED]),
        (TO_NODE, 1, Attack::Repeat, [SEALED, SEALED]),
        (TO_FRONT, 1, Attack::Repeat, [SEALED, SEALED]),
        (TO_NODE, 2, Attack::Flip(-1), [SEALED, SEALED]),
        (TO_FRONT, 2, Attack::Flip(-1), [SEALED, SEALED]),
        (TO_NODE, 2, again(TO_NODE, 2), [SEALED, SEALED]),
        (TO_FRONT, 2, again(TO_FRONT, 2), [SEALED, SEALED]),
        (TO_NODE, 2, Attack::Cut, [CUT, CUT]),
        (TO_FRONT, 2, Attack::Cut, [CUT, CUT]),
    ];
    for (way, index, attack, words) in cases {
        let case = format!("way {way}, unit {index}: {attack:?}");
        let mut pair = Pair::new(local("fe-1"), local("acc-1"));
        pair.ways[way].attack = Some((index, attack));
        for (line, words) in pair.causes().iter().zip(words) {
            assert_has(line, &[words]);
            assert!(!line.contains('\n'), "{case}: {line}");
        }
    }
}
