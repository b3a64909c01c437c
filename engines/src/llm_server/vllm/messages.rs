//! The messages between vLLM's engine core and its front end, which is this engine: MessagePack.
//!
//! Source: `vllm/v1/engine/__init__.py`, `core.py` and `utils.py` of vLLM 0.24 to 0.33. The
//! protocol has no version of its own: the registration names the version of vLLM, and
//! [`versions`](super::versions) the places of an output's fields.

use std::{collections::BTreeMap, fmt};

use super::versions::CoreVersion;
use crate::llm_server::{
    account::{Account, Tokens, signed},
    roles::Transfers,
};
use qdl::request::RequestOptions;
use record::NodeRole;
use rmp_serde::{Serializer, from_slice, to_vec_named};
use serde::{
    Deserialize, Deserializer, Serialize,
    de::{self, DeserializeSeed, IgnoredAny, SeqAccess, Visitor},
};
use serde_json::Value;

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
    #[serde(skip_serializing_if = "Option::is_none")]
    extra_args: Option<ExtraArgs>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
struct ExtraArgs {
    kv_transfer_params: Box<Value>,
}

impl Sampling {
    /// Parameters with these ids of the end of sequence, if any, and these stop ids.
    pub fn new(temperature: f64, eos: &[u32], stop: &[u32], role: NodeRole) -> Self {
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
            // vLLM 0.32 takes the KV cache of a prefill node for a prefix cache.
            skip_reading_prefix_cache: role != NodeRole::Decode,
            eos: first.first().copied(),
            stop_token_ids: [others, stop].concat(),
            all_stops: [eos, stop].concat(),
            extra_args: None,
        }
    }

    /// Parameters of one request: the configuration's, where its `options` have none.
    pub fn of_request(&self, account: &Account, options: Option<&RequestOptions>) -> Sampling {
        let mut of_one = self.clone();
        (of_one.min_tokens, of_one.max_tokens) = (account.min, account.max);
        let params = account.transfer.clone();
        of_one.extra_args = params.map(|kv_transfer_params| ExtraArgs { kv_transfer_params });
        let seed = options.and_then(|options| options.seed);
        of_one.seed = seed.or(account.seed).map(signed);
        let Some(options) = options else {
            return of_one;
        };
        of_one.temperature = options.temperature.map_or(self.temperature, f64::from);
        (of_one.top_p, of_one.top_k) = (options.top_p, options.top_k);
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
    /// NaNs in the logits of this output's tokens; 0 unless the core looks for them.
    pub nans: u64,
    /// The core's message on an error, in versions that send it.
    pub error: Option<&'a str>,
    /// `kv_transfer_params`: where a decode core finds the prompt's KV cache; at the end.
    pub handle: Option<Value>,
}

/// Tokens of a prompt, and those of them from a prefix cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub(super) struct PromptCounts {
    pub num_prompt_tokens: u64,
    pub num_cached_tokens: u64,
    /// Those of the cached ones that came from a prefill node.
    #[serde(default)]
    pub num_external_cached_tokens: u64,
}

#[derive(Deserialize)]
struct RequestError<'a> {
    message: &'a str,
}

/// Reads the outputs of a step of a core of `version`.
/// Error text: the message is malformed, or an output has another number of fields.
pub(super) fn read_step<'a>(message: &'a [u8], version: &CoreVersion) -> Result<Step<'a>, String> {
    let mut input = rmp_serde::Deserializer::from_read_ref(message);
    let step = StepOf(version).deserialize(&mut input);
    step.map_err(|e| format!("its output is not understood: {e}"))
}

/// Transfers of KV caches in the statistics of a step. `None` if it has none or they are malformed,
/// as with `--disable-log-stats`.
pub(super) fn read_transfers(message: &[u8]) -> Option<Transfers> {
    let mut input = rmp_serde::Deserializer::from_read_ref(message);
    input.deserialize_seq(StepTransfers).ok()?
}

/// `SchedulerStats`, as far as it is read.
#[derive(Deserialize)]
struct SchedulerStats {
    /// Present if a transfer has ended since the last step.
    #[serde(default)]
    kv_connector_stats: Option<Value>,
}

fn field<'de, T: Deserialize<'de>, A: SeqAccess<'de>>(seq: &mut A) -> Result<T, A::Error> {
    let next = seq.next_element()?;
    next.ok_or_else(too_few)
}

fn too_few<E: de::Error>() -> E {
    E::custom("too few fields")
}

fn skip<'de, A: SeqAccess<'de>>(seq: &mut A, fields: usize) -> Result<(), A::Error> {
    (0..fields).try_for_each(|_| field::<IgnoredAny, A>(seq).map(|_| ()))
}

/// Makes a type that reads an array of a version's messages with its own `read`.
macro_rules! reads_array {
    ($name:ident, $output:ty) => {
        #[derive(Clone, Copy)]
        struct $name<'v>(&'v CoreVersion);

        impl<'de> DeserializeSeed<'de> for $name<'_> {
            type Value = $output;

            fn deserialize<D: Deserializer<'de>>(self, d: D) -> Result<$output, D::Error> {
                d.deserialize_seq(self)
            }
        }

        impl<'de> Visitor<'de> for $name<'_> {
            type Value = $output;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an array")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<$output, A::Error> {
                self.read(&mut seq)
            }
        }
    };
}

reads_array!(StepOf, Step<'de>);
reads_array!(OutputsOf, Vec<Output<'de>>);
reads_array!(OutputOf, Output<'de>);

/// Reads the statistics of a step, whose place all versions share.
struct StepTransfers;

impl<'de> Visitor<'de> for StepTransfers {
    type Value = Option<Transfers>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        // Core, outputs.
        skip(&mut seq, 2)?;
        let stats = seq.next_element::<Option<SchedulerStats>>()?.flatten();
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        let stats = stats.and_then(|stats| stats.kv_connector_stats);
        Ok(stats.as_ref().map(Transfers::of))
    }
}

impl StepOf<'_> {
    fn read<'de, A: SeqAccess<'de>>(self, seq: &mut A) -> Result<Step<'de>, A::Error> {
        let core = field(seq)?;
        let outputs = seq.next_element_seed(OutputsOf(self.0))?;
        let outputs = outputs.ok_or_else(too_few)?;
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Step { core, outputs })
    }
}

impl OutputsOf<'_> {
    fn read<'de, A: SeqAccess<'de>>(self, seq: &mut A) -> Result<Vec<Output<'de>>, A::Error> {
        let mut outputs = Vec::new();
        while let Some(output) = seq.next_element_seed(OutputOf(self.0))? {
            outputs.push(output);
        }
        Ok(outputs)
    }
}

impl OutputOf<'_> {
    fn read<'de, A: SeqAccess<'de>>(self, seq: &mut A) -> Result<Output<'de>, A::Error> {
        let CoreVersion {
            minor,
            fields,
            counts,
            error,
            ..
        } = *self.0;
        if let Some(came) = seq.size_hint().filter(|came| *came != fields) {
            return Err(de::Error::custom(format!(
                "it answers with {came} fields, 0.{minor} has {fields}: install another version \
                 of vLLM, or use engine `http`"
            )));
        }
        let (id, tokens) = (field(seq)?, field(seq)?);
        // Log probabilities of tokens and prompt; pooling.
        skip(seq, 3)?;
        let finish = field(seq)?;
        // Stop id, events.
        skip(seq, 2)?;
        let handle = field(seq)?;
        // To the fields whose places depend on the version.
        skip(seq, counts - 9)?;
        let prompt = field(seq)?;
        // Routed experts.
        skip(seq, 1)?;
        let nans = field(seq)?;
        let (mut words, mut next) = (None, counts + 3);
        if let Some(error) = error {
            skip(seq, error - next)?;
            words = field::<Option<RequestError<'_>>, A>(seq)?;
            next = error + 1;
        }
        skip(seq, fields - next)?;
        Ok(Output {
            id,
            tokens,
            finish,
            prompt,
            nans,
            error: words.map(|error| error.message),
            handle,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

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
                num_external_cached_tokens: 0,
            }),
            ..Output::default()
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
            let step = Step { core: 0, outputs };
            assert_eq!(read_step(&bytes(message), version(24)), Ok(step));
        }
        let error = bytes(ERROR);
        let step = read_step(&error, version(33)).expect("a step");
        let of_it = &step.outputs[0];
        let words = (of_it.finish, of_it.error);
        assert_eq!(words, (Some(finish::ERROR), Some("prompt too long")));
    }

    fn version(minor: u32) -> &'static CoreVersion {
        CoreVersion::of(&format!("0.{minor}.0")).expect("a row")
    }

    /// Recorded by `cargo xtask servers`: a prompt of three ids, and three tokens. vLLM 0.33 has no
    /// build for the CPU.
    #[test]
    fn the_recorded_bytes_of_each_version_are_read_by_its_row() {
        let recorded = include_str!("tests/recorded.txt");
        let mut versions = Vec::new();
        let lines: Vec<&str> = recorded.lines().collect();
        for lines in lines.chunks(3) {
            let word = |i: usize, name: &str| {
                let line: &str = lines[i];
                bytes(line.strip_prefix(name).expect(name).trim())
            };
            let registration: Registration = read(&word(0, "registration")).expect("one");
            let version = CoreVersion::of(&registration.vllm_version).expect("a row");
            assert_eq!(registration.max_model_len, 256);
            let (first, last) = (word(1, "first"), word(2, "last"));
            let [first, last] = [&first, &last].map(|m| read_step(m, version).expect("a step"));
            let prompt = Some(3);
            assert_eq!(first.outputs, [output("1", 960, None, prompt)]);
            let length = Some(finish::LENGTH);
            assert_eq!(last.outputs, [output("1", 500, length, None)]);
            versions.push(version.minor);
        }
        assert_eq!(versions, (24..=32).collect::<Vec<_>>());
    }

    /// An output of `fields` fields, with counts at `counts` and three NaNs.
    fn step_of(fields: usize, counts: usize) -> Vec<u8> {
        let mut output = vec![json!(null); fields];
        (output[0], output[1], output[5]) = (json!("a"), json!([5, 6]), json!(3));
        output[counts] = json!({"num_prompt_tokens": 9, "num_cached_tokens": 4, "n": 1});
        output[counts + 2] = json!(3);
        rmp_serde::to_vec(&(1, [output], (), 1.5)).expect("written")
    }

    /// The shape of NIXL's statistics in vLLM 0.32, alone and under `MultiConnector`.
    #[test]
    fn transfers_of_kv_caches_are_summed_and_malformed_ones_are_none() {
        let nixl = json!({
            "transfer_duration": [0.25, 0.5], "post_duration": [0.1, 0.1],
            "bytes_transferred": [4096, 8192], "num_descriptors": [1, 2],
            "num_failed_transfers": [],
        });
        let sums = Transfers {
            bytes: 12_288,
            us: 750_000,
        };
        let of = |stats: Value| {
            let message = rmp_serde::to_vec(&(0, [(); 0], stats, 1.5, ())).expect("written");
            let step = read_step(&message, version(32)).expect("a step");
            assert!(step.outputs.is_empty());
            read_transfers(&message)
        };
        let stats = |connector: &Value| json!({"n": 1, "kv_connector_stats": connector});
        assert_eq!(of(stats(&nixl)), Some(sums));
        let several = json!({"NixlConnector": {"data": nixl}, "OtherConnector": {"n": 1}});
        assert_eq!(of(stats(&several)), Some(sums));
        let odd = json!({"bytes_transferred": 7, "transfer_duration": ["a", null, -1.0]});
        assert_eq!(of(stats(&odd)), Some(Transfers::default()));
        for none in [stats(&Value::Null), json!({}), json!(null), json!(7)] {
            assert_eq!(of(none), None);
        }
        // Recorded without statistics.
        assert_eq!(read_transfers(&bytes(FIRST)), None);
    }

    #[test]
    fn each_version_has_its_places_and_another_number_of_fields_is_an_error() {
        for version in &super::super::versions::VERSIONS {
            let (fields, counts) = (version.fields, version.counts);
            let message = step_of(fields, counts);
            let step = read_step(&message, version).expect("a step");
            let of_it = &step.outputs[0];
            let found = of_it
                .prompt
                .map(|p| (p.num_prompt_tokens, p.num_cached_tokens));
            assert_eq!((step.core, found, of_it.nans), (1, Some((9, 4)), 3));
            assert_eq!((of_it.finish, of_it.error), (Some(finish::ERROR), None));
            for end in 0..message.len() {
                assert!(read_step(&message[..end], version).is_err(), "{end}");
            }
            let other = step_of(fields + 1, counts);
            let why = read_step(&other, version).expect_err("another version's");
            let minor = version.minor;
            let words = format!(
                "it answers with {} fields, 0.{minor} has {fields}",
                fields + 1
            );
            assert!(why.contains(&words), "{why}");
        }
    }

    #[test]
    fn a_request_has_what_the_front_end_of_vllm_fills_in() {
        let limits = limits(&[2, 3, 9], &[9]);
        let sampling = Sampling::new(0.0, &[2, 3], &[9], NodeRole::Both);
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
            role: NodeRole::Both,
        }
    }

    proptest! {
        #[test]
        fn no_bytes_cause_a_panic(mut message in prop::collection::vec(any::<u8>(), 0..100)) {
            let _ = read_step(&message, version(33));
            message.splice(..0, [0x92, 0, 0x91, 0xdc, 0, 19, 0xa1, b'a']);
            let _ = read_step(&message, version(33));
        }
    }
}
