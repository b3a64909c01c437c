use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::{
    answer::TokenReader,
    openai::{Endpoint, Finish, Message, parse},
};

fn open(tokenizer: &Value, config: &Value) -> Text {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, json: &Value| fs::write(folder.path().join(name), json.to_string());
    write("tokenizer.json", tokenizer).unwrap();
    write("tokenizer_config.json", config).unwrap();
    write("generation_config.json", &json!({"eos_token_id": [2, 3]})).unwrap();
    Text::open(folder.path()).unwrap()
}

fn special(id: u32, content: &str) -> Value {
    json!({"id": id, "content": content, "special": true, "single_word": false, "lstrip": false,
        "rstrip": false, "normalized": false})
}

/// Tokens `t0` to `t99` between spaces.
fn words() -> Text {
    let mut vocab: HashMap<String, u32> = (0..100).map(|i| (format!("t{i}"), i)).collect();
    vocab.insert("[UNK]".to_owned(), 100);
    let model = json!({"type": "WordLevel", "vocab": vocab, "unk_token": "[UNK]"});
    let tokenizer = json!({"version": "1.0", "added_tokens": [special(100, "[UNK]")],
        "pre_tokenizer": {"type": "Whitespace"}, "model": model});
    open(&tokenizer, &Value::Null)
}

/// Each byte, some merges of them that end within a character, and two special tokens.
fn byte_level(config: &Value) -> Text {
    let letters = decoder::byte_letters();
    let letter = |byte: u8| {
        let code = letters.iter().position(|it| *it == Some(byte)).unwrap();
        char::from_u32(u32::try_from(code).unwrap()).unwrap()
    };
    let mut tokens: Vec<String> = (0..=255).map(|byte| letter(byte).to_string()).collect();
    let mut merges = Vec::new();
    for pair in [" t", "th", "é", "\u{20AC}", "\u{1F600}", "  "] {
        let pair: Vec<String> = pair
            .bytes()
            .take(2)
            .map(|it| letter(it).to_string())
            .collect();
        merges.push(pair.join(" "));
        tokens.push(pair.concat());
    }
    let vocab: HashMap<&str, usize> = tokens.iter().map(|it| &**it).zip(0..).collect();
    let byte_level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
        "use_regex": true});
    let model = json!({"type": "BPE", "vocab": vocab, "merges": merges});
    let tokenizer = json!({"version": "1.0", "pre_tokenizer": byte_level, "decoder": byte_level,
        "added_tokens": [special(262, "<|start|>"), special(263, "<|end|>")], "model": model});
    open(&tokenizer, config)
}

/// As Llama 2's: `▁` for spaces, one before the text; bytes for what is not in the vocabulary.
fn metaspace() -> Text {
    let mut tokens = vec!["<unk>".to_owned(), "<s>".to_owned(), "</s>".to_owned()];
    tokens.extend((0..=255).map(|byte| format!("<0x{byte:02X}>")));
    tokens.extend(["▁", "a", "b", "é", "▁a", "ab", "▁▁"].map(str::to_owned));
    let vocab: HashMap<&str, usize> = tokens.iter().map(|it| &**it).zip(0..).collect();
    let model = json!({"type": "BPE", "vocab": vocab, "merges": ["▁ a", "a b", "▁ ▁"],
        "unk_token": "<unk>", "byte_fallback": true, "fuse_unk": true});
    let replace = |from: &str, to: &str| json!({"type": "Replace", "pattern": {"String": from}, "content": to});
    let before = json!({"type": "Prepend", "prepend": "▁"});
    let decoders = json!([replace("▁", " "), {"type": "ByteFallback"}, {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0}]);
    let tokenizer = json!({"version": "1.0", "model": model,
        "added_tokens": [special(1, "<s>"), special(2, "</s>")],
        "normalizer": {"type": "Sequence", "normalizers": [before, replace(" ", "▁")]},
        "decoder": {"type": "Sequence", "decoders": decoders}});
    open(&tokenizer, &json!({"eos_token": "</s>"}))
}

/// The text of `ids`, token by token.
fn incremental(text: &Text, ids: &[i32], skip: bool) -> String {
    let mut decoder = Decoder::new(skip);
    let mut all: String = ids
        .iter()
        .map(|id| decoder.push(text, *id).to_owned())
        .collect();
    all.push_str(decoder.finish(text));
    assert!(decoder.push(text, -1).is_empty());
    all
}

/// The same tokenizer without its table.
fn without_table(mut text: Text) -> Text {
    assert!(text.table.take().is_some());
    text
}

#[test]
fn a_character_is_sent_with_its_last_byte() {
    let text = byte_level(&Value::Null);
    for text in [&text, &without_table(byte_level(&Value::Null))] {
        let ids = text.encode("t\u{1F600}e").unwrap();
        let mut decoder = Decoder::new(true);
        let pieces: Vec<String> = ids
            .iter()
            .map(|id| decoder.push(text, *id).to_owned())
            .collect();
        assert_eq!(pieces, ["t", "", "", "\u{1F600}", "e"]);
        assert_eq!(decoder.finish(text), "");
        assert_eq!(incremental(text, &ids[..3], true), "t\u{FFFD}");
    }
    assert_eq!(text.vocabulary_len(), 264);
    assert_eq!(text.end_ids(), [2, 3]);
    assert_eq!(incremental(&text, &[262, 65, 9_999, -7, 263], true), "A");
    assert_eq!(
        incremental(&text, &[262, 65, 263], false),
        "<|start|>A<|end|>"
    );
}

#[test]
fn messages_become_the_template_s_text_with_each_special_token_once() {
    let template = "{%- for m in messages %}\n  {%- if m.role == 'system' %}\
        {{ raise_exception('no system: ' ~ m.role) }}{% endif %}\
        {{ bos_token + m['role'] + '|' + m.content.strip() + eos_token }}\n{% endfor %}\
        {%- if add_generation_prompt %}{{ bos_token }}{{ strftime_now('%Y')[:2] }}{% endif %}";
    let config = json!({"bos_token": "<|start|>", "eos_token": {"content": "<|end|>"},
        "chat_template": template});
    let text = byte_level(&config);
    let messages = |role: &str, content: &str| {
        Messages(vec![Message {
            role: role.into(),
            content: content.into(),
        }])
    };
    let ids = text.encode_chat(&messages("user", " <é> ")).unwrap();
    assert_eq!(
        text.decode(&ids, false),
        "<|start|>user|<é><|end|>\n<|start|>20"
    );
    assert_eq!(ids.iter().filter(|id| **id == 262).count(), 2);
    let error = text
        .encode_chat(&messages("system", "x"))
        .unwrap_err()
        .to_string();
    assert!(error.ends_with("no system: system"), "{error}");

    let error = words().encode_chat(&messages("user", "x")).unwrap_err();
    assert!(matches!(error, TextError::NoTemplate(_)), "{error}");
    for template in [
        "{% for a in range(9999) %}{% for b in range(9999) %}x{% endfor %}{% endfor %}",
        "{% set n = namespace(x='xxxxxxxx') %}{% for a in range(60) %}{% set n.x = n.x ~ n.x %}\
         {% endfor %}{{ n.x }}",
    ] {
        let text =
            byte_level(&json!({"chat_template": [{"name": "default", "template": template}]}));
        let error = text.encode_chat(&messages("user", "x")).unwrap_err();
        assert!(matches!(error, TextError::Messages(_)), "{error}");
    }
    let text = byte_level(&json!({"chat_template": "{% if %}"}));
    let error = text.encode_chat(&messages("user", "x")).unwrap_err();
    assert!(error.to_string().contains("chat:1"), "{error}");
}

#[test]
fn a_number_of_ids_that_the_text_does_not_have_is_found() {
    let text = byte_level(&Value::Null);
    let same = text.encode("the text").unwrap();
    let split = [i32::from(b't'), i32::from(b'h')];
    let samples = [&same[..], &split, &[263, 116]];
    let found = text.check_round_trip(samples.into_iter());
    assert_eq!(
        found,
        RoundTrip {
            tried: 3,
            differing: 1
        }
    );
}

#[test]
fn a_folder_without_a_usable_tokenizer_is_an_error_that_names_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let error = || Text::open(folder.path()).err().unwrap().to_string();
    assert!(error().contains("tokenizer.json: no such file"));
    fs::write(folder.path().join("tokenizer.json"), "{}").unwrap();
    assert!(error().contains("tokenizer.json: "));
}

#[test]
fn the_stop_string_that_is_complete_first_ends_the_text() {
    let mut stops = StopStrings::new(vec!["abcd".into(), "bc".into(), "é".into()]);
    assert_eq!(
        stops.push("xa"),
        Released {
            text: "x",
            has_ended: false
        }
    );
    assert_eq!(
        stops.push("b"),
        Released {
            text: "",
            has_ended: false
        }
    );
    assert_eq!(
        stops.push("xb"),
        Released {
            text: "abx",
            has_ended: false
        }
    );
    assert_eq!(
        stops.push("cd"),
        Released {
            text: "",
            has_ended: true
        }
    );
    assert_eq!(
        stops.push("more"),
        Released {
            text: "",
            has_ended: true
        }
    );
    assert_eq!(stops.finish(), "");
    let mut stops = StopStrings::new(vec!["\n\n".into()]);
    assert_eq!(
        stops.push("a\n"),
        Released {
            text: "a",
            has_ended: false
        }
    );
    assert_eq!(stops.finish(), "\n");
}

#[test]
fn an_answer_at_its_limit_has_ended_by_itself_only_with_an_end_token_that_counts() {
    let model = Arc::new(words());
    for (ignore_eos, last, reason) in [
        (false, 2, Finish::Stop),
        (false, 50, Finish::Length),
        (true, 2, Finish::Length),
        (true, 7, Finish::Stop),
    ] {
        let body = json!({"prompt": [1], "ignore_eos": ignore_eos, "stop_token_ids": [7]});
        let asked = parse(Endpoint::Completions, body.to_string().as_bytes()).unwrap();
        let reader = || TokenReader::new(Some(model.clone()), &asked, 2);
        let mut end_comes_with_it = reader();
        assert_eq!(end_comes_with_it.read(50, false), None);
        assert_eq!(end_comes_with_it.read(last, true), Some(reason));
        let mut end_comes_later = reader();
        assert_eq!(end_comes_later.read(50, false), None);
        assert_eq!(end_comes_later.read(last, false), None);
        assert_eq!(end_comes_later.read_end(), reason);
    }
}

static TOKENIZERS: LazyLock<[Text; 5]> = LazyLock::new(|| {
    let bytes = || byte_level(&Value::Null);
    [
        words(),
        bytes(),
        metaspace(),
        without_table(bytes()),
        without_table(metaspace()),
    ]
});

proptest! {
    #[test]
    fn pieces_make_up_the_whole_text(
        ids in prop::collection::vec(-1..270, 0..40),
        text in "[ab\u{20AC}é \u{1F600}th]{0,40}",
        skip in any::<bool>(),
    ) {
        let [words, bytes, spaces, slow_bytes, slow_spaces] = &*TOKENIZERS;
        for tokenizer in [words, bytes] {
            prop_assert_eq!(incremental(tokenizer, &ids, skip), tokenizer.decode(&ids, skip));
        }
        for tokenizer in [bytes, spaces, slow_bytes, slow_spaces] {
            let ids = tokenizer.encode(&text).unwrap();
            prop_assert_eq!(&incremental(tokenizer, &ids, skip), &text);
        }
        let whole = spaces.decode(&ids, skip);
        if !whole.contains('\u{FFFD}') {
            prop_assert_eq!(incremental(spaces, &ids, skip), whole);
        }
    }

    #[test]
    fn stop_strings_are_found_whatever_the_events(
        text in "[abé]{0,30}",
        stops in prop::collection::vec("[abé]{1,4}", 1..4),
        cuts in prop::collection::vec(0_usize..40, 0..10),
    ) {
        let ends = stops.iter().filter_map(|it| Some((text.find(&**it)? + it.len(), it.len())));
        let first = ends.min_by_key(|(end, len)| (*end, std::cmp::Reverse(*len)));
        let expected = first.map_or(&*text, |(end, len)| &text[..end - len]);
        let mut cuts: Vec<usize> = cuts.iter().map(|it| text.floor_char_boundary(*it)).collect();
        cuts.extend([0, text.len()]);
        cuts.sort_unstable();
        let longest = stops.iter().map(String::len).max().unwrap();
        let mut finder = StopStrings::new(stops);
        let mut sent = String::new();
        for pair in cuts.windows(2) {
            let released = finder.push(&text[pair[0]..pair[1]]);
            sent.push_str(released.text);
            prop_assert!(released.has_ended || pair[1] - sent.len() < longest);
        }
        sent.push_str(finder.finish());
        prop_assert_eq!(sent, expected);
    }
}
