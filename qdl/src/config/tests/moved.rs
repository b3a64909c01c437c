//! Keys and flags of earlier versions.

use super::*;

#[test]
fn an_unknown_key_of_an_earlier_version_names_what_is_there() {
    for (key, instead) in [
        (
            "apart: false",
            "`begin_apart_us` is the time between batches",
        ),
        ("gather: copies", "it is gone: the GPU's copy engines"),
    ] {
        let yaml = ACCELERATOR.replace("kind: digest", &format!("kind: digest, {key}"));
        let all = text(accelerator(&yaml));
        assert_has(&all, &["unknown key", instead]);
    }
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
