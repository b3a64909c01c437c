//! The null SUT of `shim/bench_null.cc`, the baseline for the bridge's cost.

use crate::control::CONTROL;
use crate::error::LoadgenError;
use crate::log_settings::LogSettings;
use crate::raw::{self, Said};
use crate::settings::TestSettings;
use crate::summary::TestOutcome;

/// Runs a test on this thread with a SUT and a QSL in C++. The SUT answers each of `samples`
/// samples with `response_bytes` zeroes, on another thread. LoadGen uses one issue thread.
///
/// # Errors
///
/// As for [`run_test`](crate::run_test); this call counts as the process's one run.
pub fn null_sut_cpp(
    settings: &TestSettings,
    log: &LogSettings,
    samples: usize,
    response_bytes: usize,
) -> Result<TestOutcome, LoadgenError> {
    settings.check(samples, samples)?;
    let raw_log = log.to_c()?;
    CONTROL.begin()?;
    log.prepare()?;
    let mut said = Said::new();
    // SAFETY: the structs have the shim's layout and outlive the call; `said` has the given size.
    let threw = unsafe {
        raw::lg_bench_null(
            std::ptr::from_ref(settings).cast(),
            &raw_log.raw,
            samples,
            response_bytes,
            said.pointer(),
            said.size(),
        )
    };
    if threw == 0 {
        TestOutcome::read(log.files())
    } else {
        Err(LoadgenError::Exception(said.text()))
    }
}
