//! What the accelerators of a configuration say of themselves, asked without a run.

use std::{sync::Arc, time::Duration};

use super::{ClusterError, facts::node_facts, settings};
use crate::{
    config::FrontendConfig,
    control::{ClientParams, ClientSession, ControlError, ErrorCode},
    wire::Description,
};

/// How long a node may take to describe itself: it asks drivers, and a GPU's may have to be loaded.
pub(super) const DESCRIBING: Duration = Duration::from_secs(20);

/// What a node answered, by its name.
#[derive(Clone, Debug)]
pub struct Described {
    /// Its node name.
    pub node: String,
    /// What it says of itself; else in words why it does not.
    pub description: Result<Description, String>,
}

impl Described {
    pub(super) fn of(node: String, answer: Result<Description, ControlError>) -> Self {
        let description = answer.map_err(|e| e.to_string());
        Described { node, description }
    }
}

/// Opens a session with each accelerator of a configuration, has it describe itself, and takes its
/// leave. No sample memory is asked for.
///
/// # Errors
/// [`ClusterError`] of the first accelerator that cannot be reached, or does not want us: one that
/// serves another frontend is `busy`.
pub fn descriptions(config: &FrontendConfig) -> Result<Vec<Described>, ClusterError> {
    let auth = settings::auth(config.auth())?;
    let facts = Arc::new(node_facts(&config.nics));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let mut asked = Vec::new();
        for accelerator in &config.accelerators {
            let params = ClientParams {
                address: accelerator.control.to_string(),
                node: config.node.clone(),
                auth: auth.clone(),
                model: config.model.clone(),
                stream: config.stream.unwrap_or_default(),
                facts: (*facts).clone(),
                timing: settings::timing(&config.deadlines),
            };
            asked.push(tokio::spawn(one(params)));
        }
        let mut described = Vec::new();
        for one in asked {
            described.push(one.await.map_err(std::io::Error::other)??);
        }
        Ok(described)
    })
}

async fn one(params: ClientParams) -> Result<Described, ControlError> {
    let mut session = ClientSession::connect(params).await?;
    let answer = session.handle.describe().within(DESCRIBING).await;
    match &answer {
        // It may still be at it: it hears why nobody waits.
        Err(ControlError::Timeout { .. }) => {
            let text = "no description came in time";
            session.handle.close(ErrorCode::ShuttingDown, text);
        }
        _ => session.handle.bye(),
    }
    session.events.closed().await;
    Ok(Described::of(session.peer_node, answer))
}
