//! A data port: lets connections in that show the key of a connection.
//!
//! Whoever connects has a moment to show a key, in a [`Lobby`].

use std::{net::SocketAddr, sync::Arc};

use tokio::net::{TcpListener, TcpStream};

use super::{lock, node::Shared, settings::SEND_DEPTH};
use crate::{
    clock::now_ns,
    control::lobby::Lobby,
    fabric::{
        Broken,
        tcp::{self, PREAMBLE_DEADLINE, Preamble, TcpCfgs, TcpDevice},
    },
    serve::ConnectionLost,
};

/// What a guest showed; `None` where that was no preamble.
type Shown = (TcpStream, SocketAddr, Option<Preamble>);

/// Accepts on the data port of a NIC, with `strangers` places beside those of connections that are
/// to come.
pub(super) async fn let_in(
    listener: TcpListener,
    strangers: usize,
    nic_index: usize,
    shared: Arc<Shared>,
    cfgs: TcpCfgs,
) {
    let to_come = shared.clone();
    let mut lobby: Lobby<Shown> = Lobby::new(
        ("data port", "data connections shown out"),
        listener,
        move || strangers + connections_to_come(&to_come),
        PREAMBLE_DEADLINE,
        |guest| async move {
            let mut stream = guest.stream;
            let preamble = match guest.speaks {
                true => TcpDevice::read_preamble(&mut stream).await,
                false => None,
            };
            (stream, guest.address, preamble)
        },
    );
    loop {
        let (stream, address, preamble) = lobby.next().await;
        if let Err(why) = admit(stream, preamble, nic_index, &shared, &cfgs).await {
            let line = || format!("data connection from {address} shown out: {why}");
            lobby.quiet.warn(now_ns(), line);
        }
    }
}

/// Granted connections whose data socket has not arrived yet.
fn connections_to_come(shared: &Shared) -> usize {
    let session = lock(&shared.current).clone();
    session.map_or(0, |s| lock(&s.connections).awaited())
}

/// Puts the connection up whose key was shown.
async fn admit(
    mut stream: TcpStream,
    preamble: Option<Preamble>,
    nic_index: usize,
    shared: &Shared,
    cfgs: &TcpCfgs,
) -> Result<(), String> {
    let preamble = preamble.ok_or("it does not begin with this protocol's preamble")?;
    let session = lock(&shared.current)
        .clone()
        .ok_or("no frontend is being served")?;
    let (connection, expected) = lock(&session.connections)
        .take(&preamble.key, preamble.connection, preamble.epoch)
        .ok_or("its key is not one that was handed out")?;
    let linked = if expected == nic_index {
        // A few bytes into an empty socket: nobody waits here for the peer to read.
        TcpDevice::welcome(&mut stream)
            .await
            .and_then(|()| stream.into_std())
            .and_then(|s| tcp::link(s, connection.endpoint(SEND_DEPTH), cfgs))
            .map_err(|e| e.to_string())
    } else {
        Err(format!(
            "its connection belongs to NIC {expected}, not {nic_index}"
        ))
    };
    match linked {
        Ok(link) => session
            .attach(shared, nic_index, connection, link)
            .ok_or_else(|| "its connection was given up meanwhile".to_owned()),
        Err(why) => {
            // No NIC thread ever had it, and none will say that it is down.
            session.lost_here(&ConnectionLost {
                session: session.id,
                connection: preamble.connection,
                epoch: preamble.epoch,
                cause: Broken::GivenUp(why.clone()),
            });
            Err(why)
        }
    }
}
