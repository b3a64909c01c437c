//! As much of HTTP/1.1 as a pretended server needs: requests with a length, answers with a length
//! or in chunks, connections that stay.

use std::io;

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, BufReader},
    net::TcpStream,
};

/// Longest head of a request in bytes.
const MAX_HEAD: usize = 16 << 10;
/// Longest body in bytes.
const MAX_BODY: usize = 4 << 20;

/// One request.
pub(super) struct Request {
    pub method: String,
    pub path: String,
    pub body: Vec<u8>,
}

/// One connection.
pub(super) struct Connection {
    stream: BufReader<TcpStream>,
    out: Vec<u8>,
}

fn bad(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.to_owned())
}

impl Connection {
    pub fn new(stream: TcpStream) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        Ok(Connection {
            stream: BufReader::new(stream),
            out: Vec::with_capacity(4096),
        })
    }

    /// The next request; `None` where the client is done.
    pub async fn request(&mut self) -> io::Result<Option<Request>> {
        let mut head = Vec::with_capacity(512);
        while !head.ends_with(b"\r\n\r\n") {
            if head.len() > MAX_HEAD {
                return Err(bad("a head without end"));
            }
            match self.stream.read_u8().await {
                Ok(byte) => head.push(byte),
                Err(e) if e.kind() == io::ErrorKind::UnexpectedEof && head.is_empty() => {
                    return Ok(None);
                }
                Err(e) => return Err(e),
            }
        }
        let head = std::str::from_utf8(&head).map_err(|_| bad("a head that is no text"))?;
        let mut lines = head.split("\r\n");
        let mut words = lines.next().unwrap_or_default().split(' ');
        let (Some(method), Some(path)) = (words.next(), words.next()) else {
            return Err(bad("a request line"));
        };
        let (method, path) = (method.to_owned(), path.to_owned());
        let length = lines
            .filter_map(|line| line.split_once(':'))
            .find(|(name, _)| name.eq_ignore_ascii_case("content-length"))
            .map_or(Ok(0), |(_, value)| value.trim().parse::<usize>())
            .map_err(|_| bad("a content length"))?;
        if length > MAX_BODY {
            return Err(bad("a body that is too long"));
        }
        let mut body = vec![0; length];
        self.stream.read_exact(&mut body).await?;
        Ok(Some(Request { method, path, body }))
    }

    /// A whole answer.
    pub async fn answer(&mut self, status: &str, kind: &str, body: &str) -> io::Result<()> {
        let text = format!(
            "HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        self.stream.get_mut().write_all(text.as_bytes()).await
    }

    /// The beginning of an answer in chunks.
    pub async fn begin(&mut self) -> io::Result<()> {
        let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n\
                    transfer-encoding: chunked\r\n\r\n";
        self.stream.get_mut().write_all(head.as_bytes()).await
    }

    /// One event, a chunk of its own.
    pub async fn event(&mut self, data: &str) -> io::Result<()> {
        self.out.clear();
        let head = format!("{:x}\r\n", data.len() + 8);
        for piece in [&head, "data: ", data, "\n\n", "\r\n"] {
            self.out.extend_from_slice(piece.as_bytes());
        }
        self.stream.get_mut().write_all(&self.out).await
    }

    /// The end of an answer in chunks.
    pub async fn end(&mut self) -> io::Result<()> {
        self.stream.get_mut().write_all(b"0\r\n\r\n").await
    }
}
