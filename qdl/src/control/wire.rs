//! One control connection: frames in and out of a socket, each wait with a deadline.

use std::{sync::Arc, time::Duration};

use futures_util::{SinkExt, StreamExt};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::{Instant, timeout, timeout_at},
};
use tokio_util::codec::Framed;

use super::{
    ControlError,
    error::Peer,
    frame::{Codec, FrameError},
    message::{Message, Role},
};

/// How long and how much of what the peer still sends is read away when a session is closed. Without
/// it the system may answer the peer with a reset, and the peer would never read why.
const LINGER: Duration = Duration::from_millis(500);
const LINGER_BYTES: usize = 4 << 20;

/// See the module.
#[derive(Debug)]
pub(super) struct Wire {
    framed: Framed<TcpStream, Codec>,
    address: String,
    peer: Peer,
    send_deadline: Duration,
}

impl Wire {
    /// Takes a connected stream. A frame that is not taken by the system within `send_deadline` is an error.
    pub fn new(
        stream: TcpStream,
        address: String,
        send_deadline: Duration,
    ) -> Result<Self, ControlError> {
        let peer = Peer::at(&address);
        stream.set_nodelay(true).map_err(|e| ControlError::Io {
            peer: peer.clone(),
            doing: "setting TCP_NODELAY",
            source: Arc::new(e),
        })?;
        Ok(Wire {
            framed: Framed::new(stream, Codec::before_auth()),
            peer,
            address,
            send_deadline,
        })
    }

    /// The peer, as errors print it.
    pub fn peer(&self) -> Peer {
        self.peer.clone()
    }

    /// The peer has said its node name.
    pub fn name_peer(&mut self, node: &str) {
        self.peer = Peer::named(node, &self.address);
    }

    /// The peer has proved who it is.
    pub fn authenticated(&mut self) {
        self.framed.codec_mut().authenticated();
    }

    /// Sends one frame.
    pub async fn send(&mut self, message: &Message) -> Result<(), ControlError> {
        match timeout(self.send_deadline, self.framed.send(message)).await {
            Ok(sent) => sent.map_err(|e| self.frame_error(e, "sending")),
            Err(_) => Err(ControlError::Timeout {
                peer: self.peer(),
                waiting_for: "room to send a frame",
                after: self.send_deadline,
            }),
        }
    }

    /// Waits for the next frame, without a deadline of its own; nothing is lost when the wait is given up.
    /// An `error` frame is an error.
    pub async fn recv(&mut self, waiting_for: &'static str) -> Result<Message, ControlError> {
        match self.framed.next().await {
            Some(Ok(Message::Error { code, text })) => Err(ControlError::Remote {
                peer: self.peer(),
                code,
                text: super::message::clip(&text),
            }),
            Some(Ok(message)) => Ok(message),
            Some(Err(e)) => Err(self.frame_error(e, "receiving")),
            None => Err(ControlError::Closed {
                peer: self.peer(),
                waiting_for,
            }),
        }
    }

    /// Waits for the next frame until `end`, of a wait of `after` in all.
    pub async fn recv_until(
        &mut self,
        waiting_for: &'static str,
        end: Instant,
        after: Duration,
    ) -> Result<Message, ControlError> {
        match timeout_at(end, self.recv(waiting_for)).await {
            Ok(message) => message,
            Err(_) => Err(ControlError::Timeout {
                peer: self.peer(),
                waiting_for,
                after,
            }),
        }
    }

    /// Tells the peer why, if there is something to tell, and closes. `role` is this node's.
    pub async fn close(mut self, cause: &ControlError, role: Role) {
        if let Some((code, text)) = cause.for_peer(role)
            && self.send(&Message::Error { code, text }).await.is_err()
        {
            return;
        }
        // Whatever goes wrong from here on, the connection is closed when this returns.
        let _ = timeout(LINGER, async {
            let stream = self.framed.get_mut();
            stream.shutdown().await?;
            let mut scratch = [0; 4096];
            let mut left = LINGER_BYTES;
            while left > 0 {
                match stream.read(&mut scratch).await? {
                    0 => break,
                    n => left = left.saturating_sub(n),
                }
            }
            Ok::<_, std::io::Error>(())
        })
        .await;
    }

    fn frame_error(&self, e: FrameError, doing: &'static str) -> ControlError {
        match e {
            FrameError::Io(source) => ControlError::Io {
                peer: self.peer(),
                doing,
                source,
            },
            FrameError::Version { theirs } => ControlError::Version {
                peer: self.peer(),
                theirs,
            },
            source => ControlError::Frame {
                peer: self.peer(),
                source,
            },
        }
    }
}
