//! `qdl init`: writes both configurations for a user's model, from the model file and the data.
//!
//! * `addresses` - addresses of accelerators, and this machine's address towards them
//! * `llm` - a language model's folder, and the version of vLLM on this machine
//! * `yaml` - the text of the files
//! * `files` - paths in the files, and writing all or none
//!
//! `init` uses the code of a run: the engine reads the model's tensors, and `--check` verifies the
//! data with the written files. So `init` cannot disagree with a run, and leaves no files behind
//! that would not run.

mod addresses;
mod files;
mod llm;
mod yaml;

use std::{
    fs,
    io::Write,
    path::{Path, PathBuf},
};

use anyhow::{Context, bail};
use clap::Parser;
use disk::FolderLock;
use engines::{
    EngineKind, EngineParams,
    config::{load_accelerator, parse_accelerator},
};
use fabric::os::available_memory;
use frontend_config::FrontendFile;
use qdl::{
    model::{DType, ModelSpec, TensorSpec},
    topology::allowed_name,
};
use record::NodeRole;

use frontend::{Dataset, ExitCode, cli, names_the_class, run};

use addresses::InitAddresses;
use files::{Staged, shown};
use llm::LanguageModel;
use yaml::InitValues;

const FRONTEND: &str = "frontend.yaml";
/// Name of the file with the shared secret, for accelerators on other machines.
const TOKEN: &str = "token";

type Result<T> = std::result::Result<T, anyhow::Error>;

/// Writes configurations for your own model, frontend.yaml and accelerator.yaml, ready to run.
///
/// `init` reads inputs and outputs from the model file and checks the samples. If something does
/// not fit, `init` names it and writes no file. docs/own-model.md explains every step.
#[derive(Clone, Debug, Parser)]
pub struct InitArgs {
    /// Model file in ONNX format; the first dimension of every input and output is the batch
    #[arg(long, value_name = "FILE", required_unless_present = "llm")]
    pub model: Option<PathBuf>,

    /// Samples: a file of raw samples, one after the other, or a NumPy array; with --llm a file of
    /// tokens [default with --llm: random ids]
    #[arg(long, value_name = "FILE", required_unless_present = "llm")]
    pub samples: Option<PathBuf>,

    /// Folder of a language model, with config.json. The accelerator uses the engine `vllm` if a
    /// version that it knows is installed here, else `http` (docs/llm-servers.md)
    #[arg(long, value_name = "DIR", conflicts_with_all = ["model", "labels", "class", "library"])]
    pub llm: Option<PathBuf>,

    /// Class of each sample, for accuracy runs: a file of raw i64 values, or a NumPy array
    #[arg(long, value_name = "FILE")]
    pub labels: Option<PathBuf>,

    /// Element type of --labels if the file is neither raw i64 nor a NumPy array, for example i32
    #[arg(long, value_name = "TYPE", requires = "labels", value_parser = dtype)]
    pub labels_dtype: Option<DType>,

    /// Output that holds the class, or a score for each class, if the model has several outputs
    /// [default: the first]
    #[arg(long, value_name = "OUTPUT")]
    pub class: Option<String>,

    /// Address where an accelerator will listen; repeatable. For an address on another machine,
    /// `init` also writes a token that both nodes require [default: 127.0.0.1:7400]
    #[arg(long = "accelerator", value_name = "HOST:PORT")]
    pub accelerators: Vec<String>,

    /// Address of an accelerator that computes prompts, in place of --accelerator; repeatable. The
    /// answers come from --decode (docs/roles.md)
    #[arg(long, value_name = "HOST:PORT", requires_all = ["llm", "decode"], conflicts_with = "accelerators")]
    pub prefill: Vec<String>,

    /// Address of an accelerator that computes answers to the prompts of --prefill; repeatable
    #[arg(long, value_name = "HOST:PORT", requires = "prefill")]
    pub decode: Vec<String>,

    /// Write a token that both nodes require, even if all addresses are on loopback
    #[arg(long)]
    pub token: bool,

    /// Name of the model in the configurations and in LoadGen's user.conf [default: the model
    /// file's or folder's name]
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,

    /// ONNX Runtime library [default: $ORT_DYLIB_PATH, else the one that `cargo xtask setup`
    /// fetched]
    #[arg(long, value_name = "FILE")]
    pub library: Option<PathBuf>,

    /// Folder for the configurations [default: the working directory]
    #[arg(
        short,
        long,
        value_name = "DIR",
        default_value = ".",
        hide_default_value = true
    )]
    pub output: PathBuf,

    /// Overwrite existing files
    #[arg(long)]
    pub force: bool,
}

/// Runs the command; `quiet` suppresses all output but errors.
pub fn command(args: &InitArgs, quiet: bool) -> ExitCode {
    match init(args) {
        Ok(_) if quiet => ExitCode::Good,
        Ok(text) => {
            // Ignore the error: standard output may be closed.
            let _ = std::io::stdout().write_all(text.as_bytes());
            ExitCode::Good
        }
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::Setup
        }
    }
}

/// Writes the files and returns the instructions. A failure leaves no empty folder behind.
fn init(args: &InitArgs) -> Result<String> {
    let output = files::normalised(&args.output);
    let missing: Vec<_> = output.ancestors().take_while(|d| !d.exists()).collect();
    let args = InitArgs {
        output: output.clone(),
        ..args.clone()
    };
    let text = write(&args);
    if text.is_err() {
        for folder in missing {
            // Ignore the error: the folder may hold a file of another program.
            let _ = fs::remove_dir(folder);
        }
    }
    text
}

struct Plan {
    model: ModelSpec,
    frontend: String,
    /// One for each accelerator, in the order of the addresses.
    accelerators: Vec<String>,
    /// Lines behind the model's.
    about: String,
    /// Lines behind the list of files.
    notes: String,
    /// Command of a server that runs before the accelerators; empty without one.
    server: String,
    /// Files that another machine needs beside its configuration.
    copies: String,
    closing: &'static str,
}

fn write(args: &InitArgs) -> Result<String> {
    let samples = args.samples.as_deref();
    if let Some(folder) = samples.filter(|path| args.llm.is_none() && path.is_dir()) {
        let folder = folder.display();
        bail!(
            "--samples {folder}: it is a folder: put its samples into one file, as in `python3 \
             models/own_model.py pack {folder} samples.npy`"
        );
    }
    for (flag, file) in [("--samples", samples), ("--labels", args.labels.as_deref())] {
        if let Some(file) = file {
            fs::metadata(file).with_context(|| format!("{flag} {}", file.display()))?;
        }
    }
    if let Some(name) = &args.name
        && *name != allowed_name(name, "")
    {
        bail!("--name {name:?}: use 1 to 64 of the characters A-Z a-z 0-9 . _ -");
    }
    let roles = [
        (NodeRole::Both, &args.accelerators),
        (NodeRole::Prefill, &args.prefill),
        (NodeRole::Decode, &args.decode),
    ];
    let mut addresses = InitAddresses::of(&roles)?;
    addresses.token = args.token;
    let output = || format!("--output {}", args.output.display());
    let _lock = FolderLock::take(&args.output).with_context(output)?;
    let mut staged = Staged::new(&args.output, args.force);
    staged.may_write(FRONTEND)?;
    for at in &addresses.accelerators {
        staged.may_write(&at.file)?;
    }
    let plan = match (&args.llm, &args.model, samples) {
        (Some(folder), ..) => language_model(args, folder, &addresses)?,
        (_, Some(model), Some(samples)) => own_model(args, model, samples, &addresses)?,
        // Unreachable: clap requires one or the other.
        _ => bail!("--model FILE and --samples FILE, or --llm DIR, say what to write"),
    };
    if addresses.need_token() {
        staged.token(TOKEN)?;
    }
    staged.add(FRONTEND, &plan.frontend)?;
    for (at, text) in addresses.accelerators.iter().zip(&plan.accelerators) {
        staged.add(&at.file, text)?;
    }
    let samples = check(&staged, &addresses)?;
    let written: Vec<_> = staged.keep()?.iter().map(|path| shown(path)).collect();

    let tensors = |all: &mut dyn Iterator<Item = &TensorSpec>| {
        all.map(TensorSpec::to_string)
            .collect::<Vec<_>>()
            .join(", ")
    };
    let mut text = format!(
        "model    {}: {} -> {}\n{}samples  {samples}\nwritten  {}\n{}",
        plan.model.name,
        tensors(&mut plan.model.inputs.iter()),
        tensors(&mut plan.model.outputs()),
        plan.about,
        written.join("\n         "),
        plan.notes,
    );
    text += &next(args, &addresses, &plan);
    Ok(text)
}

fn own_model(
    args: &InitArgs,
    file: &Path,
    samples: &Path,
    addresses: &InitAddresses,
) -> Result<Plan> {
    let name = match &args.name {
        Some(name) => name.clone(),
        None => {
            let stem = file.file_stem().unwrap_or_default();
            allowed_name(&stem.to_string_lossy(), "model")
        }
    };
    let mut params = EngineParams {
        model: name,
        file: Some(file.to_owned()),
        ..EngineParams::new(EngineKind::Onnx)
    };
    params.engine.library.clone_from(&args.library);
    let engine = engines::create(&params)?;
    let values = InitValues {
        model: yaml::with_class_first(engine.model(), args.class.as_deref())?,
        args,
        model_file: file,
        samples,
        loaded: loaded(samples, engine.model().max_input_bytes()),
        slots: yaml::slots(engine.model()),
        // Leave half of the cores to LoadGen and the network.
        fixed_batch: engine.fixed_batch(),
        intra_threads: std::thread::available_parallelism().map_or(1, |n| n.get().div_ceil(2)),
    };
    let accelerator = |at| yaml::accelerator(&values, at, addresses, &args.output);
    let notes = values.fixed_batch.map(|fixed| {
        format!(
            "batch    fixed at {fixed} by the model: export it with a dynamic batch to run more at \
             once\n"
        )
    });
    Ok(Plan {
        frontend: yaml::frontend(&values, addresses, &args.output),
        accelerators: addresses.accelerators.iter().map(accelerator).collect(),
        about: class(engine.model(), args.class.as_deref()) + &left_out(engine.left_out()),
        notes: notes.unwrap_or_default(),
        server: String::new(),
        copies: copies(file, &engines::onnx_data_files(file)),
        closing: "It runs one sample after the other. Offline and Server want a rate, which \
                  docs/own-model.md finds.\n",
        model: values.model,
    })
}

fn language_model(args: &InitArgs, folder: &Path, addresses: &InitAddresses) -> Result<Plan> {
    let whole = std::path::absolute(folder).unwrap_or_else(|_| folder.to_owned());
    let name = whole.file_name().unwrap_or_default().to_string_lossy();
    let name = args
        .name
        .clone()
        .unwrap_or_else(|| allowed_name(&name, "model"));
    let model = LanguageModel::read(folder, &name, args.samples.as_deref())?;
    let (mut about, mut server) = (String::new(), String::new());
    let mut accelerators = Vec::new();
    for at in &addresses.accelerators {
        let text = yaml::llm_accelerator(&whole, &model, at, addresses, &args.output);
        accelerators.push(text);
        let engine = match model.vllm_at(at) {
            Ok(version) => format!("vllm, of vLLM {version}"),
            Err(why) => {
                server = model.server(folder);
                format!("http, as {why}")
            }
        };
        about += &format!("engine   {}: {engine}\n", at.file);
    }
    Ok(Plan {
        frontend: yaml::llm_frontend(args, &model, addresses, &args.output),
        accelerators,
        about,
        notes: String::new(),
        server,
        copies: copies(&whole, &[]),
        closing: "It runs Server at 10 samples/s; `qdl tune` finds the highest VALID rate. \
                  docs/llm-servers.md has more.\n",
        model: model.spec,
    })
}

/// Checks the files: the frontend's with `--check`, the accelerators' as far as possible on this
/// machine. `init` has opened their model already. Returns the number of samples.
fn check(staged: &Staged, addresses: &InitAddresses) -> Result<usize> {
    for at in &addresses.accelerators {
        let path = staged.path(&at.file);
        match at.is_here {
            true => drop(load_accelerator(&path)?),
            // Parse only: the paths in this configuration are for another machine.
            false => {
                let text = fs::read_to_string(&path)?;
                parse_accelerator(&text, &at.file, Path::new(""))?;
            }
        }
    }
    let frontend = staged.path(FRONTEND);
    let words = ["frontend", "--check", "--quiet", "--config"];
    let words = words.iter().map(std::ffi::OsStr::new);
    let args = cli::Args::try_parse_from(words.chain([frontend.as_os_str()]))?;
    run(&args)?;
    let config = FrontendFile::load(&frontend, None)?;
    Ok(Dataset::open(&config.run.dataset, &config.cluster.model)?.count())
}

/// Describes which of several outputs names the class, and the flags for others; empty for one.
fn class(model: &ModelSpec, chosen: Option<&str>) -> String {
    let mut outputs: Vec<_> = model.outputs().collect();
    let at = outputs.iter().position(|o| Some(&*o.name) == chosen);
    let own = outputs.remove(at.unwrap_or(0));
    if outputs.is_empty() {
        return String::new();
    }
    let others: Vec<_> = outputs
        .iter()
        .map(|o| format!("--class {}", o.name))
        .collect();
    let which = match at {
        Some(_) => "as --class says".to_owned(),
        None => {
            let all = outputs.len() + 1;
            format!("the first of {all} outputs; {}", others.join(" or "))
        }
    };
    format!("class    {}, {which}\n", names_the_class(own))
}

/// Names the model's outputs that the configurations leave out.
fn left_out(outputs: &[String]) -> String {
    match outputs {
        [] => String::new(),
        names => format!("left out {}: no tensor\n", names.join(", ")),
    }
}

/// Parses the name of a label type, as in a configuration.
fn dtype(text: &str) -> std::result::Result<DType, String> {
    serde_json::from_value(text.into()).map_err(|_| {
        "it is one of u8, i8, i32, i64, f16, bf16, f32; labels of u32 or u64 are those of i32 or \
         i64"
        .to_owned()
    })
}

/// Number of samples to load at a time, if the whole file needs more than half of the available
/// memory.
fn loaded(samples: &Path, sample: Option<usize>) -> Option<u64> {
    let bytes = fs::metadata(samples).ok()?.len();
    let half = available_memory()? / 2;
    let each = sample.filter(|s| *s > 0)? as u64;
    (bytes > half).then(|| (half / each).max(1))
}

/// Names of the model file and its weight files, which another machine needs.
fn copies(model: &Path, data: &[PathBuf]) -> String {
    let beside = model.parent().unwrap_or(Path::new(""));
    let name = |path: &Path| shown(path.strip_prefix(beside).unwrap_or(path));
    let all = std::iter::once(model).chain(data.iter().map(PathBuf::as_path));
    all.map(name).collect::<Vec<_>>().join(", ")
}

fn next(args: &InitArgs, addresses: &InitAddresses, plan: &Plan) -> String {
    let program = PathBuf::from(std::env::args_os().next().unwrap_or_default());
    let frontend = program.with_file_name("frontend");
    let accelerator = program.with_file_name("accelerator");
    let (frontend, accelerator) = (shown(&frontend), shown(&accelerator));
    let at = |file: &str| shown(&args.output.join(file));
    let mut text = "\nRun these, each accelerator in a terminal of its own:\n\n".to_owned();
    if !plan.server.is_empty() {
        text += &format!("  {}    # on each accelerator's machine\n", plan.server);
    }
    for planned in &addresses.accelerators {
        if planned.is_here {
            text += &format!("  {accelerator} --config {}\n", at(&planned.file));
        } else {
            text += &format!(
                "  accelerator --config {}    # on {}, beside copies of {} and {TOKEN}\n",
                planned.file,
                planned.listen.ip(),
                plan.copies
            );
        }
    }
    text += &format!("  {frontend} --config {} --check\n", at(FRONTEND));
    text += &format!("  {frontend} --config {}\n\n", at(FRONTEND));
    if args.labels.is_some() {
        text += "With `--mode accuracy` the last one compares every answer with its label.\n";
    }
    text + plan.closing
}

#[cfg(test)]
mod tests {
    use qdl::testkit::assert_has;

    use super::*;

    #[test]
    fn which_output_names_the_class_is_said_where_there_are_several() {
        let output = |name: &str, n| TensorSpec {
            name: name.to_owned(),
            dtype: DType::F32,
            shape: vec![n],
            ragged: false,
        };
        let mut model = ModelSpec::opaque("m", 1, 1);
        assert_eq!(class(&model, None), "");
        model.output = output("embedding", 8);
        model.other_outputs = vec![output("scores", 5), output("id", 1)];
        assert_eq!(
            class(&model, None),
            "class    largest of embedding (8 values), the first of 3 outputs; --class scores or \
             --class id\n"
        );
        let chosen = class(&model, Some("scores"));
        assert_eq!(
            chosen,
            "class    largest of scores (5 values), as --class says\n"
        );
    }

    #[test]
    fn a_model_is_copied_with_its_files_of_weights() {
        let data = ["/m/net.onnx.data", "/m/w/1"].map(PathBuf::from);
        let all = copies(Path::new("/m/net.onnx"), &data);
        assert_eq!(all, "net.onnx, net.onnx.data, w/1");
        assert_eq!(copies(Path::new("net.onnx"), &[]), "net.onnx");
    }

    #[test]
    fn a_type_that_labels_cannot_have_is_refused_with_those_they_can() {
        assert_eq!(dtype("i32"), Ok(DType::I32));
        let text = dtype("u32").expect_err("no such type");
        assert_has(&text, &["labels of u32 or u64 are those of i32"]);
    }
}
