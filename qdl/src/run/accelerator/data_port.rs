//! A data port of the accelerator: admits data connections that prove the secret of their grant.
//!
//! A peer that connects has a time limit for its preamble and its proof, in a [`Lobby`].

use std::{net::SocketAddr, sync::Arc};

use tokio::net::{TcpListener, TcpStream};

use super::session::{CurrentSession, Session};
use crate::{
    control::{
        frame::refusal,
        lobby::{Guest, Lobby, canonical},
    },
    run::{lock, settings::SEND_DEPTH},
};
use fabric::wire::is_control_frame;
use fabric::{
    clock::now_ns,
    kinds::LinkSocket,
    tcp::{PREAMBLE_DEADLINE, Preamble, TcpDevice},
};

struct ProvedGuest {
    stream: TcpStream,
    preamble: Preamble,
    session: Arc<Session>,
    granted: SocketAddr,
}

/// Address of a guest; the guest, or the reason for its refusal.
type GuestProof = (SocketAddr, Result<ProvedGuest, &'static str>);

/// Accepts connections on the data port of a NIC, with `strangers` places beside those of expected
/// connections. A frontend that takes the port for the control port gets the text `elsewhere`.
pub(crate) async fn admit_all(
    listener: TcpListener,
    (strangers, elsewhere): (usize, String),
    nic_index: usize,
    current: Arc<CurrentSession>,
    link: LinkSocket,
) {
    let to_come = current.clone();
    let of_guests = current;
    let mut lobby: Lobby<GuestProof> = Lobby::new(
        "data port",
        listener,
        move || strangers + awaited_connections(&to_come),
        PREAMBLE_DEADLINE,
        move |guest| {
            let (elsewhere, current) = (refusal(&elsewhere), of_guests.clone());
            async move {
                let address = guest.address;
                (address, prove(guest, &elsewhere, &current).await)
            }
        },
    );
    loop {
        let (address, proved) = lobby.next().await;
        let admitted = match proved {
            Ok(guest) => admit(guest, nic_index, &link).await,
            Err(why) => Err(why.to_owned()),
        };
        if let Err(why) = admitted {
            let line = || format!("data connection from {address} shown out: {why}");
            lobby.quiet.warn(now_ns(), line);
        }
    }
}

async fn prove(
    guest: Guest,
    elsewhere: &[u8],
    current: &CurrentSession,
) -> Result<ProvedGuest, &'static str> {
    let mut stream = guest.stream;
    let shown = match guest.speaks {
        true => TcpDevice::read_preamble(&mut stream).await,
        false => Err(Vec::new()),
    };
    let preamble = match shown {
        Ok(preamble) => preamble,
        Err(bytes) if is_control_frame(&bytes) => {
            TcpDevice::send_away(stream, elsewhere).await;
            return Err("it is a control connection: accelerators[].control names this data port");
        }
        Err(_) => return Err("it does not begin with this protocol's preamble"),
    };
    let session = lock(current).clone().ok_or("no frontend is being served")?;
    let secret = lock(&session.connections).secret(preamble.connection, preamble.epoch);
    let secret = secret.ok_or("no such connection was granted, or it came already")?;
    let proved = TcpDevice::prove(&mut stream, &preamble, &secret).await;
    proved.map_err(|_| "it did not prove the key of its connection")?;
    guest.proof.given();
    Ok(ProvedGuest {
        stream,
        preamble,
        session,
        granted: secret.address,
    })
}

/// Number of granted connections whose data socket has not arrived yet.
fn awaited_connections(current: &CurrentSession) -> usize {
    let session = lock(current).clone();
    session.map_or(0, |s| lock(&s.connections).awaited())
}

/// Attaches a proved connection, unless it came to another address or NIC than was granted.
async fn admit(guest: ProvedGuest, nic_index: usize, link: &LinkSocket) -> Result<(), String> {
    let ProvedGuest {
        mut stream,
        preamble,
        session,
        granted,
    } = guest;
    let (connection, expected) = lock(&session.connections)
        .take_proved(preamble.connection, preamble.epoch)
        .ok_or("no such connection was granted, or it came already")?;
    // `local_addr` fails only for a dead socket.
    let reached = stream.local_addr().map_or(granted, canonical);
    let linked = if reached != granted {
        Err(format!(
            "it came to {reached}, and {granted} was granted: a data connection passes no NAT and no \
             forwarder (nics[].listen)"
        ))
    } else if expected == nic_index {
        // Never waits for the peer: the message is a few bytes into an empty socket buffer.
        TcpDevice::welcome(&mut stream)
            .await
            .and_then(|()| stream.into_std())
            .and_then(|s| link(s, connection.endpoint(SEND_DEPTH)))
            .map_err(|e| e.to_string())
    } else {
        Err(format!(
            "its connection belongs to NIC {expected}, not {nic_index}"
        ))
    };
    session.admit(nic_index, connection, linked)
}
