//! The lobby of a port: peers wait here until they have proved who they are.
//!
//! A lobby has a bounded number of places. When they run out, one more peer costs another its
//! place: the oldest that has sent nothing, else the oldest that has proved nothing, else the
//! oldest. A silent peer is a socket and no more, so that there can be many of them.
//!
//! A flood of silent peers keeps out no peer that speaks before the flood has filled all places:
//! 2,048 of them are filled in 0.1 s at 20,000 a second. The oldest goes, not one at random: an
//! honest peer speaks within a round trip, and each gets the same time to do it. At random one
//! honest peer in eleven loses one of 2,048 places within the first 10 ms of that flood.

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

/// Most peers taken from the listener in one turn. Each is a task or two for the runtime, which
/// runs 61 of them between two turns: with more of them a flood would fill its queue faster than it
/// is worked off, and sessions on the same thread would starve.
const TURN: usize = 16;
/// Stages of a guest.
const SILENT: u8 = 0;
const SPEAKS: u8 = 1;
const PROVED: u8 = 2;

/// A peer that has sent something, or whose time to do so is over.
pub(crate) struct Guest {
    pub stream: TcpStream,
    pub address: SocketAddr,
    /// When it connected.
    pub since_ns: u64,
    /// It has sent something.
    pub speaks: bool,
    pub proof: Proof,
}

/// A guest's stage, shared with its lobby.
#[derive(Clone, Debug, Default)]
pub(crate) struct Proof(Arc<AtomicU8>);

impl Proof {
    /// The guest has proved who it is: it gives way last.
    pub fn given(&self) {
        self.0.store(PROVED, Ordering::Relaxed);
    }

    fn stage(&self) -> u8 {
        self.0.load(Ordering::Relaxed)
    }
}

struct Place {
    stream: Weak<TcpStream>,
    task: AbortHandle,
    proof: Proof,
}

type Greeting<T> = Pin<Box<dyn Future<Output = T> + Send>>;
type Greet<T> = Arc<dyn Fn(Guest) -> Greeting<T> + Send + Sync>;
type Knock = io::Result<(TcpStream, SocketAddr)>;

/// See the module. `T` is what becomes of a guest.
pub(crate) struct Lobby<T> {
    /// The port, as messages name it.
    name: &'static str,
    listener: TcpListener,
    places: Box<dyn Fn() -> usize + Send + Sync>,
    patience: Duration,
    greet: Greet<T>,
    /// The number of the next guest.
    next: u64,
    /// Guests that were silent when they were last looked at, by their numbers.
    silent: BTreeMap<u64, Place>,
    speaking: BTreeMap<u64, Place>,
    guests: JoinSet<(u64, T)>,
    /// For what is refused here.
    pub quiet: Quiet,
}

impl<T: Send + 'static> Lobby<T> {
    /// Peers of `listener` have so many `places`, asked for when one more comes, and `patience` to
    /// send something. Then `greet` takes over. `refused` names what the log sums up.
    pub fn new<F: Future<Output = T> + Send + 'static>(
        (name, refused): (&'static str, &'static str),
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
            quiet: Quiet::new(refused),
        }
    }

    /// What becomes of the next guest that kept its place.
    pub async fn next(&mut self) -> T {
        let mut knocks = Vec::new();
        loop {
            // Guests that are through first: behind a flood's peers they would wait for ever.
            tokio::select! { biased;
                Some(done) = self.guests.join_next() => {
                    // An error is a guest that gave way: the log has it.
                    if let Ok((number, end)) = done {
                        self.silent.remove(&number);
                        self.speaking.remove(&number);
                        return end;
                    }
                }
                () = self.quiet.wait() => self.quiet.sum_up(now_ns()),
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
            // A port of both families writes IPv4 addresses as IPv6.
            Ok((stream, address)) => (stream, canonical(address)),
            // Out of descriptors, most likely: one is given back, or waited for.
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
            // Readiness alone may be a false alarm.
            let speaks = timeout(patience, stream.peek(&mut [0])).await.is_ok();
            own.0.store(SPEAKS, Ordering::Relaxed);
            let mut shared = stream;
            let stream = loop {
                match Arc::try_unwrap(shared) {
                    Ok(stream) => break stream,
                    // The lobby looks at it just now.
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
        let place = Place {
            stream: weak,
            task,
            proof,
        };
        self.silent.insert(number, place);
    }

    /// Shows one guest out. False where there is none.
    fn make_room(&mut self) -> bool {
        while let Some((number, place)) = self.silent.pop_first() {
            let stream = place.stream.upgrade();
            match stream.filter(|s| place.proof.stage() == SILENT && !has_sent(s)) {
                Some(stream) => {
                    // A reset: neither side keeps anything of the connection.
                    let _ = SockRef::from(&*stream).set_linger(Some(Duration::ZERO));
                    place.task.abort();
                    return true;
                }
                None => drop(self.speaking.insert(number, place)),
            }
        }
        let unproved = |(_, place): &(&u64, &Place)| place.proof.stage() < PROVED;
        let mut all = self.speaking.iter();
        let oldest = all
            .find(unproved)
            .or_else(|| self.speaking.first_key_value());
        let oldest = oldest.map(|(number, _)| *number);
        let place = oldest.and_then(|number| self.speaking.remove(&number));
        place.map(|place| place.task.abort()).is_some()
    }
}

/// The address by itself, where it is one of IPv4 within IPv6.
pub(crate) fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// Whether the peer has sent something that was not read yet: this process may have been the one
/// that slept.
fn has_sent(stream: &TcpStream) -> bool {
    let mut byte = [MaybeUninit::uninit()];
    matches!(SockRef::from(stream).peek(&mut byte), Ok(1..))
}

/// Waits for one peer, and takes those that are there, up to [`TURN`].
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

    /// A lobby whose guests prove themselves by a `p` and are let in by a second byte. The address
    /// of each is told when it is greeted, and again when it is let in.
    async fn lobby() -> (
        SocketAddr,
        Lobby<SocketAddr>,
        mpsc::UnboundedReceiver<SocketAddr>,
    ) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
        let port = listener.local_addr().expect("bound");
        let (tell, greeted) = mpsc::unbounded_channel();
        let patience = Duration::from_secs(60);
        let names = ("test", "refused");
        let lobby = Lobby::new(
            names,
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

    /// Waits until no more than so many of these still have their places.
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
        // The kernel takes them on, and this runtime has not looked yet.
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
        // Those who speak take the places of the silent, then of one another.
        let mut more = peers(port, 10 * PLACES, b"x");
        within(until_left(&mut silent, 0)).await;
        within(until_left(&mut more, PLACES - 1)).await;
        proved[0].write_all(b"x").expect("it has its place");
        let own = proved[0].local_addr().ok();
        assert_eq!(within(inside.recv()).await, own);
    }
}
