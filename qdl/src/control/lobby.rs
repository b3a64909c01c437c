//! The lobby of a port: peers wait here until they have authenticated.
//!
//! A lobby has a bounded number of places. When it is full, a new peer evicts one: the oldest
//! silent peer, else the oldest unauthenticated one, else the oldest. A silent peer costs only a
//! socket, so there can be many places.
//!
//! A flood of silent peers cannot evict a peer that speaks before the flood has filled all places:
//! at 20,000 connections/s, 2,048 places fill in 0.1 s. The oldest peer is evicted, not a random
//! one: an honest peer speaks within a round trip, and each peer gets the same time. With random
//! eviction, one honest peer in eleven would lose its place within the first 10 ms of that flood.

use std::{
    collections::BTreeMap,
    future::{Future, poll_fn},
    io,
    mem::MaybeUninit,
    net::SocketAddr,
    pin::Pin,
    sync::{
        Arc, Weak,
        atomic::{AtomicU8, Ordering},
    },
    task::Poll,
    time::Duration,
};

use socket2::SockRef;
use tokio::{
    net::{TcpListener, TcpStream},
    task::{AbortHandle, JoinSet, yield_now},
    time::{sleep, timeout},
};

use super::quiet::Quiet;
use fabric::clock::now_ns;

/// Most peers accepted in one turn. Each peer starts one or two tasks, and the runtime runs 61
/// tasks between two turns. With a larger number, a flood would fill the task queue faster than the
/// runtime drains it, and sessions on the same thread would starve.
const TURN: usize = 16;
/// Stages of a guest.
const SILENT: u8 = 0;
const SPEAKS: u8 = 1;
const PROVED: u8 = 2;

/// A peer that has sent bytes, or whose time limit for the first byte has passed.
pub(crate) struct Guest {
    pub stream: TcpStream,
    pub address: SocketAddr,
    /// Time at which the peer connected.
    pub since_ns: u64,
    /// The peer has sent bytes.
    pub speaks: bool,
    pub proof: Proof,
}

/// A guest's stage, shared with its lobby.
#[derive(Clone, Debug, Default)]
pub(crate) struct Proof(Arc<AtomicU8>);

impl Proof {
    /// Marks the guest as authenticated, so that it is evicted last.
    pub(crate) fn given(&self) {
        self.0.store(PROVED, Ordering::Relaxed);
    }

    fn stage(&self) -> u8 {
        self.0.load(Ordering::Relaxed)
    }
}

struct WaitingGuest {
    stream: Weak<TcpStream>,
    task: AbortHandle,
    proof: Proof,
}

type Greeting<T> = Pin<Box<dyn Future<Output = T> + Send>>;
type Greet<T> = Arc<dyn Fn(Guest) -> Greeting<T> + Send + Sync>;
type Knock = io::Result<(TcpStream, SocketAddr)>;

/// The lobby of a port. `T` is the result of greeting a guest.
pub(crate) struct Lobby<T> {
    /// Name of the port in messages.
    name: &'static str,
    listener: TcpListener,
    places: Box<dyn Fn() -> usize + Send + Sync>,
    patience: Duration,
    greet: Greet<T>,
    /// Number of the next guest.
    next: u64,
    /// Guests that were silent at the last check, by number.
    silent: BTreeMap<u64, WaitingGuest>,
    speaking: BTreeMap<u64, WaitingGuest>,
    guests: JoinSet<(u64, T)>,
    /// Log of refusals, rate-limited.
    pub quiet: Quiet,
}

impl<T: Send + 'static> Lobby<T> {
    /// Makes a lobby for `listener`. `places` returns the number of places when a peer comes. A
    /// peer has `patience` to send bytes; then `greet` runs. `name` is the port's in messages.
    pub(crate) fn new<F: Future<Output = T> + Send + 'static>(
        name: &'static str,
        listener: TcpListener,
        places: impl Fn() -> usize + Send + Sync + 'static,
        patience: Duration,
        greet: impl Fn(Guest) -> F + Send + Sync + 'static,
    ) -> Self {
        Lobby {
            name,
            listener,
            places: Box::new(places),
            patience,
            greet: Arc::new(move |guest| Box::pin(greet(guest))),
            next: 0,
            silent: BTreeMap::new(),
            speaking: BTreeMap::new(),
            guests: JoinSet::new(),
            quiet: Quiet::default(),
        }
    }

    /// Waits for the next guest that kept its place, and returns the result of greeting it.
    pub(crate) async fn next(&mut self) -> T {
        let mut knocks = Vec::new();
        loop {
            // Takes finished guests first: behind a flood of new peers they would wait for ever.
            tokio::select! { biased;
                Some(done) = self.guests.join_next() => {
                    // An error means an evicted guest, which the log has reported.
                    if let Ok((number, end)) = done {
                        self.silent.remove(&number);
                        self.speaking.remove(&number);
                        return end;
                    }
                }
                () = take(&self.listener, &mut knocks) => {
                    for knock in knocks.drain(..) {
                        self.enter(knock).await;
                    }
                    yield_now().await;
                }
            }
        }
    }

    async fn enter(&mut self, knock: Knock) {
        let name = self.name;
        let (stream, address) = match knock {
            // A dual-stack port reports IPv4 addresses as IPv6.
            Ok((stream, address)) => (stream, canonical(address)),
            // Most likely no descriptor is left: free a descriptor, or wait.
            Err(e) => {
                let line = || format!("{name}: cannot accept: {e}");
                self.quiet.warn(now_ns(), line);
                if !self.make_room() {
                    sleep(Duration::from_millis(50)).await;
                }
                return;
            }
        };
        let inside = self.silent.len() + self.speaking.len();
        if inside >= (self.places)() {
            let line = || {
                format!(
                    "{name}: {inside} peers have not proved who they are: the oldest silent one \
                     gives way to {address}"
                )
            };
            self.quiet.warn(now_ns(), line);
            self.make_room();
        }
        let (number, since_ns, proof) = (self.next, now_ns(), Proof::default());
        self.next += 1;
        let stream = Arc::new(stream);
        let weak = Arc::downgrade(&stream);
        let (greet, patience, own) = (self.greet.clone(), self.patience, proof.clone());
        let task = self.guests.spawn(async move {
            // Readiness alone may be spurious.
            let speaks = timeout(patience, stream.peek(&mut [0])).await.is_ok();
            own.0.store(SPEAKS, Ordering::Relaxed);
            let mut shared = stream;
            let stream = loop {
                match Arc::try_unwrap(shared) {
                    Ok(stream) => break stream,
                    // The lobby is checking the stream at the moment.
                    Err(again) => shared = again,
                }
                yield_now().await;
            };
            let guest = Guest {
                stream,
                address,
                since_ns,
                speaks,
                proof: own,
            };
            (number, greet(guest).await)
        });
        let place = WaitingGuest {
            stream: weak,
            task,
            proof,
        };
        self.silent.insert(number, place);
    }

    /// Evicts one guest. False where there is none.
    fn make_room(&mut self) -> bool {
        while let Some((number, place)) = self.silent.pop_first() {
            let stream = place.stream.upgrade();
            match stream.filter(|s| place.proof.stage() == SILENT && !has_sent(s)) {
                Some(stream) => {
                    // Closes with a reset, so that neither side keeps state of the connection.
                    let _ = SockRef::from(&*stream).set_linger(Some(Duration::ZERO));
                    place.task.abort();
                    return true;
                }
                None => drop(self.speaking.insert(number, place)),
            }
        }
        let unproved = |(_, place): &(&u64, &WaitingGuest)| place.proof.stage() < PROVED;
        let mut all = self.speaking.iter();
        let oldest = all
            .find(unproved)
            .or_else(|| self.speaking.first_key_value());
        let oldest = oldest.map(|(number, _)| *number);
        let place = oldest.and_then(|number| self.speaking.remove(&number));
        place.map(|place| place.task.abort()).is_some()
    }
}

/// Converts an IPv4-mapped IPv6 address to IPv4.
pub(crate) fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// Whether unread bytes of the peer wait in the kernel: this process may have been too slow to read
/// them.
fn has_sent(stream: &TcpStream) -> bool {
    let mut byte = [MaybeUninit::uninit()];
    matches!(SockRef::from(stream).peek(&mut byte), Ok(1..))
}

/// Waits for a peer, and accepts up to [`TURN`] peers that are at hand.
async fn take(listener: &TcpListener, knocks: &mut Vec<Knock>) {
    poll_fn(|cx| {
        while knocks.len() < TURN
            && let Poll::Ready(knock) = listener.poll_accept(cx)
        {
            let failed = knock.is_err();
            knocks.push(knock);
            if failed {
                break;
            }
        }
        match knocks.is_empty() {
            true => Poll::Pending,
            false => Poll::Ready(()),
        }
    })
    .await;
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read, Write},
        net::TcpStream as Peer,
    };

    use tokio::{io::AsyncReadExt, sync::mpsc};

    use super::*;

    const PLACES: usize = 8;

    /// Makes a lobby whose guests authenticate with a `p` and enter with a second byte. The channel
    /// reports each guest's address when it is greeted, and again when it enters.
    async fn lobby() -> (
        SocketAddr,
        Lobby<SocketAddr>,
        mpsc::UnboundedReceiver<SocketAddr>,
    ) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
        let port = listener.local_addr().expect("bound");
        let (tell, greeted) = mpsc::unbounded_channel();
        let patience = Duration::from_secs(60);
        let lobby = Lobby::new(
            "test",
            listener,
            || PLACES,
            patience,
            move |mut guest| {
                let tell = tell.clone();
                async move {
                    if let Ok(b'p') = guest.stream.read_u8().await {
                        guest.proof.given();
                    }
                    let _ = tell.send(guest.address);
                    let _ = guest.stream.read_u8().await;
                    guest.address
                }
            },
        );
        (port, lobby, greeted)
    }

    fn peers(port: SocketAddr, n: usize, say: &[u8]) -> Vec<Peer> {
        let peer = |_| {
            let mut peer = Peer::connect(port).expect("taken on");
            peer.write_all(say).expect("room");
            peer
        };
        (0..n).map(peer).collect()
    }

    /// Waits until at most `most` of these peers have a place.
    async fn until_left(peers: &mut Vec<Peer>, most: usize) {
        let mut left = |peer: &mut Peer| {
            peer.set_nonblocking(true).expect("set");
            matches!(peer.read(&mut [0]), Err(e) if e.kind() == io::ErrorKind::WouldBlock)
        };
        while peers.len() > most {
            yield_now().await;
            peers.retain_mut(&mut left);
        }
    }

    async fn within<T>(wait: impl Future<Output = T>) -> T {
        timeout(Duration::from_secs(20), wait)
            .await
            .expect("in time")
    }

    #[tokio::test]
    async fn a_peer_that_has_spoken_keeps_its_place_though_nobody_has_looked() {
        let (port, mut lobby, _greeted) = lobby().await;
        // The kernel has accepted them, and this runtime has not polled yet.
        let first = peers(port, 1, b"xx");
        let mut silent = peers(port, 10 * PLACES, b"");
        let own = first[0].local_addr().expect("connected");
        assert_eq!(within(lobby.next()).await, own);
        let run = async { while lobby.next().await != own {} };
        tokio::select! {
            () = within(until_left(&mut silent, PLACES)) => {}
            () = run => panic!("nobody else spoke"),
        }
        assert!(silent.len() >= PLACES - 1, "only as many as it takes");
    }

    #[tokio::test]
    async fn peers_give_way_in_the_order_silent_unproved_proved() {
        let (port, mut lobby, mut greeted) = lobby().await;
        let (let_in, mut inside) = mpsc::unbounded_channel();
        tokio::spawn(async move { while let_in.send(lobby.next().await).is_ok() {} });
        let mut proved = peers(port, 1, b"p");
        let mut speaking = peers(port, 1, b"x");
        for _ in 0..2 {
            within(greeted.recv()).await.expect("greeted");
        }
        let mut silent = peers(port, 10 * PLACES, b"");
        within(until_left(&mut silent, PLACES - 2)).await;
        assert_eq!(silent.len(), PLACES - 2, "two places are taken");
        speaking[0].write_all(b"x").expect("it has its place");
        let own = speaking[0].local_addr().ok();
        assert_eq!(within(inside.recv()).await, own);
        // Speaking peers evict the silent ones, then each other.
        let mut more = peers(port, 10 * PLACES, b"x");
        within(until_left(&mut silent, 0)).await;
        within(until_left(&mut more, PLACES - 1)).await;
        proved[0].write_all(b"x").expect("it has its place");
        let own = proved[0].local_addr().ok();
        assert_eq!(within(inside.recv()).await, own);
    }
}
