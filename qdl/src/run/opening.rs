//! Opening the connections to one accelerator: requests the due ones, connects the granted ones,
//! and records the results in their [`Dialled`] states.

use std::{collections::HashMap, time::Duration};

use tokio::task::spawn_blocking;

use super::{
    api::ClusterError,
    common::Common,
    health::ConnectionEnd,
    life::dialled::{Answer, Dialled},
    peer::{PeerConnection, PeerTask},
    transport::Prepared,
};
use crate::control::{
    ClientHandle, ClientSession, ConnectionGrant, ConnectionRequest, ControlError,
};
use fabric::Link;

/// Interval of checks whether the session has ended while its connections are opened.
const SESSION_LOOK: Duration = Duration::from_millis(50);

/// Result of a task.
pub(super) enum Done {
    /// Result of a request: connections (number and epoch) whose local half failed, the last of
    /// those errors, the requested connections, their local halves, and the answer.
    Answered {
        refused: Vec<(u16, u32)>,
        failed: Option<ClusterError>,
        asked: Vec<(u16, u32)>,
        prepared: HashMap<u16, Prepared>,
        answer: Result<Vec<ConnectionGrant>, ControlError>,
    },
    /// A grant and the result of connecting to it.
    Connected(ConnectionGrant, Result<Link, ClusterError>),
}

/// A connection that is due to be opened.
struct Due {
    number: u16,
    epoch: u32,
    connection: usize,
    nic_index: usize,
    turn: u16,
    gpu_turn: u16,
}

/// Local halves of connections.
#[derive(Default)]
struct Halves {
    requests: Vec<ConnectionRequest>,
    prepared: HashMap<u16, Prepared>,
    refused: Vec<(u16, u32)>,
    /// The last error of those that failed.
    failed: Option<ClusterError>,
}

impl Halves {
    fn make(common: &Common, due: &[Due]) -> Self {
        let mut halves = Halves::default();
        let dispatcher = common.dispatcher();
        for d in due {
            let cfgs = dispatcher.connection(d.connection);
            let nic = &common.nics[d.nic_index];
            match nic.prepare(d.nic_index, || dispatcher.endpoint(d.connection)) {
                Ok((half, transport)) => {
                    halves.prepared.insert(d.number, half);
                    halves.requests.push(ConnectionRequest {
                        connection: d.number,
                        nic: d.turn,
                        gpu_turn: d.gpu_turn,
                        epoch: d.epoch,
                        slots: cfgs.slots as u32,
                        request_stride: cfgs.request_stride as u32,
                        response_stride: cfgs.response_stride as u32,
                        transport,
                    });
                }
                Err(e) => {
                    // A NIC that is down delays only its own connections.
                    halves.failed = Some(e);
                    halves.refused.push((d.number, d.epoch));
                }
            }
        }
        halves
    }
}

impl PeerTask {
    /// Opens every connection of a fresh session, then announces that all are up.
    pub async fn open_all(&mut self, session: &ClientSession) -> Result<(), ClusterError> {
        let free = |l: &PeerConnection| l.life.due();
        let Some(all_due) = self.connections.iter().filter_map(free).max() else {
            return Err(ClusterError::Slots(format!(
                "no connection to {} has been taken down yet",
                session.peer_node
            )));
        };
        // A fresh session opens every free connection at once.
        self.open(&session.handle, self.now().max(all_due));
        let mut failed = None;
        loop {
            let done = tokio::select! {
                done = self.tasks.join_next() => done,
                () = tokio::time::sleep(SESSION_LOOK) => {
                    // After the session's end, tasks that wait for the peer's NIC cannot succeed.
                    if session.handle.ended().is_none() {
                        continue;
                    }
                    self.tasks.shutdown().await;
                    None
                }
            };
            let Some(done) = done else { break };
            let done = done.map_err(std::io::Error::other)?;
            failed = failed.or(self.done(&session.handle, done).err());
        }
        // The session's end is the cause of the other failures.
        if let Some(cause) = session.handle.ended() {
            return Err(cause.into());
        }
        if let Some(e) = failed {
            return Err(e);
        }
        let deadline = self.common.config.deadlines.step();
        session.handle.start().within(deadline).await?;
        Ok(())
    }

    /// Requests all due connections. A second thread makes their local halves, because a provider
    /// may be slow and this thread must serve the sessions.
    pub(super) fn open(&mut self, handle: &ClientHandle, now: Duration) {
        let mut due = Vec::new();
        for (number, l) in (0u16..).zip(&mut self.connections) {
            if let Some(epoch) = l.life.ask(now) {
                due.push(Due {
                    number,
                    epoch,
                    connection: l.connection,
                    nic_index: l.nic_index,
                    turn: l.turn,
                    gpu_turn: l.gpu_turn,
                });
            }
        }
        if due.is_empty() {
            return;
        }
        let (common, handle) = (self.common.clone(), handle.clone());
        let deadline = common.config.deadlines.step();
        self.asking = true;
        self.tasks.spawn(async move {
            let all = due.iter().map(|d| (d.number, d.epoch)).collect();
            let made = spawn_blocking(move || Halves::make(&common, &due)).await;
            let Halves {
                requests,
                prepared,
                refused,
                failed,
            } = made.unwrap_or_else(|e| Halves {
                refused: all,
                failed: Some(std::io::Error::other(e).into()),
                ..Halves::default()
            });
            let asked: Vec<_> = requests.iter().map(|r| (r.connection, r.epoch)).collect();
            let answer = match asked.is_empty() {
                true => Ok(Vec::new()),
                false => handle.open(requests).within(deadline).await,
            };
            Done::Answered {
                refused,
                failed,
                asked,
                prepared,
                answer,
            }
        });
    }

    /// Handles the result of a task. Unwanted halves are dropped here, before the session's task,
    /// on the same thread, tells the accelerator that this end is reset.
    pub(super) fn done(&mut self, handle: &ClientHandle, done: Done) -> Result<(), ClusterError> {
        let now = self.now();
        if let Done::Answered { refused, .. } = &done {
            self.asking = false;
            for (number, epoch) in refused {
                if let Some(l) = self.connections.get_mut(usize::from(*number)) {
                    let _ = l.life.answered(*epoch, Answer::Refused, now);
                }
            }
        }
        match done {
            Done::Answered {
                prepared,
                failed,
                answer: Ok(grants),
                ..
            } => {
                self.granted(handle, grants, prepared);
                failed.map_or(Ok(()), Err)
            }
            Done::Answered {
                asked,
                prepared,
                answer: Err(e),
                ..
            } => {
                // Before the accelerator learns that this end has no part of them.
                drop(prepared);
                let answer = match e {
                    ControlError::Refused { .. } => Answer::Refused,
                    _ => Answer::Missing,
                };
                let cause = e.to_string();
                for (number, epoch) in asked {
                    let step = |l: &mut Dialled| l.answered(epoch, answer, now);
                    self.step(handle, number, epoch, &cause, step);
                }
                Err(e.into())
            }
            Done::Connected(
                ConnectionGrant {
                    connection, epoch, ..
                },
                Ok(link),
            ) => {
                if self.step(handle, connection, epoch, "", |l| l.connected(epoch)) {
                    let l = &self.connections[usize::from(connection)];
                    self.common.dispatcher().attach(l.connection, epoch, link);
                }
                Ok(())
            }
            Done::Connected(
                ConnectionGrant {
                    connection, epoch, ..
                },
                Err(e),
            ) => {
                self.step(handle, connection, epoch, &e.to_string(), |l| {
                    l.lost(epoch, now)
                });
                Err(e)
            }
        }
    }

    /// Starts to connect the granted data connections.
    fn granted(
        &mut self,
        handle: &ClientHandle,
        grants: Vec<ConnectionGrant>,
        mut prepared: HashMap<u16, Prepared>,
    ) {
        let now = self.now();
        for g in grants {
            let half = prepared.remove(&g.connection).unwrap_or(Prepared::Tcp);
            let step = |l: &mut Dialled| l.answered(g.epoch, Answer::Granted, now);
            if self.step(handle, g.connection, g.epoch, "", step) {
                let connection = self.connections[usize::from(g.connection)].connection;
                super::lock(&self.common.ends)[connection] = Some(ConnectionEnd {
                    nic: g.nic,
                    gpu: g.gpu,
                });
                let connecting = self.connect(g, half);
                self.tasks.spawn(connecting);
            }
        }
    }

    /// Connects one data connection.
    fn connect(
        &self,
        grant: ConnectionGrant,
        prepared: Prepared,
    ) -> impl Future<Output = Done> + Send + use<> {
        let common = self.common.clone();
        let connection = &self.connections[usize::from(grant.connection)];
        let (connection, nic_index) = (connection.connection, connection.nic_index);
        let node = common.peer(self.index).node.clone();
        async move {
            let deadline = common.config.deadlines.step();
            let endpoint = || common.dispatcher().endpoint(connection);
            let link = common.nics[nic_index]
                .connect(nic_index, prepared, &grant, endpoint, &node, deadline)
                .await;
            Done::Connected(grant, link)
        }
    }
}
