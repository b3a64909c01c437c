//! Facts that the pages of `--check` of both programs have.

use fabric::ib::locked_memory_limit;
use qdl::{
    config::Auth,
    model::{ModelSpec, TensorSpec},
};
use view::memory;

/// Names a model with its inputs and outputs.
pub fn tensors(model: &ModelSpec) -> String {
    let list = |tensors: &mut dyn Iterator<Item = &TensorSpec>| {
        let all: Vec<_> = tensors.map(TensorSpec::to_string).collect();
        all.join(", ")
    };
    let (inputs, outputs) = (list(&mut model.inputs.iter()), list(&mut model.outputs()));
    format!("{}: {inputs} -> {outputs}", model.name)
}

/// Names the source of the session token.
pub fn token(auth: Auth<'_>) -> String {
    match auth {
        Auth::LoopbackOnly => "none, on loopback alone".to_owned(),
        Auth::None => "none: `auth: none`".to_owned(),
        Auth::Token(path) => path.display().to_string(),
    }
}

/// Compares `bytes` of locked memory, of `what`, with the limit of this user.
pub fn locked(bytes: u64, what: &str) -> String {
    let limit = match locked_memory_limit() {
        Some(limit) if limit < bytes => {
            format!("WARNING: the limit is {}: raise `ulimit -l`", memory(limit))
        }
        Some(limit) => format!("the limit is {}", memory(limit)),
        None => "there is no limit for this user".to_owned(),
    };
    format!("{} of {what}; {limit}", memory(bytes))
}
