//! The control streams of a world. Bytes arrive when the world says so ([`Streams::handle`]), whole
//! or in pieces, late or never.

use std::{
    collections::VecDeque,
    fmt,
    future::poll_fn,
    io::{self, ErrorKind},
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard},
    task::{Poll, Waker},
    time::Duration,
};

use fabric::{clock::now_ns, os::lock, testkit::dice::Dice};
use qdl::control::{Connected, Connector, ControlError, ControlStream, Reception, Visitor};
use tokio::io::Interest;

/// Bytes under way and unread until a writer has to wait.
const ROOM: usize = 64 << 10;

/// Port of the first accelerator.
const FIRST_PORT: u16 = 1_000;

/// An arrival that is due at some time, in the direction `pipe`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrives {
    pub pipe: usize,
}

#[derive(Debug)]
enum Piece {
    Bytes(Vec<u8>),
    End,
    Reset,
}

/// One direction of a stream.
#[derive(Debug)]
struct Pipe {
    dice: Dice,
    under_way: VecDeque<Piece>,
    /// Bytes under way.
    bytes: usize,
    last_due: u64,
    arrived: VecDeque<u8>,
    has_ended: bool,
    is_reset: bool,
    /// The reading end is gone.
    is_unread: bool,
    /// Bytes vanish.
    is_hole: bool,
    /// The next bytes come one by one.
    is_torn: bool,
    /// One of the next bytes is inverted. A single flipped bit could turn a hexadecimal digit of a
    /// random key into the same digit in upper case, which is no fault.
    is_spoilt: bool,
    /// Writes fail.
    is_refused: bool,
    reader: Option<Waker>,
    writer: Option<Waker>,
}

struct State {
    seed: u64,
    delay_ns: u64,
    pipes: Vec<Pipe>,
    /// Per stream: its accelerator.
    servers: Vec<usize>,
    due: Vec<(u64, Arrives)>,
    /// Per accelerator: the reception, while the node runs.
    doors: Vec<Option<Reception>>,
    visits: Vec<(Reception, Visitor)>,
}

/// The control streams of one world.
#[derive(Clone)]
pub struct Streams(Arc<Mutex<State>>);

impl fmt::Debug for Streams {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Streams")
    }
}

impl Streams {
    /// No streams yet, to so many accelerators. `delay_ns` is the mean time of bytes on their way.
    pub fn new(seed: u64, servers: usize, delay_ns: u64) -> Self {
        Streams(Arc::new(Mutex::new(State {
            seed,
            delay_ns,
            pipes: Vec::new(),
            servers: Vec::new(),
            due: Vec::new(),
            doors: vec![None; servers],
            visits: Vec::new(),
        })))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.0)
    }

    /// Address of an accelerator's control port.
    pub fn address(server: usize) -> SocketAddr {
        ([127, 0, 0, 1], FIRST_PORT + server as u16).into()
    }

    /// Opens or closes (`None`) the control port of an accelerator.
    pub fn set_door(&self, server: usize, door: Option<Reception>) {
        self.state().doors[server] = door;
    }

    /// Peers that have connected since the last call.
    pub fn take_visits(&self) -> Vec<(Reception, Visitor)> {
        std::mem::take(&mut self.state().visits)
    }

    /// Whether peers have connected since the last call of [`Streams::take_visits`].
    pub fn has_visits(&self) -> bool {
        !self.state().visits.is_empty()
    }

    /// Moves the arrivals that have been planned since the last call, with their times.
    pub fn take_due(&self, into: &mut Vec<(u64, Arrives)>) {
        into.append(&mut self.state().due);
    }

    /// The last stream of an accelerator. Its pipe from the frontend has twice its number.
    pub fn last_of(&self, server: usize) -> Option<usize> {
        self.state().servers.iter().rposition(|s| *s == server)
    }

    /// Resets a stream. Each end learns of it when it reads, after some of the bytes under way; or,
    /// if it writes before and `is_refused`, by its write.
    pub fn cut(&self, stream: usize, is_refused: bool) {
        let mut state = self.state();
        for pipe in [2 * stream, 2 * stream + 1] {
            let p = &mut state.pipes[pipe];
            p.is_refused = is_refused;
            let kept = p.dice.below(p.under_way.len() as u64 + 1) as usize;
            p.under_way.truncate(kept);
            p.bytes = 0;
            state.send(pipe, Piece::Reset);
        }
    }

    /// Makes the bytes of the pipes vanish that are in `n`: 1 from the frontend, 2 to it, 3 both.
    pub fn black_hole(&self, stream: usize, n: u64) {
        let mut state = self.state();
        for direction in [0, 1] {
            if n & (1 << direction) > 0 {
                state.pipes[2 * stream + direction].is_hole = true;
            }
        }
    }

    /// Makes the next bytes of both directions dribble in.
    pub fn tear(&self, stream: usize) {
        let mut state = self.state();
        let pipes = &mut state.pipes[2 * stream..2 * stream + 2];
        pipes.iter_mut().for_each(|p| p.is_torn = true);
    }

    /// Inverts one of the next bytes of one direction.
    pub fn spoil(&self, stream: usize, direction: usize) {
        self.state().pipes[2 * stream + direction].is_spoilt = true;
    }

    /// Keeps later bytes of one direction back for `ns`.
    pub fn stick(&self, stream: usize, direction: usize, ns: u64) {
        let p = &mut self.state().pipes[2 * stream + direction];
        p.last_due = p.last_due.max(now_ns() + ns);
    }

    /// Handles an arrival at its time. Returns whether an end may have work.
    pub fn handle(&self, arrives: Arrives) -> bool {
        let mut state = self.state();
        let p = &mut state.pipes[arrives.pipe];
        let Some(piece) = p.under_way.pop_front() else {
            return false;
        };
        if let Piece::Bytes(bytes) = &piece {
            p.bytes = p.bytes.saturating_sub(bytes.len());
        }
        if p.is_hole {
            return false;
        }
        match piece {
            Piece::Bytes(_) if p.is_unread => {
                state.send(arrives.pipe ^ 1, Piece::Reset);
                return false;
            }
            Piece::Bytes(bytes) => p.arrived.extend(bytes),
            Piece::End => p.has_ended = true,
            Piece::Reset => {
                p.is_reset = true;
                // The writing half of the end that reads this pipe is over too.
                let back = &mut state.pipes[arrives.pipe ^ 1];
                back.writer.take().into_iter().for_each(Waker::wake);
            }
        }
        let p = &mut state.pipes[arrives.pipe];
        p.reader.take().into_iter().for_each(Waker::wake);
        true
    }

    fn dial(&self, server: usize) -> Option<(SimStream, SocketAddr)> {
        let mut state = self.state();
        let door = state.doors.get(server)?.clone()?;
        let stream = state.servers.len();
        state.servers.push(server);
        for direction in 0..2 {
            let pipe = Pipe {
                dice: Dice::of(state.seed, &[40, stream as u64, direction]),
                under_way: VecDeque::new(),
                bytes: 0,
                last_due: 0,
                arrived: VecDeque::new(),
                has_ended: false,
                is_reset: false,
                is_unread: false,
                is_hole: false,
                is_torn: false,
                is_spoilt: false,
                is_refused: false,
                reader: None,
                writer: None,
            };
            state.pipes.push(pipe);
        }
        let end = |writes: usize| SimStream {
            streams: self.clone(),
            writes,
        };
        let visitor = Visitor {
            stream: Box::new(end(2 * stream + 1)),
            address: ([127, 0, 0, 1], 30_000 + stream as u16).into(),
            reached: Streams::address(server),
            since_ns: now_ns(),
        };
        state.visits.push((door, visitor));
        Some((end(2 * stream), Streams::address(server)))
    }
}

impl State {
    /// Plans the arrival of a piece.
    fn send(&mut self, pipe: usize, mut piece: Piece) {
        let p = &mut self.pipes[pipe];
        if let Piece::Bytes(bytes) = &mut piece
            && std::mem::take(&mut p.is_spoilt)
        {
            let place = p.dice.below(bytes.len() as u64) as usize;
            bytes[place] = !bytes[place];
        }
        let pieces = match piece {
            Piece::Bytes(bytes) if std::mem::take(&mut p.is_torn) => {
                // Its begin byte by byte, then the rest.
                let (begin, rest) = bytes.split_at(bytes.len().min(6));
                let mut pieces: Vec<_> = begin.iter().map(|b| Piece::Bytes(vec![*b])).collect();
                pieces.push(Piece::Bytes(rest.to_vec()));
                pieces
            }
            piece => vec![piece],
        };
        for piece in pieces {
            let after = p.dice.from_to(self.delay_ns / 4, self.delay_ns * 2);
            p.last_due = (now_ns() + after).max(p.last_due + 1);
            self.due.push((p.last_due, Arrives { pipe }));
            if let Piece::Bytes(bytes) = &piece {
                p.bytes += bytes.len();
            }
            p.under_way.push_back(piece);
        }
    }
}

/// One end of a stream; it reads the pipe beside the one that it writes.
#[derive(Debug)]
struct SimStream {
    streams: Streams,
    writes: usize,
}

impl ControlStream for SimStream {
    fn try_read(&self, into: &mut [u8]) -> io::Result<usize> {
        let mut state = self.streams.state();
        let p = &mut state.pipes[self.writes ^ 1];
        if p.is_reset {
            return Err(ErrorKind::ConnectionReset.into());
        }
        if p.arrived.is_empty() {
            return match p.has_ended {
                true => Ok(0),
                false => Err(ErrorKind::WouldBlock.into()),
            };
        }
        let n = into.len().min(p.arrived.len());
        for (to, from) in into.iter_mut().zip(p.arrived.drain(..n)) {
            *to = from;
        }
        p.writer.take().into_iter().for_each(Waker::wake);
        Ok(n)
    }

    fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        let mut state = self.streams.state();
        if state.pipes[self.writes ^ 1].is_reset {
            return Err(ErrorKind::ConnectionReset.into());
        }
        if state.pipes[self.writes].is_refused {
            return Err(ErrorKind::BrokenPipe.into());
        }
        let n = bytes.len().min(state.pipes[self.writes].room());
        if n == 0 {
            return Err(ErrorKind::WouldBlock.into());
        }
        state.send(self.writes, Piece::Bytes(bytes[..n].to_vec()));
        Ok(n)
    }

    fn shut(&self) {
        self.streams.state().send(self.writes, Piece::End);
    }

    fn ready(&self, interest: Interest) -> std::pin::Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(poll_fn(move |context| {
            let mut state = self.streams.state();
            let input = &mut state.pipes[self.writes ^ 1];
            let is_over = input.is_reset;
            let can_read = is_over || input.has_ended || !input.arrived.is_empty();
            if interest.is_readable() && !can_read {
                input.reader = Some(context.waker().clone());
            }
            let output = &mut state.pipes[self.writes];
            let can_write = is_over || output.is_refused || output.room() > 0;
            if interest.is_writable() && !can_write {
                output.writer = Some(context.waker().clone());
            }
            let is_ready =
                interest.is_readable() && can_read || interest.is_writable() && can_write;
            match is_ready {
                true => Poll::Ready(()),
                false => Poll::Pending,
            }
        }))
    }
}

impl Pipe {
    fn room(&self) -> usize {
        ROOM.saturating_sub(self.bytes + self.arrived.len())
    }
}

impl Drop for SimStream {
    fn drop(&mut self) {
        let mut state = self.streams.state();
        state.pipes[self.writes ^ 1].is_unread = true;
        state.send(self.writes, Piece::End);
    }
}

impl Connector for Streams {
    fn connect<'a>(
        &'a self,
        address: &'a str,
        _: Duration,
    ) -> std::pin::Pin<Box<dyn Future<Output = Connected> + Send + 'a>> {
        Box::pin(async move {
            let port = address
                .rsplit(':')
                .next()
                .and_then(|p| p.parse::<u16>().ok());
            let server = usize::from(port.unwrap_or_default().wrapping_sub(FIRST_PORT));
            let dialed = self.dial(server);
            let (stream, peer) = dialed.ok_or_else(|| ControlError::Connect {
                peer: address.to_owned(),
                source: Arc::new(ErrorKind::ConnectionRefused.into()),
            })?;
            let stream: Box<dyn ControlStream> = Box::new(stream);
            Ok((stream, peer))
        })
    }
}
