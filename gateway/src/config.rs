//! A gateway's file: the keys of a frontend's network, and the section `gateway`.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
};

use fabric::{keys::Auto, wire::Stream};
use garde::Validate;
use qdl::{
    config::{self, ConfigError, Findings, FrontendConfig, SectionKeys, resolve},
    model::{DType, TensorSpec},
};
use serde::{Deserialize, Serialize};

/// A gateway's file.
#[derive(Clone, Debug)]
pub struct GatewayFile {
    /// The accelerators, and the NICs on the way to them.
    pub cluster: FrontendConfig,
    /// The section `gateway`.
    pub gateway: GatewayConfig,
}

/// The keys of a gateway's file beyond those of its network.
#[derive(Clone, Debug, Default, Serialize, Deserialize, Validate)]
pub struct GatewayKeys {
    /// The section `gateway`.
    #[serde(default)]
    #[garde(dive)]
    gateway: GatewayConfig,
}

with_defaults! {
/// The section `gateway`.
#[derive(Clone, Debug, Serialize, Deserialize, Validate)]
#[serde(default, deny_unknown_fields)]
#[garde(allow_unvalidated)]
pub struct GatewayConfig {
    /// Address of the HTTP server.
    pub listen: SocketAddr = SocketAddr::from(([127, 0, 0, 1], 8000)),
    /// Folder of the model with `tokenizer.json`. Without this key, the gateway takes and gives
    /// token ids alone.
    pub model_dir: Option<PathBuf>,
    /// File of the token that each request brings as `Authorization: Bearer TOKEN`.
    pub token_file: Option<PathBuf>,
    /// `true`: requests from other machines need no token.
    pub open: bool,
    /// Threads that serve connections; `auto`: half of the cores, at most 8.
    pub threads: Auto<usize>,
    /// Maximum number of connections. A further one waits in the kernel's queue.
    #[garde(range(min = 1, max = 1_000_000))]
    pub connections: usize = 50_000,
    /// Maximum number of requests without an answer; a further one gets status 429.
    #[garde(range(min = 1, max = 1_000_000))]
    pub requests: usize = 65_536,
    /// Longest body of a request in MiB.
    #[garde(range(min = 1, max = 1024))]
    pub body_mib: usize = 16,
    /// Memory of the prompts that are in flight, in MiB, registered with the NICs.
    #[garde(range(min = 1, max = 1 << 20))]
    pub prompt_mib: usize = 1024,
    /// Seconds after which a client that reads nothing of a waiting answer is cut off.
    #[garde(range(min = 1, max = 86_400))]
    pub stall_s: u64 = 120,
    /// Seconds that requests in flight have at the gateway's end.
    #[garde(range(min = 0, max = 86_400))]
    pub drain_s: u64 = 60,
}
}

/// Limits of the model, in token ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenSizes {
    /// Longest prompt.
    pub prompt: usize,
    /// Longest answer.
    pub answer: usize,
}

impl SectionKeys<FrontendConfig> for GatewayKeys {
    fn resolve(&mut self, base: &Path) {
        let GatewayConfig {
            model_dir,
            token_file,
            ..
        } = &mut self.gateway;
        let paths = model_dir.iter_mut().chain(token_file);
        paths.for_each(|path| resolve(base, path));
    }

    fn files(&self) -> Vec<(&'static str, Option<&Path>)> {
        let token = self.gateway.token_file.as_deref();
        vec![("gateway.token_file", token)]
    }

    fn check(&self, config: &FrontendConfig, out: &mut Findings<'_>) {
        let gateway = &self.gateway;
        if gateway.open && gateway.token_file.is_some() {
            out.add(
                "gateway.open",
                "`open: true` and `token_file` contradict each other",
                "remove one of the two",
            );
        }
        let loopback = gateway.listen.ip().to_canonical().is_loopback();
        if !loopback && gateway.token_file.is_none() && !gateway.open {
            out.add(
                "gateway.listen",
                format!(
                    "{} can be reached by other machines, and there is no token",
                    gateway.listen
                ),
                "add `token_file: PATH` (`qdl token -o FILE` makes one), or `open: true` if the \
                 network is trusted",
            );
        }
        if sizes(config).is_none() {
            out.add(
                "model",
                "a gateway is for a language model: one ragged input and output of `i32`",
                "write `inputs: [{name: prompt, dtype: i32, shape: [LONGEST], ragged: true}]`, and \
                 `output` likewise",
            );
        }
        if matches!(config.stream, Some(Stream::First | Stream::None)) {
            out.add(
                "stream",
                "a gateway gives each token to its client",
                "remove `stream`, or write `stream: all`",
            );
        }
    }
}

/// Returns the longest prompt and answer; `None` if the model is not one of token ids.
fn sizes(config: &FrontendConfig) -> Option<TokenSizes> {
    let ids = |t: &TensorSpec| match t.shape[..] {
        [most] if t.dtype == DType::I32 && t.ragged => Some(most),
        _ => None,
    };
    let [input] = &config.model.inputs[..] else {
        return None;
    };
    Some(TokenSizes {
        prompt: ids(input)?,
        answer: ids(&config.model.output)?,
    })
}

impl GatewayFile {
    /// Reads and checks a file.
    ///
    /// # Errors
    /// [`ConfigError`] names file, line and column.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        let (mut cluster, keys): (FrontendConfig, GatewayKeys) = config::load(path, None)?;
        cluster.stream = Some(Stream::All);
        Ok(GatewayFile {
            cluster,
            gateway: keys.gateway,
        })
    }

    /// Limits of the model, in token ids.
    pub fn sizes(&self) -> TokenSizes {
        // `check` has found both.
        let none = TokenSizes {
            prompt: 0,
            answer: 0,
        };
        sizes(&self.cluster).unwrap_or(none)
    }
}

impl GatewayConfig {
    /// Number of threads that serve connections.
    pub fn threads(&self) -> usize {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let threads = self.threads.fixed().unwrap_or((cores / 2).min(8));
        threads.clamp(1, crate::inbox::MAX_THREADS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(model: &str, gateway: &str) -> Result<(FrontendConfig, GatewayKeys), ConfigError> {
        let text = format!(
            "node: g\nmodel: {{name: m, {model}}}\naccelerators: [{{control: 127.0.0.1:7400}}]\n\
             nics: [{{address: 127.0.0.1}}]\ngateway: {gateway}\n"
        );
        config::parse(&text, "g.yaml", Path::new("/"))
    }

    const MODEL: &str = "inputs: [{name: p, dtype: i32, shape: [64], ragged: true}], \
                         output: {name: t, dtype: i32, shape: [32], ragged: true}";

    #[test]
    fn a_gateway_that_other_machines_reach_has_a_token_or_is_open() {
        let (config, keys) = parsed(MODEL, "{listen: '0.0.0.0:80', open: true}").expect("open");
        let sizes = sizes(&config).expect("token ids");
        assert_eq!((sizes.prompt, sizes.answer), (64, 32));
        assert_eq!(keys.gateway.listen.port(), 80);
        parsed(MODEL, "{}").expect("loopback");
        parsed(MODEL, "{listen: '0.0.0.0:80', token_file: t}").expect("a token");
        for (gateway, words) in [
            ("{listen: '0.0.0.0:80'}", "there is no token"),
            ("{open: true, token_file: t}", "contradict"),
            ("{requests: 0}", "requests lower than 1"),
            ("{unknown: 1}", "unknown"),
        ] {
            let error = parsed(MODEL, gateway).expect_err(words).to_string();
            assert!(error.contains(words), "{error}");
        }
    }

    #[test]
    fn the_gateway_of_the_demo_agrees_with_its_accelerator() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../configs/llm");
        let read = |name: &str| std::fs::read_to_string(folder.join(name)).expect("a file");
        let (config, keys): (FrontendConfig, GatewayKeys) =
            config::parse(&read("gateway.yaml"), "gateway.yaml", &folder).expect("sound");
        let accelerator =
            config::parse_accelerator(&read("accelerator.yaml"), "", &folder).expect("sound");
        let spec = accelerator.model.spec().expect("shapes in the file");
        config.model.check_against(&spec).expect("the same model");
        let control = accelerator.control.listen.to_string();
        assert_eq!(config.accelerators[0].control, control);
        let tokenizer = keys.gateway.model_dir.expect("a tokenizer");
        assert!(tokenizer.ends_with(".deps/models/smollm2"), "{tokenizer:?}");
    }

    #[test]
    fn a_model_of_images_is_refused() {
        let model = "inputs: [{name: p, dtype: u8, shape: [64]}], \
                     output: {name: t, dtype: i32, shape: [32], ragged: true}";
        let error = parsed(model, "{}").expect_err("no tokens").to_string();
        assert!(
            error.contains("a gateway is for a language model"),
            "{error}"
        );
    }
}
