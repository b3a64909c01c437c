//! The versions of vLLM, and the places of an output's fields in each.
//!
//! `cargo xtask servers` runs a version and prints its row. Places: `EngineCoreOutput` in
//! `vllm/v1/engine/__init__.py`.

use record::ServerVersion;

use self::Grade::{Ran, Read};

/// Evidence for a version of vLLM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Grade {
    /// `cargo xtask servers` has run its core.
    Ran,
    /// Only its source has been read.
    Read,
}

/// The places of an output's fields in the messages of one version's core. Places 0 to 8 are the
/// same in all versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CoreVersion {
    /// The version is 0.`minor`.
    pub minor: u32,
    /// Number of fields.
    pub fields: usize,
    /// Place of the prompt's counts. The count of NaNs is two places behind.
    pub counts: usize,
    /// Place of the error.
    pub error: Option<usize>,
    grade: Grade,
}

const fn row(minor: u32, fields: usize, counts: usize, grade: Grade) -> CoreVersion {
    let error = None;
    CoreVersion {
        minor,
        fields,
        counts,
        error,
        grade,
    }
}

/// A row for each minor version, in order.
pub(super) const VERSIONS: [CoreVersion; 10] = [
    row(24, 13, 10, Ran),
    row(25, 13, 10, Read),
    row(26, 14, 11, Read),
    row(27, 14, 11, Read),
    row(28, 16, 11, Ran),
    row(29, 17, 11, Read),
    row(30, 17, 11, Ran),
    row(31, 18, 11, Ran),
    row(32, 18, 11, Ran),
    CoreVersion {
        error: Some(18),
        ..row(33, 19, 11, Read)
    },
];

/// The newest version that has run, as in `pip install vllm==0.32.*`.
pub fn newest_vllm() -> String {
    let ran = VERSIONS.iter().filter(|v| v.grade == Ran).map(|v| v.minor);
    format!("0.{}", ran.max().unwrap_or_default())
}

/// True if a core of this version of vLLM has run: `0.32.0`, and its builds such as `0.32.0+cpu`.
pub fn has_vllm_run(version: &str) -> bool {
    find(version).is_some_and(|v| v.grade == Ran)
}

fn find(version: &str) -> Option<&'static CoreVersion> {
    let minor = version.strip_prefix("0.")?.split(['.', '+', '-']).next()?;
    let minor: u32 = minor.parse().ok()?;
    VERSIONS.iter().find(|v| v.minor == minor)
}

impl CoreVersion {
    /// The row of a core that registers with `version`.
    /// Error text: there is none.
    pub fn of(version: &str) -> Result<&'static CoreVersion, String> {
        let [first, .., last] = VERSIONS;
        find(version).ok_or_else(|| {
            let version = crate::error::shorten(version);
            format!(
                "it is vLLM {version}, and this engine knows 0.{} to 0.{}: `pip install \
                 vllm=={}.*`, or use engine `http`",
                first.minor,
                last.minor,
                newest_vllm()
            )
        })
    }

    /// The version for the record of a run.
    pub fn record(&self) -> ServerVersion {
        ServerVersion {
            version: format!("vLLM 0.{}", self.minor),
            has_run: self.grade == Ran,
        }
    }

    /// The warning for a version whose core has not run.
    pub fn warning(&self) -> Option<String> {
        (self.grade == Read).then(|| {
            format!(
                "vLLM 0.{} has only been read, and a submission needs a version that has run: \
                 `pip install vllm=={}.*`",
                self.minor,
                newest_vllm()
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_found_by_its_minor_number_and_an_unknown_one_is_refused() {
        let minor = |version| CoreVersion::of(version).map(|v| v.minor);
        for (version, found) in [
            ("0.24.0", 24),
            ("0.25.1+cpu", 25),
            ("0.33.0rc1", 33),
            ("0.32", 32),
        ] {
            assert_eq!(minor(version), Ok(found), "{version}");
        }
        for version in ["0.23.0", "0.34.0", "1.24.0", "0.", "", "0.320.0"] {
            let why = minor(version).expect_err(version);
            assert!(why.contains("knows 0.24 to 0.33"), "{why}");
        }
        assert!(has_vllm_run(&format!("{}.0", newest_vllm())));
        assert!(!has_vllm_run("0.33.0") && !has_vllm_run("0.23.0"));
        let warns = |v: &&CoreVersion| v.warning().is_some();
        assert!(VERSIONS.iter().all(|v| warns(&v) != v.record().has_run));
    }
}
