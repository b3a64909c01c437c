//! Descriptions of a configuration's accelerators, requested without a run.

use std::time::Duration;

use crate::{
    config::FrontendConfig,
    control::{ClientSession, ControlError, ErrorCode, LocalNode},
    run::{error::RunError, settings},
    wire::Description,
};

/// Time limit for a node's description: it queries drivers, and may load a GPU's driver.
pub(crate) const DESCRIBING: Duration = Duration::from_secs(20);

/// A node's description.
#[derive(Clone, Debug)]
pub struct Described {
    /// Node name.
    pub node: String,
    /// The description, or the reason why it is missing.
    pub description: Result<Description, String>,
}

impl Described {
    pub(super) fn of(node: String, answer: Result<Description, ControlError>) -> Self {
        let description = answer.map_err(|e| e.to_string());
        Described { node, description }
    }
}

/// Opens a session with each accelerator of a configuration, requests its description, and ends the
/// session. Allocates no sample memory.
///
/// # Errors
/// [`RunError`] of the first accelerator that is unreachable or refuses this node. An
/// accelerator that serves a different frontend refuses with `busy`.
pub fn descriptions(config: &FrontendConfig) -> Result<Vec<Described>, RunError> {
    let local = settings::frontend_node(config)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(RunError::of_control_thread)?;
    runtime.block_on(async {
        let mut asked = Vec::new();
        for accelerator in &config.accelerators {
            let address = accelerator.control.to_string();
            asked.push(tokio::spawn(one(address, local.clone())));
        }
        let mut described = Vec::new();
        for one in asked {
            described.push(one.await.map_err(RunError::of_control_thread)??);
        }
        Ok(described)
    })
}

async fn one(address: String, local: LocalNode) -> Result<Described, ControlError> {
    let mut session = ClientSession::connect(address, local).await?;
    let answer = session.handle.describe().within(DESCRIBING).await;
    match &answer {
        // The node may still work on the description: an error frame says that the caller has left.
        Err(ControlError::Timeout { .. }) => {
            let text = "no description came in time";
            session.handle.close(ErrorCode::ShuttingDown, text);
        }
        _ => session.handle.bye(),
    }
    session.events.closed().await;
    Ok(Described::of(session.peer_node, answer))
}
