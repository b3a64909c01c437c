//! The messages between vLLM's engine core and its front end, which is this engine: MessagePack.
//!
//! Source: `vllm/v1/engine/__init__.py`, `core.py` and `utils.py` of vLLM 0.22 to 0.33. Positions
//! in arrays are those that all these versions share. The protocol has no version of its own; the
//! registration names the version of vLLM.

use std::{collections::BTreeMap, fmt};

use crate::llm_server::account::{Account, Tokens, signed};
use qdl::request::RequestOptions;
use rmp_serde::{Serializer, from_slice, to_vec_named};
use serde::{
    Deserialize, Deserializer, Serialize,
    de::{self, IgnoredAny, SeqAccess, Visitor},
};

/// Types of messages to the core: the first frame.
pub(super) const ADD: &[u8] = &[0];
pub(super) const ABORT: &[u8] = &[1];

/// The last message of a core that fails, in place of its outputs.
pub(super) const DEAD: &[u8] = b"ENGINE_CORE_DEAD";

/// What a core says in the handshake: `HELLO`, then `READY`.
#[derive(Debug, Deserialize)]
pub(super) struct Status<'a> {
    pub status: &'a str,
}

/// The answer to HELLO: addresses that the core connects to.
pub(super) fn addresses(input: &str, output: &str) -> Vec<u8> {
    #[derive(Serialize)]
    struct Init<'a> {
        addresses: BTreeMap<&'a str, [&'a str; 1]>,
        parallel_config: BTreeMap<&'a str, u32>,
    }
    let init = Init {
        addresses: [("inputs", [input]), ("outputs", [output])].into(),
        parallel_config: BTreeMap::new(),
    };
    // Text and maps can always be written.
    to_vec_named(&init).unwrap_or_default()
}

/// The first message of a core on its input.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub(super) struct Registration {
    /// Most tokens of prompt and answer together.
    pub max_model_len: usize,
    pub vllm_version: String,
    /// Above 1 only for a mixture of experts: other cores count as independent.
    #[serde(default)]
    pub data_parallel_size: usize,
    /// Sequences that the core runs at once; vLLM 0.24 does not say.
    #[serde(default)]
    pub max_num_seqs: Option<usize>,
}

/// Reads a message of the handshake; `None` if it is another message.
pub(super) fn read<'a, T: Deserialize<'a>>(message: &'a [u8]) -> Option<T> {
    from_slice(message).ok()
}

/// Parameters of a request: keys that differ from the defaults of `SamplingParams`, and those that
/// vLLM's own front end fills in.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Sampling {
    temperature: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    top_p: Option<f32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    top_k: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    seed: Option<u64>,
    max_tokens: usize,
    min_tokens: usize,
    detokenize: bool,
    skip_reading_prefix_cache: bool,
    #[serde(rename = "_eos_token_id", skip_serializing_if = "Option::is_none")]
    eos: Option<u32>,
    stop_token_ids: Vec<u32>,
    #[serde(rename = "_all_stop_token_ids")]
    all_stops: Vec<u32>,
}

impl Sampling {
    /// Parameters with these ids of the end of sequence, if any, and these stop ids.
    pub fn new(temperature: f64, eos: &[u32], stop: &[u32]) -> Self {
        // Further ids of the end of sequence are stop ids to the core.
        let (first, others) = eos.split_at(eos.len().min(1));
        Sampling {
            temperature,
            top_p: None,
            top_k: None,
            seed: None,
            max_tokens: 0,
            min_tokens: 0,
            detokenize: false,
            skip_reading_prefix_cache: true,
            eos: first.first().copied(),
            stop_token_ids: [others, stop].concat(),
            all_stops: [eos, stop].concat(),
        }
    }

    /// Parameters of one request: the configuration's, where its `options` have none.
    pub fn of_request(&self, account: &Account, options: Option<&RequestOptions>) -> Sampling {
        let mut of_one = self.clone();
        (of_one.min_tokens, of_one.max_tokens) = (account.min, account.max);
        let Some(options) = options else {
            return of_one;
        };
        of_one.temperature = options.temperature.map_or(self.temperature, f64::from);
        (of_one.top_p, of_one.top_k) = (options.top_p, options.top_k);
        of_one.seed = options.seed.map(signed);
        if let Some(ends) = account.own_ends() {
            // All are stop ids to the core: it ends at none of them before `min_tokens`.
            of_one.eos = None;
            of_one.stop_token_ids = ends.to_vec();
            of_one.all_stops = ends.to_vec();
        }
        of_one
    }
}

/// Writes an ADD request: nine positional fields. All ids are in the vocabulary already.
pub(super) fn put_request(out: &mut Vec<u8>, id: &str, prompt: &[u32], sampling: &Sampling) {
    // Features of other media, pooling, arrival time (for statistics of vLLM), LoRA, salt of the
    // prefix cache, data parallel rank: none.
    let request = (id, prompt, (), sampling, (), 0.0, (), (), ());
    // Numbers and text can always be written to memory.
    let _ = request.serialize(&mut Serializer::new(out).with_struct_map());
}

pub(super) fn put_abort(out: &mut Vec<u8>, ids: &[String]) {
    let _ = ids.serialize(&mut Serializer::new(out));
}

/// Reasons for the end of an answer. An abort is one of this engine or of the core's own shutdown.
pub(super) mod finish {
    pub const STOP: u64 = 0;
    pub const LENGTH: u64 = 1;
    pub const ABORT: u64 = 2;
    pub const ERROR: u64 = 3;
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Step<'a> {
    pub core: usize,
    pub outputs: Vec<Output<'a>>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Output<'a> {
    pub id: &'a str,
    pub tokens: Tokens,
    /// One of [`finish`], or another number.
    pub finish: Option<u64>,
    /// Tokens of the prompt; with the first token.
    pub prompt: Option<PromptCounts>,
    /// The core's message on an error, from vLLM 0.33 on.
    pub error: Option<&'a str>,
}

/// Tokens of a prompt, and those of them from a prefix cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub(super) struct PromptCounts {
    pub num_prompt_tokens: u64,
    pub num_cached_tokens: u64,
}

/// A field of an output whose position depends on the version.
#[derive(Deserialize)]
#[serde(untagged)]
enum VersionField<'a> {
    Counts(PromptCounts),
    Error(&'a str),
    /// The form of 0.33: `{code, message, retryable}`.
    ErrorMap {
        message: &'a str,
    },
    Other(IgnoredAny),
}

/// Reads the outputs of a step; `None` if the message is malformed.
pub(super) fn read_step(message: &[u8]) -> Option<Step<'_>> {
    from_slice(message).ok()
}

fn field<'de, T: Deserialize<'de>, A: SeqAccess<'de>>(seq: &mut A) -> Result<T, A::Error> {
    let next = seq.next_element()?;
    next.ok_or_else(|| de::Error::custom("too few fields"))
}

fn skip<'de, A: SeqAccess<'de>>(seq: &mut A, fields: usize) -> Result<(), A::Error> {
    (0..fields).try_for_each(|_| field::<IgnoredAny, A>(seq).map(|_| ()))
}

impl<'de: 'a, 'a> Deserialize<'de> for Step<'a> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct Fields;
        impl<'de> Visitor<'de> for Fields {
            type Value = Step<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("outputs of a step")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Step<'de>, A::Error> {
                let (core, outputs) = (field(&mut seq)?, field(&mut seq)?);
                while seq.next_element::<IgnoredAny>()?.is_some() {}
                Ok(Step { core, outputs })
            }
        }
        d.deserialize_seq(Fields)
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Output<'a> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct Fields;
        impl<'de> Visitor<'de> for Fields {
            type Value = Output<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an output")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Output<'de>, A::Error> {
                let (id, tokens) = (field(&mut seq)?, field(&mut seq)?);
                // Log probabilities of tokens and prompt; pooling.
                skip(&mut seq, 3)?;
                let finish = field(&mut seq)?;
                // The stop id, events, parameters of a transfer.
                skip(&mut seq, 3)?;
                let (mut prompt, mut error) = (None, None);
                while let Some(next) = seq.next_element::<Option<VersionField<'de>>>()? {
                    match next {
                        Some(VersionField::Counts(counts)) => prompt = Some(counts),
                        Some(
                            VersionField::Error(words) | VersionField::ErrorMap { message: words },
                        ) => error = Some(words),
                        Some(VersionField::Other(_)) | None => {}
                    }
                }
                Ok(Output {
                    id,
                    tokens,
                    finish,
                    prompt,
                    error,
                })
            }
        }
        d.deserialize_seq(Fields)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::llm_server::account::Limits;

    /// Recorded from vLLM 0.24.0 with `--disable-log-stats`.
    const HELLO: &str = "\
        83a6737461747573a548454c4c4fa56c6f63616cc2a8686561646c657373c3";
    const REGISTRATION: &str = "\
        8aad6d61785f6d6f64656c5f6c656ecd0400ae6e756d5f6770755f626c6f636b73cd1000aa626c6f636b5f7369\
        7a65cc80b064705f73746174735f61646472657373c0a56474797065a7666c6f61743332ac766c6c6d5f766572\
        73696f6ea6302e32342e30aa776f726c645f73697a6501b2646174615f706172616c6c656c5f73697a6501b46b\
        765f63616368655f73697a655f746f6b656e73ce00080000b86b765f63616368655f6d61785f636f6e63757272\
        656e6379cb4080000000000000";
    const FIRST: &str = "\
        9800919da13191ce0001c369c0c0c0c0c0c0c0c085b16e756d5f70726f6d70745f746f6b656e730cb36e756d5f\
        636f6d70757465645f746f6b656e730cb16e756d5f6361636865645f746f6b656e7300b76e756d5f6c6f63616c\
        5f6361636865645f746f6b656e7300ba6e756d5f65787465726e616c5f6361636865645f746f6b656e7300c000\
        c0cb40eacd4e791fa356c0c0c0c0";
    const LAST: &str = "\
        9800929da2663191ce0001d1e8c0c0c001c0c0c0c0c0c0009da2663291cd1a2ec0c0c001c0c0c0c0c0c000c0cb\
        40eacd85129218c7c0c0c0c0";

    /// Recorded from vLLM 0.33.0: an error with a code.
    const ERROR: &str = "\
        990091dc0013a2613190c0c0c003c0c0c0c0c0c0c000c0c0c0c083a4636f6465b076616c69646174696f6e5f65\
        72726f72a76d657373616765af70726f6d707420746f6f206c6f6e67a9726574727961626c65c2c0cb3ff80000\
        00000000c091a26131c0c0a764656661756c74";

    fn bytes(hexadecimal: &str) -> Vec<u8> {
        hex::decode(hexadecimal).expect("hexadecimal")
    }

    fn output(id: &str, token: i32, finish: Option<u64>, prompt: Option<u64>) -> Output<'_> {
        Output {
            id,
            tokens: [token].into_iter().collect(),
            finish,
            prompt: prompt.map(|num_prompt_tokens| PromptCounts {
                num_prompt_tokens,
                num_cached_tokens: 0,
            }),
            error: None,
        }
    }

    #[test]
    fn a_real_core_is_understood() {
        let hello = bytes(HELLO);
        assert_eq!(read::<Status<'_>>(&hello).map(|s| s.status), Some("HELLO"));
        let expected = Registration {
            max_model_len: 1024,
            vllm_version: "0.24.0".to_owned(),
            data_parallel_size: 1,
            max_num_seqs: None,
        };
        assert_eq!(read(&bytes(REGISTRATION)), Some(expected));
        let first = output("1", 115_561, None, Some(12));
        let length = Some(finish::LENGTH);
        let last = [
            output("f1", 119_272, length, None),
            output("f2", 6702, length, None),
        ];
        for (message, outputs) in [(FIRST, vec![first]), (LAST, last.to_vec())] {
            assert_eq!(read_step(&bytes(message)), Some(Step { core: 0, outputs }));
        }
        let error = bytes(ERROR);
        let step = read_step(&error).expect("a step");
        let of_it = &step.outputs[0];
        let words = (of_it.finish, of_it.error);
        assert_eq!(words, (Some(finish::ERROR), Some("prompt too long")));
    }

    /// Later versions have more fields: counts move from place 10 to 11, an error comes last.
    #[test]
    fn fields_of_later_versions_are_found_or_skipped() {
        let counts = PromptCounts {
            num_prompt_tokens: 9,
            num_cached_tokens: 4,
        };
        let map = BTreeMap::from([("num_prompt_tokens", 9), ("num_cached_tokens", 4), ("n", 1)]);
        let (more, reason, error) = (((), ()), 3, "no room");
        let output = (
            "a",
            [5, 6],
            (),
            (),
            (),
            reason,
            (),
            more,
            (),
            7,
            true,
            map,
            0.5,
            error,
        );
        let message = rmp_serde::to_vec(&(1, [&output], (), 1.5)).expect("written");
        let expected = Output {
            id: "a",
            tokens: [5, 6].into_iter().collect(),
            finish: Some(finish::ERROR),
            prompt: Some(counts),
            error: Some("no room"),
        };
        let step = Step {
            core: 1,
            outputs: vec![expected],
        };
        assert_eq!(read_step(&message), Some(step));
        for end in 0..message.len() {
            assert_eq!(read_step(&message[..end]), None, "{end}");
        }
        // Fewer fields than all versions have.
        let short = rmp_serde::to_vec(&(1, [("a", [5], (), (), (), 3)])).expect("written");
        assert_eq!(read_step(&short), None);
    }

    #[test]
    fn a_request_has_what_the_front_end_of_vllm_fills_in() {
        let limits = limits(&[2, 3, 9], &[9]);
        let sampling = Sampling::new(0.0, &[2, 3], &[9]);
        let mut request = Vec::new();
        let of_one = sampling.of_request(&limits.account(2, 8), None);
        put_request(&mut request, "1f", &[7, 300], &of_one);
        let expected = [
            &b"\x99\xa21f\x92\x07\xcd\x01\x2c\xc0\x88"[..],
            b"\xabtemperature\xcb\0\0\0\0\0\0\0\0",
            b"\xaamax_tokens\x08\xaamin_tokens\x04\xaadetokenize\xc2",
            b"\xb9skip_reading_prefix_cache\xc3",
            b"\xad_eos_token_id\x02\xaestop_token_ids\x92\x03\x09",
            b"\xb3_all_stop_token_ids\x93\x02\x03\x09",
            b"\xc0\xcb\0\0\0\0\0\0\0\0\xc0\xc0\xc0",
        ];
        assert_eq!(request, expected.concat());
        let options = RequestOptions {
            min_tokens: Some(6),
            temperature: Some(0.5),
            top_p: Some(0.5),
            top_k: Some(7),
            seed: Some(u64::MAX),
            ignore_eos: true,
            stop_ids: vec![5],
            ..RequestOptions::default()
        };
        let account = limits.admit([1].into_iter(), 8, &options, &mut Vec::new());
        let of_one = sampling.of_request(&account.expect("sound"), Some(&options));
        let expected = Sampling {
            temperature: 0.5,
            top_p: Some(0.5),
            top_k: Some(7),
            seed: Some(i64::MAX as u64),
            min_tokens: 6,
            max_tokens: 8,
            eos: None,
            stop_token_ids: vec![9, 5],
            all_stops: vec![9, 5],
            ..of_one.clone()
        };
        assert_eq!(of_one, expected);
    }

    fn limits(ends: &[u32], stops: &[u32]) -> Limits {
        Limits {
            engine: "vllm",
            vocab: 100,
            context: 20,
            min_tokens: 4,
            max_tokens: 8,
            ends: ends.to_vec(),
            stops: stops.to_vec(),
            are_all_ends: true,
            counts_answers: false,
        }
    }

    proptest! {
        #[test]
        fn no_bytes_cause_a_panic(mut message in prop::collection::vec(any::<u8>(), 0..100)) {
            let _ = read_step(&message);
            message.splice(..0, [0x92, 0, 0x91, 0x9d, 0xa1, b'a']);
            let _ = read_step(&message);
        }
    }
}
