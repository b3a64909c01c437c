//! Reads a `.pt2` archive: its metadata, and its files on disk while the engine lives.

use std::{
    collections::HashMap,
    fs::File,
    io::{self, Read},
    path::{Path, PathBuf},
};

use disk::Temporary;
use qdl::model::{ModelSpec, TensorSpec};
use serde::Deserialize;
use zip::ZipArchive;

use crate::{EngineError, EngineParams, cuda::Device, open_model};

/// Folder of compiled models, inside the archive's top folder.
const MODELS: &str = "data/aotinductor/";
/// Size limit of the metadata, in bytes.
const MOST_METADATA: u64 = 1 << 20;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum CompiledFor {
    Cpu,
    Cuda {
        /// The compute capability in the package's metadata, such as `90`.
        capability: Option<String>,
    },
}

/// Value of the metadata key `qdl.model`.
#[derive(Debug, Deserialize)]
struct ModelDescription {
    inputs: Vec<TensorSpec>,
    output: TensorSpec,
}

#[derive(Debug)]
pub(super) struct Package {
    path: PathBuf,
    library: String,
    pub target: CompiledFor,
    described: Option<ModelDescription>,
}

/// The model's files on disk, deleted on drop. A running model loads kernels from these files.
#[derive(Debug)]
pub(super) struct Files {
    pub package: PathBuf,
    pub folder: Temporary,
    pub library: PathBuf,
}

impl Package {
    /// Reads the archive's directory and the model's metadata.
    pub fn read(path: &Path) -> Result<Self, EngineError> {
        let refuse = |reason: String| EngineError::model(path, reason);
        let mut archive = open(path)?;
        let of_a_model = |n: &str| {
            let at = n.find(MODELS)?;
            let (folder, _) = n.rsplit_once('/')?;
            (folder.len() > at + MODELS.len() - 1).then(|| folder.to_owned())
        };
        let names: Vec<String> = archive.file_names().map(str::to_owned).collect();
        let libraries: Vec<&String> = names
            .iter()
            .filter(|n| n.ends_with(".so") && of_a_model(n).is_some())
            .collect();
        let library = match libraries[..] {
            [one] => one.clone(),
            [] => {
                return Err(refuse(
                    "holds no compiled model: models/export_aoti.py writes packages that do"
                        .to_owned(),
                ));
            }
            _ => {
                return Err(refuse(format!(
                    "holds {} compiled models, and one is wanted",
                    libraries.len()
                )));
            }
        };
        let folder = of_a_model(&library).unwrap_or_default();
        let mut metadata = HashMap::new();
        let in_folder = |n: &&String| {
            n.strip_prefix(&*folder)
                .is_some_and(|n| n.ends_with("_metadata.json"))
        };
        for name in names.iter().filter(in_folder) {
            let mut text = String::new();
            let read = archive
                .by_name(name)
                .map_err(io::Error::from)
                .and_then(|f| f.take(MOST_METADATA).read_to_string(&mut text));
            read.map_err(|e| refuse(format!("{name} cannot be read: {e}")))?;
            let more: HashMap<String, serde_json::Value> = serde_json::from_str(&text)
                .map_err(|e| refuse(format!("{name} is no metadata: {e}")))?;
            metadata.extend(more);
        }
        let text = |key: &str| metadata.get(key).and_then(|v| v.as_str());
        let target = match text("AOTI_DEVICE_KEY") {
            Some("cpu") => CompiledFor::Cpu,
            Some("cuda") => CompiledFor::Cuda {
                capability: text("AOTI_COMPUTE_CAPABILITY").map(str::to_owned),
            },
            other => {
                return Err(refuse(format!(
                    "was compiled for {}, and this engine runs on `cuda` and `cpu`",
                    other.map_or("no device that it names".to_owned(), |d| format!("`{d}`"))
                )));
            }
        };
        let described = text("qdl.model")
            .map(serde_json::from_str)
            .transpose()
            .map_err(|e| {
                refuse(format!(
                    "its description of the model is not understood: {e}"
                ))
            })?;
        Ok(Package {
            path: path.to_owned(),
            library,
            target,
            described,
        })
    }

    /// Inputs and outputs of the model, from the package or else from the configuration.
    /// Error: neither package nor configuration describes the model, or several outputs are
    /// configured.
    pub fn model(&self, params: &EngineParams) -> Result<ModelSpec, EngineError> {
        match (&self.described, &params.spec) {
            (Some(d), _) => Ok(ModelSpec {
                name: params.model.clone(),
                inputs: d.inputs.clone(),
                output: d.output.clone(),
                other_outputs: Vec::new(),
            }),
            (None, Some(spec)) if !spec.other_outputs.is_empty() => Err(EngineError::param(
                "kind",
                "engine aoti gives one output, and the configuration has `other_outputs`: \
                         let the exported module return that one alone, or use `kind: onnx`",
            )),
            (None, Some(spec)) => Ok(spec.clone()),
            (None, None) => Err(EngineError::model(
                &self.path,
                "does not say what the model takes and gives: give `inputs` and `output` in the \
                 configuration, or export it with models/export_aoti.py",
            )),
        }
    }

    /// Checks that the GPU has the package's compute capability: kernels run on no other.
    pub fn check_capability(&self, ours: Option<&str>, gpu: &Device) -> Result<(), EngineError> {
        let (major, minor) = gpu.capability;
        let theirs = format!("{major}{minor}");
        match ours {
            Some(ours) if !ours.is_empty() && ours != theirs => {
                let reason = format!(
                    "was compiled for compute capability {ours}, and GPU {} ({}) has {theirs}: \
                     export it on such a GPU",
                    gpu.index, gpu.name
                );
                Err(EngineError::model(&self.path, reason))
            }
            _ => Ok(()),
        }
    }

    /// Writes the model's files to a folder that only this user can read.
    pub fn extract(&self) -> Result<Files, EngineError> {
        let failed = |what: &Path, e: io::Error| {
            let reason = format!("cannot be unpacked to {}: {e}", what.display());
            EngineError::model(&self.path, reason)
        };
        let folder = Temporary::folder().map_err(|e| failed(&std::env::temp_dir(), e))?;
        let files = Files {
            package: self.path.clone(),
            library: folder.join(&self.library),
            folder,
        };
        let to = &*files.folder;
        let unpacked = open(&self.path)?.extract(to);
        unpacked.map_err(|e| failed(to, e.into()))?;
        Ok(files)
    }
}

fn open(path: &Path) -> Result<ZipArchive<io::BufReader<File>>, EngineError> {
    let file = open_model(path, "a zip archive")?;
    ZipArchive::new(io::BufReader::new(file)).map_err(|e| {
        let reason = format!("is no package of PyTorch's ({e}): models/export_aoti.py writes them");
        EngineError::model(path, reason)
    })
}
