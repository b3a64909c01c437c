//! A data port: lets connections in that show the key of a connection.
//!
//! Whoever connects has a moment to show a key. So that those who connect and say nothing can
//! neither pile up nor keep others out, no more of them wait at a time than there are connections
//! to come, and some; one more costs the oldest its place.

use std::{collections::VecDeque, net::SocketAddr, sync::Arc, time::Duration};

use tokio::{
    net::{TcpListener, TcpStream},
    task::{AbortHandle, JoinSet},
};

use super::{lock, node::Shared, settings::SEND_DEPTH};
use crate::{
    clock::now_ns,
    control::quiet::Quiet,
    fabric::{
        Broken,
        tcp::{self, Preamble, TcpCfgs, TcpDevice},
    },
    serve::ConnectionLost,
};

/// Strangers that may wait beside those for whom a connection waits.
const STRANGERS: usize = 32;

/// A connection, where it comes from, and what it showed; `None` where that was no preamble.
type Shown = (TcpStream, SocketAddr, Option<Preamble>);

/// Accepts on the data port of a NIC.
pub(super) async fn let_in(
    listener: TcpListener,
    nic_index: usize,
    shared: Arc<Shared>,
    cfgs: TcpCfgs,
) {
    let mut showing: JoinSet<Shown> = JoinSet::new();
    let mut oldest_first: VecDeque<AbortHandle> = VecDeque::new();
    let mut quiet = Quiet::new("data connections shown out");
    loop {
        tokio::select! {
            knock = listener.accept() => match knock {
                Ok((mut stream, address)) => {
                    oldest_first.retain(|h| !h.is_finished());
                    if oldest_first.len() >= STRANGERS + connections_to_come(&shared)
                        && let Some(oldest) = oldest_first.pop_front()
                    {
                        let waiting = oldest_first.len() + 1;
                        quiet.warn(now_ns(), || {
                            format!(
                                "data port: {waiting} connections have shown no key: the oldest \
                                 gives way to {address}"
                            )
                        });
                        oldest.abort();
                    }
                    oldest_first.push_back(showing.spawn(async move {
                        let preamble = TcpDevice::read_preamble(&mut stream).await;
                        (stream, address, preamble)
                    }));
                }
                Err(e) => {
                    // Out of descriptors, most likely: wait until some are given back.
                    quiet.warn(now_ns(), || format!("data port: cannot accept: {e}"));
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            },
            Some(done) = showing.join_next() => {
                // One that gave way was told of.
                let Ok((stream, address, preamble)) = done else { continue };
                if let Err(why) = admit(stream, preamble, nic_index, &shared, &cfgs).await {
                    quiet.warn(now_ns(), || format!("data connection from {address} shown out: {why}"));
                }
            }
            () = quiet.wait() => quiet.sum_up(now_ns()),
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

#[cfg(test)]
mod tests {
    use std::{io::Read, net::TcpStream as StdStream, sync::Mutex, time::Instant};

    use super::*;
    use crate::run::budget::Budget;
    use crate::serve::{Arrival, Server, Service};

    struct Nobody;

    impl Service for Nobody {
        fn arrived(&self, arrivals: &mut Vec<Arrival>) {
            arrivals.clear();
        }
    }

    #[test]
    fn those_who_connect_and_say_nothing_do_not_pile_up() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        let service: Arc<dyn Service> = Arc::new(Nobody);
        let shared = Arc::new(Shared {
            server: Server::new(vec![], &service, &(Arc::new(|_| ()) as _)).expect("no threads"),
            service,
            sessions: 0.into(),
            current: Mutex::default(),
            budget: Budget::new(),
            settled: Mutex::default(),
        });
        let silent = 4 * STRANGERS;
        runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
            let port = listener.local_addr().expect("bound");
            tokio::spawn(let_in(listener, 0, shared, TcpCfgs::default()));
            // The kernel takes them on; the port has not looked yet.
            let mut sockets: Vec<_> = (0..silent)
                .map(|_| StdStream::connect(port).expect("taken on"))
                .collect();
            for s in &sockets {
                s.set_nonblocking(true).expect("set");
            }
            let end = Instant::now() + Duration::from_secs(20);
            while sockets.len() > STRANGERS {
                assert!(Instant::now() < end, "{} still wait", sockets.len());
                tokio::time::sleep(Duration::from_millis(1)).await;
                // Its end, and nothing else, comes from the port.
                sockets.retain_mut(|s| !matches!(s.read(&mut [0]), Ok(0)));
            }
            // Where nobody gives way, all go at once when their time is over.
            assert!(!sockets.is_empty(), "as many as came were waited for");
        });
    }
}
