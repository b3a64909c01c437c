//! Keys and flags of earlier versions.

use super::{
    super::{
        document::Document,
        moved::{Moved, Now, moved_flag, moved_keys},
        rules::{Findings, Side},
    },
    *,
};

#[test]
fn a_renamed_key_names_the_new_one() {
    let table = [
        Moved {
            side: Some(Side::Frontend),
            path: "nics[].connections",
            now: Now::Called("connections"),
        },
        Moved {
            side: None,
            path: "deadlines.gone_ms",
            now: Now::Gone("nothing waits for it"),
        },
    ];
    let yaml = "nics: [{a: 1}, {connections: 2}]\ndeadlines: {gone_ms: 3}\nlanes: 4\n";
    let found = |side| {
        let mut out = Findings::default();
        moved_keys(&table, side, &Document::new(yaml), &mut out);
        let each = out.list.into_iter();
        each.map(|f| format!("{}: {}; {}", f.path, f.what, f.help.unwrap_or_default()))
            .collect::<Vec<_>>()
    };
    let renamed = "nics[1].connections: `connections` is called `connections` now; write `connections` in its \
                   place";
    let gone = |whose: &str| {
        format!(
            "deadlines.gone_ms: `gone_ms` is no key of {whose} any more: nothing waits for it; \
             remove `gone_ms`"
        )
    };
    assert_eq!(
        found(Side::Frontend),
        [renamed.to_owned(), gone("a frontend")]
    );
    assert_eq!(found(Side::Accelerator), [gone("an accelerator")]);
}

#[test]
fn keys_of_an_engine_that_are_gone_name_what_is_there() {
    let yaml = ACCELERATOR.replace("kind: digest", "kind: digest, apart: false, gather: copies");
    let all = text(accelerator(&yaml));
    assert!(
        all.contains("`begin_apart_us` is the time between batches"),
        "{all}"
    );
    assert!(
        all.contains("`gather` is no key of an accelerator any more"),
        "{all}"
    );
}

#[test]
fn an_accelerator_has_no_echo_of_its_own() {
    let yaml = format!("{ACCELERATOR}deadlines: {{echo_interval_ms: 250}}\n");
    assert_eq!(
        text(accelerator(&yaml)),
        "\
a.yaml:6:31: `echo_interval_ms` is no key of an accelerator any more: the frontend's echo covers \
both directions
  |
6 | deadlines: {echo_interval_ms: 250}
  |                               ^^^
  = remove `echo_interval_ms`"
    );
}

#[test]
fn a_flag_that_is_gone_names_its_replacement() {
    let of = |line: &str| moved_flag(line.split(' ').map(Into::into));
    let gone = |line: &str, word: &str| {
        let logged = "-v logs each loss, re-dispatch and reset of a connection";
        assert_eq!(of(line), Some(format!("`{word}` is gone: {logged}")));
    };
    gone("--config a.yaml --record 4", "--record");
    gone("--record-to=there --config a.yaml", "--record-to");
    gone("flight out", "flight");
    assert_eq!(of("--config a.yaml --output flight"), None);
}
