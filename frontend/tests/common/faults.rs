//! Configurations of runs with faults.

use std::path::PathBuf;

use super::TestFolder;

/// Short deadlines: the frontend detects each loss within 2 s, so 200 losses take minutes.
pub const QUICK: &str = "deadlines: {connect_ms: 4000, lost_ms: 2000, echo_interval_ms: 50, \
    echo_timeout_ms: 600, heartbeat_interval_ms: 200, heartbeat_timeout_ms: 1200}\n";

/// Configurations and arguments of both programs.
pub struct Workload {
    /// YAML of an accelerator: model and engine.
    pub there: String,
    /// YAML of the frontend: model, engine, data set, verification.
    pub here: String,
    /// Arguments of a Server run.
    pub server: &'static str,
}

impl Workload {
    /// Writes an accelerator's configuration; `more` is additional YAML.
    pub fn accelerator(
        &self,
        place: &TestFolder,
        node: &str,
        [control, data]: [&str; 2],
        more: &str,
    ) -> PathBuf {
        let yaml = format!(
            "node: {node}\ncontrol: {{listen: \"{control}\"}}\n{more}{}\
             nics: [{{listen: \"{data}\"}}]\n",
            self.there
        );
        place.write(&format!("{node}.yaml"), yaml)
    }

    /// Writes the frontend's configuration; `more` is additional YAML.
    pub fn frontend(&self, place: &TestFolder, controls: &[&str], more: &str) -> PathBuf {
        let accelerators = controls.iter().map(|c| format!("  - control: \"{c}\"\n"));
        let accelerators = accelerators.collect::<String>();
        let yaml = format!(
            "node: front\n{}accelerators:\n{accelerators}{more}",
            self.here
        );
        place.write("frontend.yaml", yaml)
    }
}
