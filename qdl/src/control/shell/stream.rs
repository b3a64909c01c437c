//! The byte stream under a session: a socket, or a stream that a test moves.

use std::{
    fmt,
    io::{self, Read},
    net::{Shutdown, SocketAddr},
    sync::Arc,
    time::Duration,
};

use futures_util::future::BoxFuture;
use socket2::SockRef;
use tokio::{
    io::Interest,
    net::{TcpStream, lookup_host},
    time::timeout,
};

use crate::control::error::{CONNECTION, ControlError};

/// Most addresses of a name that are tried.
const MOST_ADDRESSES: usize = 8;

/// A connected byte stream. No call but [`ControlStream::ready`] waits.
pub trait ControlStream: fmt::Debug + Send + Sync + 'static {
    /// Reads bytes that have come; 0 bytes mean that the peer has ended its direction.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] where none have come, else the stream's error.
    fn try_read(&self, into: &mut [u8]) -> io::Result<usize>;

    /// As [`ControlStream::try_read`], whatever the runtime knows of the stream's readiness.
    ///
    /// # Errors
    /// As [`ControlStream::try_read`].
    fn read_at_once(&self, into: &mut [u8]) -> io::Result<usize> {
        self.try_read(into)
    }

    /// Writes as many bytes as there is room for.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] where there is no room, else the stream's error.
    fn try_write(&self, bytes: &[u8]) -> io::Result<usize>;

    /// Ends this direction. An error means that the peer is gone already.
    fn shut(&self);

    /// Waits until the stream is ready. The next read or write reports its error.
    fn ready(&self, interest: Interest) -> BoxFuture<'_, ()>;
}

impl ControlStream for TcpStream {
    fn try_read(&self, into: &mut [u8]) -> io::Result<usize> {
        TcpStream::try_read(self, into)
    }

    fn read_at_once(&self, into: &mut [u8]) -> io::Result<usize> {
        (&*SockRef::from(self)).read(into)
    }

    fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        TcpStream::try_write(self, bytes)
    }

    fn shut(&self) {
        let _ = SockRef::from(self).shutdown(Shutdown::Write);
    }

    fn ready(&self, interest: Interest) -> BoxFuture<'_, ()> {
        Box::pin(async move { drop(TcpStream::ready(self, interest).await) })
    }
}

/// The stream of a socket, which sends small frames at once.
///
/// # Errors
/// The socket is dead.
pub(super) fn of_socket(
    stream: TcpStream,
    address: &str,
) -> Result<Box<dyn ControlStream>, ControlError> {
    stream.set_nodelay(true).map_err(|e| ControlError::Broken {
        peer: address.to_owned(),
        text: format!("setting TCP_NODELAY on the control connection: {e}"),
    })?;
    Ok(Box::new(stream))
}

/// Result of [`Connector::connect`]: the stream, and the peer's address.
pub type Connected = Result<(Box<dyn ControlStream>, SocketAddr), ControlError>;

/// Opens the streams of a frontend's sessions.
pub trait Connector: Send + Sync {
    /// Connects to `address`, an accelerator's `control.listen` (`host:port`). Each step, such as
    /// looking the name up, may take `step`.
    fn connect<'a>(&'a self, address: &'a str, step: Duration) -> BoxFuture<'a, Connected>;
}

/// Connects sockets.
#[derive(Clone, Copy, Debug)]
pub struct Sockets;

impl Connector for Sockets {
    fn connect<'a>(&'a self, address: &'a str, step: Duration) -> BoxFuture<'a, Connected> {
        Box::pin(async move {
            let (stream, peer) = dial(address, step).await?;
            Ok((of_socket(stream, address)?, peer))
        })
    }
}

/// Connects to the first address of `address` that takes the connection; looking the name up, and
/// each of its addresses, may take `step`. Of several errors, a refused connection counts.
async fn dial(address: &str, step: Duration) -> Result<(TcpStream, SocketAddr), ControlError> {
    let peer = || address.to_owned();
    let unknown = |source| ControlError::Lookup {
        peer: peer(),
        source: Arc::new(source),
    };
    let late = |_| io::Error::from(io::ErrorKind::TimedOut);
    let found = timeout(step, lookup_host(address)).await;
    let found = found.map_err(late).flatten().map_err(unknown)?;
    let (mut error, mut refused) = (unknown(io::Error::other("the resolver gives none")), false);
    for at in found.take(MOST_ADDRESSES) {
        error = match timeout(step, TcpStream::connect(at)).await {
            Ok(Ok(stream)) => return Ok((stream, at)),
            _ if refused => continue,
            Ok(Err(e)) => {
                refused = e.kind() == io::ErrorKind::ConnectionRefused;
                ControlError::Connect {
                    peer: peer(),
                    source: Arc::new(e),
                }
            }
            Err(_) => ControlError::Timeout {
                peer: peer(),
                waiting_for: CONNECTION,
                after: step,
            },
        };
    }
    Err(error)
}
