//! LoadGen's `LogSettings`, and the paths of its log files.

use std::ffi::{CStr, CString};
use std::fs::{self, OpenOptions};
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::error::LoadgenError;
use crate::raw::{self, RawLogSettings};

/// Every field of LoadGen's `LogSettings` and `LogOutputSettings` that LoadGen implements.
/// [`Default`] reads LoadGen's values.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LogSettings {
    /// The folder of the logs. [`run_test`](crate::run_test) creates a missing folder.
    pub outdir: PathBuf,
    /// Prefix of the files' names.
    pub prefix: String,
    /// Suffix of the files' names, before the extension.
    pub suffix: String,
    /// Whether the test's time follows the prefix.
    pub prefix_with_datetime: bool,
    /// Whether LoadGen copies the detailed log to stdout.
    pub copy_detail_to_stdout: bool,
    /// Whether LoadGen copies the summary to stdout.
    pub copy_summary_to_stdout: bool,
    /// Whether LoadGen traces every query: LoadGen's default, which costs more than half of the
    /// maximum rate.
    pub enable_trace: bool,
}

impl Default for LogSettings {
    fn default() -> Self {
        let mut raw = MaybeUninit::<RawLogSettings>::zeroed();
        // SAFETY: the pointer is to a whole RawLogSettings.
        unsafe { raw::lg_default_log_settings(raw.as_mut_ptr()) };
        // SAFETY: all zeros are a valid value, and the shim wrote every field.
        let raw = unsafe { raw.assume_init() };
        let text = |pointer| {
            // SAFETY: the shim's defaults are C strings that live as long as the program.
            unsafe { CStr::from_ptr(pointer) }
                .to_string_lossy()
                .into_owned()
        };
        Self {
            outdir: PathBuf::from(text(raw.outdir)),
            prefix: text(raw.prefix),
            suffix: text(raw.suffix),
            prefix_with_datetime: raw.prefix_with_datetime,
            copy_detail_to_stdout: raw.copy_detail_to_stdout,
            copy_summary_to_stdout: raw.copy_summary_to_stdout,
            enable_trace: raw.enable_trace,
        }
    }
}

/// Paths of a run's log files.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LogFiles {
    /// The summary, for people.
    pub summary: PathBuf,
    /// The detailed log, for the submission checker.
    pub detail: PathBuf,
    /// The accuracy log: the responses.
    pub accuracy: PathBuf,
    /// The trace; empty unless `enable_trace`.
    pub trace: PathBuf,
}

/// The settings in the shim's form, with the strings that `raw` points to.
pub(crate) struct CLogSettings {
    _strings: [CString; 3],
    pub raw: RawLogSettings,
}

// SAFETY: the pointers are into the CStrings in `_strings`, whose heap buffers stay in place when
// the struct moves, and which never change.
unsafe impl Send for CLogSettings {}

impl LogSettings {
    /// Paths of a run's log files; with `prefix_with_datetime`, of the newest existing run.
    pub fn files(&self) -> LogFiles {
        let mut stem = self.prefix.clone();
        if self.prefix_with_datetime
            && let Some(stamp) = self.newest_stamp()
        {
            stem.push_str(&stamp);
        }
        let path = |kind: &str, extension: &str| {
            self.outdir
                .join(format!("{stem}{kind}{}.{extension}", self.suffix))
        };
        LogFiles {
            summary: path("summary", "txt"),
            detail: path("detail", "txt"),
            accuracy: path("accuracy", "json"),
            trace: path("trace", "json"),
        }
    }

    /// The newest time in a summary's file name: the text between prefix and `_summary`, with `_`.
    fn newest_stamp(&self) -> Option<String> {
        let ending = format!("_summary{}.txt", self.suffix);
        let names = fs::read_dir(&self.outdir).ok()?;
        let stamps = names.filter_map(|entry| {
            let name = entry.ok()?.file_name().into_string().ok()?;
            let stamp = name.strip_prefix(&self.prefix)?.strip_suffix(&ending)?;
            Some(format!("{stamp}_"))
        });
        // ISO 8601 text sorts by time.
        stamps.max()
    }

    /// Creates the folder and checks that the log files can be written. LoadGen without writable
    /// logs prints to stderr, runs nothing, and reports no error.
    pub(crate) fn prepare(&self) -> Result<(), LoadgenError> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |error| LoadgenError::LogFile { path, error }
        };
        fs::create_dir_all(&self.outdir).map_err(failed(&self.outdir))?;
        if self.prefix_with_datetime {
            let probe = self
                .outdir
                .join(format!("{}probe{}.txt", self.prefix, self.suffix));
            fs::write(&probe, "").map_err(failed(&probe))?;
            return fs::remove_file(&probe).map_err(failed(&probe));
        }
        let files = self.files();
        for path in [&files.summary, &files.detail, &files.accuracy, &files.trace] {
            // LoadGen truncates the files too.
            let open = OpenOptions::new()
                .write(true)
                .create(true)
                .truncate(true)
                .open(path);
            open.map_err(failed(path))?;
        }
        Ok(())
    }

    pub(crate) fn to_c(&self) -> Result<CLogSettings, LoadgenError> {
        let nul = |field| move |_| LoadgenError::Nul { field };
        let outdir = CString::new(self.outdir.as_os_str().as_bytes()).map_err(nul("outdir"))?;
        let prefix = CString::new(self.prefix.as_str()).map_err(nul("prefix"))?;
        let suffix = CString::new(self.suffix.as_str()).map_err(nul("suffix"))?;
        let raw = RawLogSettings {
            outdir: outdir.as_ptr(),
            prefix: prefix.as_ptr(),
            suffix: suffix.as_ptr(),
            prefix_with_datetime: self.prefix_with_datetime,
            copy_detail_to_stdout: self.copy_detail_to_stdout,
            copy_summary_to_stdout: self.copy_summary_to_stdout,
            enable_trace: self.enable_trace,
        };
        Ok(CLogSettings {
            _strings: [outdir, prefix, suffix],
            raw,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_loadgens() {
        let settings = LogSettings::default();
        assert_eq!(settings.outdir, Path::new("."));
        assert_eq!(
            (settings.prefix.as_str(), settings.suffix.as_str()),
            ("mlperf_log_", "")
        );
        assert!(settings.enable_trace && !settings.prefix_with_datetime);
    }

    #[test]
    fn the_newest_stamp_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let settings = LogSettings {
            outdir: folder.path().to_owned(),
            prefix_with_datetime: true,
            ..LogSettings::default()
        };
        for stamp in ["2026-07-24T17:37:00Z", "2026-11-21T08:34:12Z"] {
            fs::write(
                folder
                    .path()
                    .join(format!("mlperf_log_{stamp}_summary.txt")),
                "",
            )
            .unwrap();
        }
        assert!(
            settings
                .files()
                .detail
                .ends_with("mlperf_log_2026-11-21T08:34:12Z_detail.txt")
        );
    }

    #[test]
    fn a_folder_that_cannot_be_made_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, "").unwrap();
        let settings = LogSettings {
            outdir: file.join("logs"),
            ..LogSettings::default()
        };
        let error = settings.prepare().unwrap_err().to_string();
        assert!(error.contains("file/logs"), "{error}");
    }
}
