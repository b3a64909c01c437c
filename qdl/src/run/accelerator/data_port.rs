//! A data port of the accelerator: admits data connections that present a granted key.
//!
//! A peer that connects has a time limit for its preamble, in a [`Lobby`].

use std::{net::SocketAddr, sync::Arc};

use tokio::net::{TcpListener, TcpStream};

use super::session::CurrentSession;
use crate::{
    control::{frame::refusal, lobby::Lobby},
    run::{lock, settings::SEND_DEPTH},
    serve::ConnectionLost,
};
use fabric::wire::is_control_frame;
use fabric::{
    Broken,
    clock::now_ns,
    tcp::{self, PREAMBLE_DEADLINE, Preamble, TcpCfgs, TcpDevice},
};

/// A guest's preamble, or the reason for its refusal.
type GuestPreamble = (SocketAddr, Result<(TcpStream, Preamble), &'static str>);

/// Accepts connections on the data port of a NIC, with `strangers` places beside those of expected
/// connections. A frontend that takes the port for the control port gets the text `elsewhere`.
pub(crate) async fn admit_all(
    listener: TcpListener,
    (strangers, elsewhere): (usize, String),
    nic_index: usize,
    current: Arc<CurrentSession>,
    cfgs: TcpCfgs,
) {
    let to_come = current.clone();
    let mut lobby: Lobby<GuestPreamble> = Lobby::new(
        "data port",
        listener,
        move || strangers + awaited_connections(&to_come),
        PREAMBLE_DEADLINE,
        move |guest| {
            let elsewhere = refusal(&elsewhere);
            async move {
                let mut stream = guest.stream;
                let shown = match guest.speaks {
                    true => TcpDevice::read_preamble(&mut stream).await,
                    false => Err(Vec::new()),
                };
                let shown = match shown {
                    Ok(preamble) => Ok((stream, preamble)),
                    Err(bytes) if is_control_frame(&bytes) => {
                        TcpDevice::send_away(stream, &elsewhere).await;
                        Err(
                            "it is a control connection: accelerators[].control names this data port",
                        )
                    }
                    Err(_) => Err("it does not begin with this protocol's preamble"),
                };
                (guest.address, shown)
            }
        },
    );
    loop {
        let (address, shown) = lobby.next().await;
        let admitted = match shown {
            Ok((stream, preamble)) => admit(stream, preamble, nic_index, &current, &cfgs).await,
            Err(why) => Err(why.to_owned()),
        };
        if let Err(why) = admitted {
            let line = || format!("data connection from {address} shown out: {why}");
            lobby.quiet.warn(now_ns(), line);
        }
    }
}

/// Number of granted connections whose data socket has not arrived yet.
fn awaited_connections(current: &CurrentSession) -> usize {
    let session = lock(current).clone();
    session.map_or(0, |s| lock(&s.connections).keys_out())
}

/// Attaches the connection whose key was presented.
async fn admit(
    mut stream: TcpStream,
    preamble: Preamble,
    nic_index: usize,
    current: &CurrentSession,
    cfgs: &TcpCfgs,
) -> Result<(), String> {
    let session = lock(current).clone().ok_or("no frontend is being served")?;
    let (connection, expected) = lock(&session.connections)
        .take_key(&preamble.key, preamble.connection, preamble.epoch)
        .ok_or("its key is not one that was handed out")?;
    let linked = if expected == nic_index {
        // Never waits for the peer: the message is a few bytes into an empty socket buffer.
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
            .attach(nic_index, connection, link)
            .ok_or_else(|| "its connection was given up meanwhile".to_owned()),
        Err(why) => {
            // No NIC thread has the connection, so report its loss here.
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
