//! The versions of vLLM.

/// Versions of vLLM that the engine `vllm` has run with.
pub const VLLM_VERSIONS: [&str; 1] = ["0.24.0"];

/// Checks the version of a core. `any`: warns of a version that has not run.
/// Error text: the version has not run with this engine.
pub(super) fn check(version: &str, any: bool) -> Result<(), String> {
    // A build for the CPU is 0.24.0+cpu.
    let base = version.split('+').next().unwrap_or_default();
    let known = VLLM_VERSIONS.join(", ");
    match any {
        _ if VLLM_VERSIONS.contains(&base) => {}
        true => tracing::warn!("vLLM {version}: this engine has run with {known}"),
        false => {
            return Err(format!(
                "it is vLLM {version}, and this engine has run with {known}: install one of these \
                 (`pip install vllm=={}`), use engine `http`, or set engine.vllm.any_version: true",
                VLLM_VERSIONS[0]
            ));
        }
    }
    Ok(())
}
