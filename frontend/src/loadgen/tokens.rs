//! Runs whose answers are tokens: checks before the run, and faults of malformed answers.
//!
//! The engine determines the number of tokens of an answer: it is the answer's length. If an engine
//! does not count tokens, the run is refused.

use std::sync::{Mutex, MutexGuard, OnceLock};

use anyhow::{Result, bail};
use engines::streaming::TOKEN_BYTES;
use fabric::os::lock;
use fabric::wire::Stream;
use loadgen_bridge::{Scenario, TestSettings};
use qdl::{
    counters::TokenSizes,
    dispatch::Contradiction,
    model::{DType, ModelSpec, TensorSpec},
};
use record::EngineInfo;

/// Number of faults kept as text; all others are only counted.
const KEPT: usize = 10;

/// Whether a tensor is a row of token ids of variable length.
fn is_tokens(t: &TensorSpec) -> bool {
    t.ragged && t.dtype == DType::I32 && t.shape.len() == 1
}

/// Bytes per token of prompt and answer, if answers are rows of tokens. Inputs are rows of equal
/// length: with a mask beside the ids, a token takes the bytes of both.
pub fn sizes(model: &ModelSpec) -> Option<TokenSizes> {
    let input = |t: &TensorSpec| {
        let along: usize = t.shape.iter().skip(1).product();
        t.dtype.bytes().saturating_mul(along)
    };
    let bytes: usize = model.inputs.iter().map(input).sum();
    is_tokens(&model.output).then(|| TokenSizes {
        input: u32::try_from(bytes).unwrap_or(u32::MAX).max(1),
        output: TOKEN_BYTES as u32,
    })
}

/// Default for when tokens leave the accelerator. The first token leaves at once if LoadGen
/// measures first tokens, as in all scenarios but Offline.
pub fn default_stream(model: &ModelSpec, test: &TestSettings) -> Stream {
    let measured = test.use_token_latencies && test.scenario != Scenario::Offline;
    match measured && is_tokens(&model.output) {
        true => Stream::First,
        false => Stream::None,
    }
}

/// Checks that every engine counts tokens and that the model's output is a row of tokens.
pub fn check(model: &ModelSpec, engines: &[(String, EngineInfo)]) -> Result<()> {
    let (name, output) = (&model.name, &model.output);
    if let Some((node, engine)) = engines.iter().find(|(_, e)| !e.tokens) {
        bail!(
            "LoadGen is to measure tokens (use_token_latencies), and engine `{}` of {node} does \
             not count those of model `{name}`: let {node} run an engine that answers with token \
             ids (`kind: tokens`, `http`, `vllm` or `llm`), or set use_token_latencies to 0",
            engine.name
        );
    }
    let Some((node, engine)) = engines.first() else {
        bail!(
            "LoadGen is to measure tokens (use_token_latencies) of model `{name}`, and no engine \
             was named: is an accelerator still there?"
        );
    };
    if !is_tokens(output) {
        bail!(
            "LoadGen is to measure tokens (use_token_latencies), and the output of model \
             `{name}`, {output}, which engine `{}` of {node} answers with, is no row of tokens: \
             give it `dtype: i32` and `ragged: true` on every node, or set use_token_latencies to \
             0",
            engine.name
        );
    }
    Ok(())
}

/// Returns the number of tokens of an answer, which is its length.
pub fn count(payload: &[u8]) -> i64 {
    i64::try_from(payload.len() / TOKEN_BYTES).unwrap_or(i64::MAX)
}

/// Returns the bytes of an answer's first token; all bytes of a shorter answer.
pub fn first(payload: &[u8]) -> &[u8] {
    payload.get(..TOKEN_BYTES).unwrap_or(payload)
}

#[derive(Debug)]
pub struct Tokens {
    /// Bytes per token of prompts and answers.
    pub sizes: TokenSizes,
    /// True if LoadGen measures tokens and gets their number.
    pub measured: bool,
    /// True if LoadGen gets each sample's first token: not in Offline.
    pub first: bool,
    connections: OnceLock<Vec<String>>,
    found: Mutex<TokenFindings>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TokenFindings {
    /// Number of answers with fewer than two whole tokens.
    pub too_short: u64,
    /// Number of samples sent again whose first token differs from the one LoadGen was given.
    pub contradicted: u64,
    pub faults: Vec<String>,
    /// Texts on samples sent again with another first token, if LoadGen gets no first tokens.
    pub notes: Vec<String>,
}

impl Tokens {
    pub fn new(sizes: TokenSizes, test: &TestSettings) -> Self {
        Tokens {
            sizes,
            measured: test.use_token_latencies,
            first: test.use_token_latencies && test.scenario != Scenario::Offline,
            connections: OnceLock::new(),
            found: Mutex::default(),
        }
    }

    pub fn set_connections(&self, connections: Vec<String>) {
        let _ = self.connections.set(connections);
    }

    fn name_of(&self, connection: usize) -> String {
        let name = self.connections.get().and_then(|c| c.get(connection));
        name.map_or_else(|| format!("connection {connection}"), String::clone)
    }

    fn found(&self) -> MutexGuard<'_, TokenFindings> {
        lock(&self.found)
    }

    /// Checks an answer from `connection`. Fewer than two tokens, or a part of a token, are a fault
    /// of the engine: LoadGen treats fewer than two tokens as an error.
    pub fn answered(&self, connection: usize, index: u64, payload: &[u8]) {
        if payload.len() >= 2 * TOKEN_BYTES && payload.len().is_multiple_of(TOKEN_BYTES) {
            return;
        }
        let mut found = self.found();
        found.too_short += 1;
        let n = count(payload);
        let what = match payload.len() % TOKEN_BYTES {
            0 => format!("{n} token{}", if n == 1 { "" } else { "s" }),
            _ => format!("{} bytes, which are no tokens", payload.len()),
        };
        keep(&mut found.faults, || {
            format!(
                "engine: sample {index} was answered with {what} by {}; LoadGen measures answers \
                 of 2 and more",
                self.name_of(connection)
            )
        });
    }

    /// Records a sample sent again whose first token differs: a fault if LoadGen was given the
    /// earlier token, else a note, because LoadGen gets only the second answer.
    pub fn contradicted(&self, what: Contradiction) {
        let [again, before] = [what.repeated, what.reported].map(|t| t as u32 as i32);
        let (index, by) = (what.index, || self.name_of(what.connection));
        let again = || format!("sample {index} was sent again, and began with token {again}");
        let mut found = self.found();
        if self.first {
            found.contradicted += 1;
            keep(&mut found.faults, || {
                format!("{} where {before} was reported, by {}", again(), by())
            });
        } else {
            keep(&mut found.notes, || {
                let (again, by) = (again(), by());
                format!("{again} by {by}, with {before} before; its second answer counts")
            });
        }
    }

    pub fn findings(&self) -> TokenFindings {
        self.found().clone()
    }
}

fn keep(texts: &mut Vec<String>, text: impl FnOnce() -> String) {
    if texts.len() < KEPT {
        texts.push(text());
    }
}

#[cfg(test)]
mod tests {
    use qdl::testkit::assert_has;

    use super::*;

    fn engine(name: &str, tokens: bool) -> EngineInfo {
        EngineInfo {
            name: name.to_owned(),
            tokens,
            at_once: 64,
            ..EngineInfo::default()
        }
    }

    fn of_tokens() -> ModelSpec {
        let mut model = ModelSpec::opaque("llama", 64, 0);
        model.inputs[0].dtype = DType::I32;
        model.output = TensorSpec {
            name: "tokens".to_owned(),
            dtype: DType::I32,
            shape: vec![16],
            ragged: true,
        };
        model
    }

    fn test(scenario: Scenario, measured: bool) -> TestSettings {
        TestSettings {
            scenario,
            use_token_latencies: measured,
            ..TestSettings::default()
        }
    }

    #[test]
    fn tokens_that_no_engine_counts_are_refused_in_one_line() {
        let model = of_tokens();
        let good = ("acc-a".to_owned(), engine("tokens", true));
        let bad = ("acc-b".to_owned(), engine("null", false));
        check(&model, std::slice::from_ref(&good)).expect("counted");
        let e = check(&model, &[good.clone(), bad]).expect_err("not counted");
        let text = e.to_string();
        assert_has(
            &text,
            &[
                "`null`",
                "acc-b",
                "`llama`",
                "kind: tokens",
                "use_token_latencies",
            ],
        );
        assert_eq!(text.lines().count(), 1);
        for spoil in [
            (|m: &mut ModelSpec| m.output.ragged = false) as fn(&mut ModelSpec),
            |m| m.output.dtype = DType::I64,
            |m| m.output.shape = vec![16, 2],
        ] {
            let mut model = model.clone();
            spoil(&mut model);
            let e = check(&model, std::slice::from_ref(&good)).expect_err("no tokens");
            let text = e.to_string();
            let words = ["`llama`", "`tokens`", "acc-a", "dtype: i32", "ragged: true"];
            assert!(words.iter().all(|w| text.contains(w)), "{text}");
            assert_eq!(sizes(&model), None);
        }
        let text = check(&model, &[]).expect_err("no engine").to_string();
        assert!(text.contains("no engine was named"), "{text}");
    }

    #[test]
    fn the_first_token_leaves_at_once_where_loadgen_waits_for_it() {
        let model = of_tokens();
        let stream = |scenario, measured| default_stream(&model, &test(scenario, measured));
        assert_eq!(stream(Scenario::Server, true), Stream::First);
        assert_eq!(stream(Scenario::SingleStream, true), Stream::First);
        assert_eq!(stream(Scenario::Offline, true), Stream::None);
        assert_eq!(stream(Scenario::Server, false), Stream::None);
        let opaque = ModelSpec::opaque("m", 64, 8);
        let server = test(Scenario::Server, true);
        assert_eq!(default_stream(&opaque, &server), Stream::None);
    }

    #[test]
    fn a_token_of_a_prompt_has_the_bytes_of_all_inputs() {
        let mut model = of_tokens();
        model.inputs.push(model.inputs[0].clone());
        let s = sizes(&model).expect("tokens");
        assert_eq!((s.input, s.output), (8, 4));
    }

    #[test]
    fn an_answer_of_less_than_two_tokens_is_the_engines_error_and_names_the_connection() {
        let tokens = Tokens::new(
            sizes(&of_tokens()).expect("tokens"),
            &test(Scenario::Offline, true),
        );
        tokens.set_connections(["acc-a/0", "acc-b/0"].map(str::to_owned).to_vec());
        tokens.answered(0, 1, &[0; 8]);
        assert_eq!(tokens.findings(), TokenFindings::default());
        tokens.answered(1, 7, &[]);
        tokens.answered(0, 8, &[0; 4]);
        tokens.answered(0, 9, &[0; 11]);
        let found = tokens.findings();
        assert_eq!((found.too_short, found.faults.len()), (3, 3));
        assert!(found.faults[0].contains("sample 7 was answered with 0 tokens by acc-b/0;"));
        assert!(found.faults[1].contains("sample 8 was answered with 1 token by acc-a/0;"));
        assert!(found.faults[2].contains("sample 9 was answered with 11 bytes, which are no"));
    }

    #[test]
    fn a_contradiction_is_a_fault_where_loadgen_has_the_first_token_and_else_a_note() {
        let again = "sample 5 was sent again, and began with token -3";
        let note = "by acc-b/0, with 17 before; its second answer counts";
        for (scenario, measured, text) in [
            (Scenario::Server, true, "where 17 was reported, by acc-b/0"),
            (Scenario::Offline, true, note),
            (Scenario::Server, false, note),
        ] {
            let sizes = sizes(&of_tokens()).expect("tokens");
            let tokens = Tokens::new(sizes, &test(scenario, measured));
            tokens.set_connections(["acc-a/0", "acc-b/0"].map(str::to_owned).to_vec());
            for _ in 0..2 * KEPT {
                tokens.contradicted(Contradiction {
                    index: 5,
                    reported: 17,
                    repeated: u64::from(-3i32 as u32),
                    connection: 1,
                });
            }
            let found = tokens.findings();
            let (kept, others, counted) = match tokens.first {
                true => (found.faults, found.notes, 2 * KEPT as u64),
                false => (found.notes, found.faults, 0),
            };
            assert_eq!((found.contradicted, others.len()), (counted, 0));
            assert_eq!((kept.len(), &kept[0]), (KEPT, &format!("{again} {text}")));
        }
    }
}
