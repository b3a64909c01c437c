//! Numbers from the environment.

/// Returns the number in an environment variable, or the default.
pub fn number(key: &str, default: u64) -> u64 {
    std::env::var(key)
        .ok()
        .and_then(|v| v.parse().ok())
        .unwrap_or(default)
}
