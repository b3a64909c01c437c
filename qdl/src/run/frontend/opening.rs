//! The steps that open connections to one accelerator: requesting due connections, and connecting
//! granted connections. The connections' state is in `life`.

use std::{sync::Arc, time::Duration};

use super::cluster_state::ClusterState;
use crate::{
    control::{ClientHandle, ConnectionGrant, ConnectionRequest, ControlError},
    run::error::RunError,
};
use fabric::{Half, Link, OpenError, Which, wire::End};

/// A connection that is due to be opened: its index among all connections, and the request for it,
/// without the parameters of its local half.
pub(crate) type DueConnection = (usize, ConnectionRequest);

pub(crate) enum OpeningResult {
    Requested(Requested),
    /// A grant; its link or error.
    Connected(ConnectionGrant, Result<Link, RunError>),
}

/// Result of a request.
#[derive(Default)]
pub struct Requested {
    /// Connections (number and epoch) whose local half failed, and the error of the last.
    pub failed: Vec<(u16, u32)>,
    pub error: Option<RunError>,
    /// The requested connections, with their local halves.
    pub prepared: Vec<((u16, u32), Box<dyn Half>)>,
    /// The accelerator's answer; `None` where nothing was requested.
    pub answer: Option<Result<Vec<ConnectionGrant>, ControlError>>,
}

/// Makes the local halves of connections, and completes the requests for them.
fn prepare(state: &ClusterState, due: Vec<DueConnection>) -> (Requested, Vec<ConnectionRequest>) {
    let (mut requested, mut requests) = (Requested::default(), Vec::new());
    let dispatcher = state.dispatcher();
    for (connection, mut request) in due {
        let nic_index = dispatcher.connection(connection).nic_index;
        let which = (request.connection, request.epoch);
        let nic = &state.nics[nic_index];
        let number = Which {
            connection: which.0,
            epoch: which.1,
        };
        match nic.prepare(number, dispatcher.endpoint(connection)) {
            Ok(half) => {
                request.transport = End::new(nic.fabric(), half.end());
                requested.prepared.push((which, half));
                requests.push(request);
            }
            Err(e) => {
                // A NIC that is down delays only its own connections.
                requested.error = Some(RunError::of_nic(nic_index)(e));
                requested.failed.push(which);
            }
        }
    }
    (requested, requests)
}

/// Requests these connections. A second thread makes their local halves, because a provider may be
/// slow and this thread must serve the sessions.
pub(crate) async fn request(
    state: Arc<ClusterState>,
    handle: ClientHandle,
    due: Vec<DueConnection>,
) -> OpeningResult {
    let deadline = state.config.deadlines.step();
    let all = due.iter().map(|(_, r)| (r.connection, r.epoch)).collect();
    let blocking = state.blocking;
    let prepared = blocking.run(move || prepare(&state, due)).await;
    let (mut requested, requests) = prepared.unwrap_or_else(|e| {
        let none = Requested {
            failed: all,
            error: Some(RunError::of_control_thread(e)),
            ..Requested::default()
        };
        (none, Vec::new())
    });
    if !requests.is_empty() {
        requested.answer = Some(handle.open(requests).within(deadline).await);
    }
    OpeningResult::Requested(requested)
}

/// Connects a granted connection with the index `connection` among all, to the accelerator `node`.
pub(crate) async fn connect(
    state: Arc<ClusterState>,
    connection: usize,
    grant: ConnectionGrant,
    half: Box<dyn Half>,
    node: String,
) -> OpeningResult {
    let deadline: Duration = state.config.deadlines.step();
    let nic_index = state.dispatcher().connection(connection).nic_index;
    let link = match state.nics[nic_index].end_of(&grant.transport) {
        Ok(end) => half.connect(end.to_owned(), deadline).await,
        Err(other) => Err(OpenError::Refused(format!(
            "granted a `{other}` connection"
        ))),
    };
    let link = link.map_err(|e| RunError::of_nic(nic_index)(format!("{node}: {e}")));
    OpeningResult::Connected(grant, link)
}
