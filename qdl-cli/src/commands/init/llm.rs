//! `--llm`: a language model's folder, and the version of vLLM on this machine.

use std::{
    io::Read,
    path::Path,
    process::{Command, Stdio},
    sync::mpsc,
    thread,
    time::Duration,
};

use anyhow::{Context, anyhow, bail};
use engines::{ModelFolder, has_vllm_run};
use frontend_config::{DatasetConfig, DatasetKind};
use qdl::{
    model::{DType, ModelSpec, TensorSpec},
    topology::allowed_name,
};

use super::{Result, addresses::PlannedAccelerator, files::shown};
use frontend::Dataset;

/// Maximum tokens of an answer, and of a prompt of random ids.
const ANSWER: usize = 128;
const PROMPT: usize = 512;
/// Limit for `vllm --version`, which loads PyTorch.
const DEADLINE: Duration = Duration::from_secs(60);

pub(super) struct LanguageModel {
    /// Prompt and answer; together they fit the model's context.
    pub spec: ModelSpec,
    pub vocab: usize,
    /// Ids of the end of sequence; empty if the files have none.
    pub eos: Vec<u32>,
    vllm: std::result::Result<String, String>,
}

impl LanguageModel {
    /// Reads the files in `folder` as the engine `vllm` does. The longest prompt is that of
    /// `samples`, a file of tokens, if any.
    pub fn read(folder: &Path, name: &str, samples: Option<&Path>) -> Result<Self> {
        let facts = ModelFolder::read(folder).map_err(|e| anyhow!("--llm: {e}"))?;
        let said = folder.join("config.json");
        let said = said.display();
        let number = |key: &str, n: Option<usize>| {
            n.filter(|n| (1..=i32::MAX as usize).contains(n))
                .with_context(|| format!("{said}: `{key}` is missing, or no number of tokens"))
        };
        let vocab = number("vocab_size", facts.vocab)?;
        let context = number("max_position_embeddings", facts.context)?;
        if let Some(id) = facts.eos.iter().find(|id| **id as usize >= vocab) {
            bail!("{said}: vocab_size is {vocab}, and eos_token_id is {id}: correct one of them");
        }
        let answer = ANSWER.min(context / 4).max(2);
        let prompt = match samples {
            None => PROMPT.min(context.saturating_sub(answer)).max(1),
            Some(file) => longest(file)?,
        };
        if prompt + answer > context {
            bail!(
                "{said}: max_position_embeddings is {context}, too short for a prompt of {prompt} \
                 tokens and an answer of {answer}: shorten the longest prompt"
            );
        }
        let ids = |name: &str, longest| TensorSpec {
            name: name.to_owned(),
            dtype: DType::I32,
            shape: vec![longest],
            ragged: true,
        };
        Ok(LanguageModel {
            spec: ModelSpec {
                inputs: vec![ids("prompt", prompt)],
                output: ids("tokens", answer),
                ..ModelSpec::opaque(name, 1, 1)
            },
            vocab,
            eos: facts.eos,
            vllm: installed(),
        })
    }

    /// The version of vLLM for the engine `vllm` of `at`, or why there is none.
    pub fn vllm_at(&self, at: &PlannedAccelerator) -> std::result::Result<String, String> {
        match at.is_here {
            true => self.vllm.clone(),
            false => Err("`init` cannot look for vLLM on another machine".to_owned()),
        }
    }

    /// The command of a server for the engine `http`.
    pub fn server(&self, folder: &Path) -> String {
        format!(
            "vllm serve {} --served-model-name {} --host 127.0.0.1 --port 8000 --max-model-len {} \
             --no-enable-prefix-caching",
            shown(folder),
            self.spec.name,
            self.context()
        )
    }

    /// Maximum tokens of prompt and answer.
    pub fn context(&self) -> usize {
        self.spec.inputs[0].shape[0] + self.spec.output.shape[0]
    }
}

/// Length of the longest prompt in a file of tokens.
fn longest(file: &Path) -> Result<usize> {
    let config = DatasetConfig {
        kind: DatasetKind::Tokens,
        samples: Some(file.to_owned()),
        ..DatasetConfig::default()
    };
    let data = Dataset::open(&config, &ModelSpec::opaque("prompts", 1, 1))?;
    let bytes = (0..data.count()).filter_map(|i| data.len(i)).max();
    Ok(bytes.unwrap_or(0) as usize / DType::I32.bytes())
}

/// Version of the program `vllm` in `PATH`. Errors with a text if the engine has not run with it.
fn installed() -> std::result::Result<String, String> {
    let mut command = Command::new("vllm");
    command
        .arg("--version")
        .stdin(Stdio::null())
        .stderr(Stdio::null());
    let child = command.stdout(Stdio::piped()).spawn();
    let mut child = child.map_err(|e| format!("`vllm` in PATH did not start ({})", e.kind()))?;
    let (tx, printed) = mpsc::channel();
    if let Some(mut out) = child.stdout.take() {
        // A child of the program may keep the pipe open, so that the thread outlives the deadline.
        thread::spawn(move || {
            let mut text = Vec::new();
            // Ignore the errors: the text then has no version, or nothing receives.
            let _ = (out.read_to_end(&mut text), tx.send(text));
        });
    }
    let printed = printed.recv_timeout(DEADLINE);
    // Ignore the errors: the program has ended, or ends now.
    let _ = (child.kill(), child.wait());
    let printed = printed.map_err(|_| "`vllm --version` did not end within 60 s".to_owned())?;
    let printed = String::from_utf8_lossy(&printed);
    // A build follows `+`, as in `0.24.0+cpu`.
    let version = |word: &str| word.split('+').next().map(|v| allowed_name(v, ""));
    let words: Vec<_> = printed.split_whitespace().filter_map(version).collect();
    let known = words.iter().find(|word| has_vllm_run(word));
    known.cloned().ok_or_else(|| match words.last() {
        Some(word) => format!("it has not run with vLLM {word}"),
        None => "`vllm --version` printed no version".to_owned(),
    })
}
