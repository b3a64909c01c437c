//! The bare fabric contract as a contender: post, flush, poll, grants.

use std::{
    collections::VecDeque,
    net::TcpStream,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use anyhow::{Context, Result, bail, ensure};
use fabric::{
    Endpoint, Event, Flushed, Grants, Imm, Link, Post, Region, SourceId, Window,
    clock::now_ns,
    tcp::{TcpKeys, link},
};

use crate::meter::{Deadline, Meter, SAMPLES, Shape};

/// Most events that one poll takes from a connection. With a small number, the peer works on some
/// messages while this end handles the others.
const BUDGET: usize = 128;

struct Connection {
    link: Link,
    window: Window,
    blocked: bool,
    waiting: VecDeque<Post>,
    posted_ns: Vec<u64>,
    free: Vec<u16>,
}

impl Connection {
    /// `stride` and `peer_stride`: bytes of a slot here and at the peer. `source` has the payloads.
    fn new(
        stream: TcpStream,
        slots: usize,
        stride: usize,
        peer_stride: usize,
        source: Arc<Region>,
    ) -> Result<Self> {
        let region = Arc::new(Region::new(slots * stride)?);
        region.prefault();
        let window = Window::new(region, 0, stride, Arc::new(Grants::new(slots)))?;
        let endpoint = Endpoint {
            window: window.clone(),
            sources: vec![source],
            peer_slots: slots,
            peer_stride,
            peer_stream: fabric::wire::Stream::None,
            send_depth: slots.max(8),
        };
        Ok(Connection {
            link: link(stream, endpoint, &TcpKeys::default()).context("link")?,
            window,
            blocked: false,
            waiting: VecDeque::with_capacity(slots),
            posted_ns: vec![0; slots],
            free: (0..slots as u16).rev().collect(),
        })
    }

    fn post(&mut self, post: Post) -> Result<()> {
        if self.waiting.is_empty() && self.link.tx.room() > 0 {
            self.link.tx.post(&post)?;
        } else {
            self.waiting.push_back(post);
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        loop {
            self.blocked = self.link.tx.flush()? == Flushed::Blocked;
            if self.waiting.is_empty() || self.link.tx.room() == 0 {
                return Ok(());
            }
            while self.link.tx.room() > 0
                && let Some(post) = self.waiting.pop_front()
            {
                self.link.tx.post(&post)?;
            }
        }
    }
}

/// Puts the immediates of arrived messages into `arrived`; errors if the connection broke.
fn poll(connection: &mut Connection, arrived: &mut Vec<Imm>) -> Result<()> {
    arrived.clear();
    let mut broken = None;
    connection.link.rx.poll(BUDGET, &mut |event| match event {
        Event::Arrived { imm, .. } => arrived.push(imm),
        Event::Control(_) => {}
        Event::Broken(b) => broken = Some(b),
    });
    match broken {
        Some(b) => bail!("the fabric's connection broke: {b}"),
        None => Ok(()),
    }
}

pub struct Client {
    shape: Shape,
    connections: Vec<Connection>,
    arrived: Vec<Imm>,
    sent: u64,
}

impl Client {
    pub fn new(shape: Shape, streams: Vec<TcpStream>) -> Result<Self> {
        let source = Arc::new(Region::new(SAMPLES * shape.request)?);
        source.prefault();
        let connections = streams
            .into_iter()
            .map(|s| {
                Connection::new(
                    s,
                    shape.slots(),
                    shape.response,
                    shape.request,
                    source.clone(),
                )
            })
            .collect::<Result<_>>()?;
        Ok(Client {
            shape,
            connections,
            arrived: Vec::with_capacity(BUDGET),
            sent: 0,
        })
    }

    fn send(&mut self, connection: usize, now: u64) -> Result<()> {
        let c = &mut self.connections[connection];
        let slot = c.free.pop().context("a free slot")?;
        let use_count = c.window.grants().open(slot).context("a closed grant")?;
        c.posted_ns[usize::from(slot)] = now;
        c.post(Post {
            source: SourceId(0),
            offset: Shape::sample(self.sent) * self.shape.request,
            len: self.shape.request as u32,
            at: 0,
            imm: Imm::new(slot, use_count),
        })?;
        self.sent += 1;
        Ok(())
    }

    /// Runs a round: replaces each answered request until the deadline, then awaits all answers.
    pub fn round(&mut self, deadline: Deadline, meter: &mut Meter) -> Result<()> {
        let n = self.connections.len();
        let mut now = now_ns();
        for i in 0..self.shape.in_flight {
            self.send(i % n, now)?;
        }
        for c in &mut self.connections {
            c.flush()?;
        }
        let mut in_flight = self.shape.in_flight;
        let mut arrived = std::mem::take(&mut self.arrived);
        while in_flight > 0 {
            for i in 0..n {
                let c = &mut self.connections[i];
                poll(c, &mut arrived)?;
                if arrived.is_empty() {
                    if c.blocked {
                        c.flush()?;
                    }
                    continue;
                }
                now = now_ns();
                for imm in &arrived {
                    let c = &mut self.connections[i];
                    meter.answer(c.posted_ns[usize::from(imm.slot())], now);
                    c.free.push(imm.slot());
                }
                if deadline.goes_on(now, meter.answered) {
                    let next = self.shape.next(i);
                    for _ in 0..arrived.len() {
                        self.send(next, now)?;
                    }
                    self.connections[next].flush()?;
                } else {
                    in_flight -= arrived.len();
                    ensure!(
                        now < deadline.at_ns + 10_000_000_000,
                        "the fabric did not answer"
                    );
                }
            }
        }
        self.arrived = arrived;
        Ok(())
    }

    /// Counters of the sending and the receiving half of the first connection, as text.
    pub fn counts(&self) -> String {
        let link = &self.connections[0].link;
        format!("{:?}\n{:?}", link.tx.counts(), link.rx.counts())
    }
}

pub struct Server {
    shape: Shape,
    connections: Vec<Connection>,
    arrived: Vec<Imm>,
}

impl Server {
    pub fn new(shape: Shape, streams: Vec<TcpStream>) -> Result<Self> {
        let connections = streams
            .into_iter()
            .map(|s| {
                let output = Arc::new(Region::new(shape.slots() * shape.response)?);
                output.prefault();
                let c = Connection::new(s, shape.slots(), shape.request, shape.response, output)?;
                for slot in 0..shape.slots() as u16 {
                    c.window.grants().open(slot);
                }
                Ok(c)
            })
            .collect::<Result<_>>()?;
        Ok(Server {
            shape,
            connections,
            arrived: Vec::with_capacity(BUDGET),
        })
    }

    pub fn serve(&mut self, stop: &AtomicBool) -> Result<()> {
        while !stop.load(Ordering::Relaxed) {
            for c in &mut self.connections {
                poll(c, &mut self.arrived)?;
                if self.arrived.is_empty() && !c.blocked {
                    continue;
                }
                for imm in &self.arrived {
                    c.window.grants().open(imm.slot()).context("a slot")?;
                    c.post(Post {
                        source: SourceId(0),
                        offset: usize::from(imm.slot()) * self.shape.response,
                        len: self.shape.response as u32,
                        at: 0,
                        imm: *imm,
                    })?;
                }
                c.flush()?;
            }
        }
        Ok(())
    }
}
