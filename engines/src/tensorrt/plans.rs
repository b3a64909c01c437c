//! The cache of plans built from ONNX: folder and file names.

use std::{
    env,
    fs::DirBuilder,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
};

use xxhash_rust::xxh3::Xxh3;

use super::Precision;
use crate::EngineError;
use crate::trust;

#[derive(Clone, Debug)]
pub(super) struct PlanKey<'a> {
    pub model: &'a [u8],
    pub version: &'a str,
    pub gpu: &'a str,
    pub capability: (i32, i32),
    pub precision: Precision,
    /// Largest batch of each profile.
    pub profiles: &'a [usize],
    /// Builder optimization level; `None` for TensorRT's default.
    pub level: Option<u8>,
}

impl PlanKey<'_> {
    /// The plan's file name: the main parameters, and a hash of model and all parameters.
    pub fn file_name(&self, onnx: &Path) -> String {
        let stem = onnx.file_stem().unwrap_or_default().to_string_lossy();
        let precision = self.precision.as_str();
        let (major, minor) = self.capability;
        let sizes: Vec<String> = self.profiles.iter().map(usize::to_string).collect();
        let sizes = sizes.join("-");
        let level = self.level.map_or_else(String::new, |l| format!("-o{l}"));
        let said = format!(
            "{precision}-trt{}-sm{major}{minor}-b{sizes}{level}",
            self.version
        );
        let mut hash = Xxh3::new();
        // Hash each part with its length: different lists of parts must not hash alike.
        for part in [self.model, said.as_bytes(), self.gpu.as_bytes()] {
            hash.update(&(part.len() as u64).to_le_bytes());
            hash.update(part);
        }
        format!("{stem}-{said}-{:016x}.plan", hash.digest())
    }
}

/// The folder of plans, created on demand: the environment variable `QDL_PLANS`, else `qdl/plans`
/// in the user's cache folder, else `qdl/plans` in the temporary folder.
pub(super) fn folder() -> Result<PathBuf, EngineError> {
    let set = |name| {
        env::var_os(name)
            .filter(|v| !v.is_empty())
            .map(PathBuf::from)
    };
    let cache = || set("XDG_CACHE_HOME").or(set("HOME").map(|h| h.join(".cache")));
    let named = set("QDL_PLANS").or(cache().map(|base| base.join("qdl/plans")));
    let folder = named
        .clone()
        .unwrap_or_else(|| env::temp_dir().join("qdl/plans"));
    let made = DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(&folder);
    // A plan is code: another user may have made the folder in the temporary one.
    let made = made.map_err(|e| e.to_string()).and_then(|()| match named {
        Some(_) => Ok(()),
        None => trust::check(&folder),
    });
    made.map_err(|e| {
        let reason = format!("plans cannot be kept here: {e}; name another folder in QDL_PLANS");
        EngineError::model(&folder, reason)
    })?;
    Ok(folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_other_use_is_another_plan() {
        let key = PlanKey {
            model: b"model",
            version: "8.6.0",
            gpu: "NVIDIA H200",
            capability: (9, 0),
            precision: Precision::Int8,
            profiles: &[64, 512],
            level: None,
        };
        let name = |k: &PlanKey<'_>| k.file_name(Path::new("/m/resnet50.onnx"));
        let first = name(&key);
        assert!(
            first.starts_with("resnet50-int8-trt8.6.0-sm90-b64-512-"),
            "{first}"
        );
        assert_eq!(first, name(&key.clone()));
        let changes: [fn(&mut PlanKey<'_>); 7] = [
            |k| k.model = b"model ",
            |k| k.version = "8.6.1",
            |k| k.gpu = "NVIDIA H100",
            |k| k.capability = (8, 9),
            |k| k.precision = Precision::Fp16,
            |k| k.level = Some(3),
            |k| k.profiles = &[512],
        ];
        for change in changes {
            let mut other = key.clone();
            change(&mut other);
            assert_ne!(name(&other), first, "{other:?}");
        }
    }
}
