//! An engine with a scripted core, and samples for it.

use std::{fs, path::Path, sync::Arc};

use crate::config::VllmConfig;
use qdl::model::ModelSpec;

use crate::{
    EngineError, EngineKind, EngineParams, llm_server::Vllm, samples, streaming::TOKEN_BYTES,
};

pub(crate) use crate::{processes, samples::Samples};
pub use qdl::testkit::eventually;

/// The scripted core; the tests of the programs use it too.
const CORE: &str = include_str!("core.py");
/// Limit of an answer in tokens.
pub const ROOM: usize = 12;
pub const VOCAB: usize = 100;
pub const EOS: i32 = 2;

pub(crate) type Started = samples::Started<Vllm>;

pub fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let config = format!(r#"{{"vocab_size": {VOCAB}, "eos_token_id": {EOS}}}"#);
    fs::write(folder.path().join("config.json"), config).expect("written");
    fs::write(folder.path().join("core.py"), CORE).expect("written");
    folder
}

pub fn params(folder: &Path, options: &[&str]) -> EngineParams {
    let mut params = EngineParams::new(EngineKind::Vllm);
    params.spec = Some(ModelSpec::of_tokens("m", 300, ROOM));
    let text = |name: &str| folder.join(name).to_str().expect("a path").to_owned();
    let mut args: Vec<String> = options.iter().map(|o| (*o).to_owned()).collect();
    args.extend(["--pids".to_owned(), text("pids")]);
    params.engine.vllm = Some(VllmConfig {
        model: folder.to_owned(),
        command: vec!["python3".to_owned(), text("core.py")],
        args,
        log: folder.join("vllm.log"),
        ready_s: 60,
        stop_s: 2,
        ..VllmConfig::default()
    });
    params
}

pub fn start(
    options: &[&str],
    change: impl FnOnce(&mut VllmConfig),
) -> Result<Started, EngineError> {
    let folder = folder();
    let mut params = params(folder.path(), options);
    change(params.engine.vllm.as_mut().expect("vllm"));
    let vllm = Arc::new(Vllm::open(&params)?);
    let mut started = Started::new(vllm, ROOM * TOKEN_BYTES)?;
    started.folder = Some(folder);
    Ok(started)
}

pub fn folder_of(started: &Started) -> &Path {
    started.folder.as_ref().expect("of the core").path()
}

pub fn log(started: &Started) -> String {
    fs::read_to_string(folder_of(started).join("vllm.log")).unwrap_or_default()
}

/// The answer of the scripted core: `len` tokens, the last of which may be an end of sequence.
pub fn answer(prompt: &[i32], len: usize) -> Vec<i32> {
    let sum: i32 = prompt.iter().sum();
    let tokens = (0..len as i32).map(|i| (sum + 10 * i) % 97 + 3);
    let mut tokens: Vec<i32> = tokens.collect();
    if prompt[0] == 7 {
        tokens.truncate(3);
        tokens[2] = EOS;
    }
    tokens
}

/// Prompts of many lengths, all different. Every seventh answer ends with an end of sequence.
pub fn prompts(n: usize) -> Vec<Vec<i32>> {
    let id = |i: usize, k: usize| match (i % 7, k) {
        (0, 0) => 7,
        (_, 0) => 20,
        _ => ((i * 31 + k * 7) % VOCAB) as i32,
    };
    (0..n)
        .map(|i| (0..2 + i % 40).map(|k| id(i, k)).collect())
        .collect()
}
