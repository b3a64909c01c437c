//! The baseline between a client and a gateway: round trips without load, and routers on the way.

use std::{
    io,
    net::{IpAddr, SocketAddr, ToSocketAddrs},
    time::{Duration, Instant},
};

use bytes::Bytes;
use http_body_util::{BodyExt, Empty, Limited};
use hyper::{
    Request, StatusCode, Uri,
    client::conn::http1::{SendRequest, handshake},
    header,
};
use hyper_util::rt::TokioIo;
use socket2::{Domain, Socket, Type};
use tokio::{net::TcpStream, time::timeout};

use crate::totals::{Percentiles, histogram, percentiles};

/// Measured round trips, one after the other.
pub const ROUND_TRIPS: usize = 500;
/// Round trips before these, which fill caches.
const UNMEASURED: usize = 50;
/// Longest wait for a connection or an answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// Longest wait for a connection of few hops: a router that drops without a word is slow.
const HOP_PATIENCE: Duration = Duration::from_secs(1);
/// Longest body of an answer to `GET /health`.
const BODY_BYTES_MAX: usize = 64 << 10;
/// Most routers that are looked for.
const MOST_ROUTERS: u32 = 30;

/// The path between this machine and a gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Baseline {
    /// This machine's address on the path.
    pub client: IpAddr,
    /// The gateway's address.
    pub gateway: SocketAddr,
    /// IP routers on the path; `None` if the gateway cannot be reached with a larger hop limit
    /// alone.
    pub routers: Option<u32>,
    /// Times of `GET /health` over one kept connection, in nanoseconds.
    pub round_trip_ns: Percentiles,
}

impl Baseline {
    /// Measures the path to the gateway at `url`, as `http://192.0.2.9:8000`. Blocks for
    /// [`ROUND_TRIPS`] round trips.
    ///
    /// # Errors
    /// The address is none, or nothing healthy answers there; the text names it.
    pub fn measure(url: &str) -> Result<Self, String> {
        let gateway = address(url)?;
        let failed = |e: io::Error| format!("{url}: {e}");
        let runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = { runtime }.enable_all().build().map_err(failed)?;
        let (client, round_trip_ns) = runtime
            .block_on(round_trips(gateway, url))
            .map_err(|why| format!("{url}: {why}"))?;
        Ok(Baseline {
            client,
            gateway,
            routers: (0..=MOST_ROUTERS).find(|routers| reaches(gateway, routers + 1)),
            round_trip_ns,
        })
    }
}

fn address(url: &str) -> Result<SocketAddr, String> {
    let none = || format!("{url:?} is no address of a gateway: write http://HOST:PORT");
    let uri: Uri = url.parse().map_err(|_| none())?;
    if uri.scheme_str() != Some("http") {
        return Err(none());
    }
    let host = uri.host().ok_or_else(none)?;
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let found = (host, uri.port_u16().unwrap_or(80)).to_socket_addrs();
    let mut found = found.map_err(|e| format!("{url}: {e}"))?;
    found.next().ok_or_else(none)
}

async fn round_trips(gateway: SocketAddr, url: &str) -> Result<(IpAddr, Percentiles), String> {
    let late = |_| format!("no answer within {PATIENCE:?}");
    let stream = timeout(PATIENCE, TcpStream::connect(gateway)).await;
    let stream = stream.map_err(late)?.map_err(|e| e.to_string())?;
    stream.set_nodelay(true).map_err(|e| e.to_string())?;
    let client = stream.local_addr().map_err(|e| e.to_string())?.ip();
    let (mut sender, connection) = handshake(TokioIo::new(stream))
        .await
        .map_err(|e| e.to_string())?;
    let connection = tokio::spawn(connection);
    let mut times = histogram().map_err(|e| e.to_string())?;
    for n in 0..UNMEASURED + ROUND_TRIPS {
        let began = Instant::now();
        let answered = timeout(PATIENCE, health(&mut sender, url)).await;
        answered.map_err(late)??;
        if n >= UNMEASURED {
            times.saturating_record(began.elapsed().as_nanos() as u64);
        }
    }
    connection.abort();
    Ok((client, percentiles(&times)))
}

async fn health(sender: &mut SendRequest<Empty<Bytes>>, url: &str) -> Result<(), String> {
    let host = url.strip_prefix("http://").unwrap_or(url);
    let host = host.split('/').next().unwrap_or_default();
    let request = Request::get("/health").header(header::HOST, host);
    let request = request.body(Empty::new()).map_err(|e| e.to_string())?;
    let answer = sender.send_request(request).await;
    let answer = answer.map_err(|e| e.to_string())?;
    let status = answer.status();
    let body = Limited::new(answer.into_body(), BODY_BYTES_MAX);
    body.collect().await.map_err(|e| e.to_string())?;
    match status {
        StatusCode::OK => Ok(()),
        status => Err(format!(
            "GET /health has status {status}: is it a gateway that is ready?"
        )),
    }
}

/// Whether packets with this hop limit reach the gateway.
fn reaches(gateway: SocketAddr, hops: u32) -> bool {
    let connected = || {
        let socket = Socket::new(Domain::for_address(gateway), Type::STREAM, None)?;
        match gateway {
            SocketAddr::V4(_) => socket.set_ttl_v4(hops)?,
            SocketAddr::V6(_) => socket.set_unicast_hops_v6(hops)?,
        }
        socket.connect_timeout(&gateway.into(), HOP_PATIENCE)
    };
    connected().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_without_a_gateway_is_named() {
        for (url, words) in [
            ("192.0.2.1:80", "write http://HOST:PORT"),
            ("https://192.0.2.1", "write http://HOST:PORT"),
            ("http://127.0.0.1:1", "http://127.0.0.1:1: "),
        ] {
            let error = Baseline::measure(url).expect_err("nothing there");
            assert!(error.contains(words), "{error}");
        }
        let v6 = address("http://[::1]:8000/v1").expect("an address");
        assert_eq!(v6, "[::1]:8000".parse().expect("an address"));
    }
}
