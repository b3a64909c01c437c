//! The flight recorder: what each thread decided, in a ring of its own, to be looked at when a run
//! has gone wrong or to be played again. `docs/flight.md` has the file's format.
//!
//! ```text
//! a thread: note(..) --> its own ring (one writer, no lock) --> dump(): flight-NODE.bin
//! ```
//!
//! Off, which it is unless somebody asks for it, a note is one load and a branch that is never
//! taken. On, it is a reading of the clock and four stores.

mod file;
mod ring;

use std::{
    cell::OnceCell,
    io,
    path::Path,
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{
            AtomicBool, AtomicU32,
            Ordering::{Acquire, Relaxed, Release},
        },
    },
};

use crate::clock::now_ns;

pub use file::{Flight, FlightError, ThreadFlight, VERSION};
use ring::Ring;
pub use ring::{RECORD_BYTES, Record};

/// Most threads that have a ring; what others note is not kept.
pub const MOST_THREADS: usize = 64;
/// The most that one ring may take, in MiB.
pub const MOST_MIB: usize = 1 << 12;

/// What was decided, or happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Kind {
    /// A rail was chosen by health for a sample of `size` bytes: its connection.
    Picked = 1,
    /// A request was queued: its connection, slot and bytes; `aux` is when LoadGen issued it,
    /// `count` how many connections were lost with it before.
    Posted = 2,
    /// A doorbell was rung for `count` requests.
    Rung = 3,
    /// `count` samples had to wait in the backlog, or were left to another thread.
    Waits = 4,
    /// A request (at an accelerator) or a response (at a frontend) arrived: its connection, slot
    /// and bytes; of a response `aux` holds its queueing (high half) and computing in microseconds.
    Arrived = 5,
    /// A batch of `count` samples went to the engine; `aux` is its worker.
    Batch = 6,
    /// A response was posted: its connection, slot and bytes, header included; `count` is 0 where
    /// more of it follows.
    Answered = 7,
    /// `count` samples were completed towards LoadGen.
    Completed = 8,
    /// A rail of accelerator `connection` changed its state: `slot` is its number, `size` the
    /// latency score in 65,536ths, `count` the states (from in the high byte, to in the low one).
    Rail = 9,
    /// A connection was lost; `size` is its epoch, `count` samples go again.
    Lost = 10,
    /// A connection was made, or made again; `size` is its epoch.
    Up = 11,
}

impl Kind {
    /// All of them.
    pub const ALL: [Kind; 11] = [
        Kind::Picked,
        Kind::Posted,
        Kind::Rung,
        Kind::Waits,
        Kind::Arrived,
        Kind::Batch,
        Kind::Answered,
        Kind::Completed,
        Kind::Rail,
        Kind::Lost,
        Kind::Up,
    ];

    /// From the number in a file; `None` of one that is not known.
    pub fn from_number(n: u8) -> Option<Kind> {
        Kind::ALL.into_iter().find(|k| *k as u8 == n)
    }

    /// As it is printed.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Picked => "picked",
            Kind::Posted => "posted",
            Kind::Rung => "rung",
            Kind::Waits => "waits",
            Kind::Arrived => "arrived",
            Kind::Batch => "batch",
            Kind::Answered => "answered",
            Kind::Completed => "completed",
            Kind::Rail => "rail",
            Kind::Lost => "lost",
            Kind::Up => "up",
        }
    }
}

/// Something is recorded in this process.
static ON: AtomicBool = AtomicBool::new(false);
/// Connections lost, for whoever dumps at a fault.
static FAULTS: AtomicU32 = AtomicU32::new(0);
static RECORDER: OnceLock<Recorder> = OnceLock::new();

thread_local! {
    /// This thread's ring; none where there were too many.
    static RING: OnceCell<Option<Arc<Ring>>> = const { OnceCell::new() };
}

struct Recorder {
    records: usize,
    rings: Mutex<Vec<(String, Arc<Ring>)>>,
}

/// Records from now on, `mib` MiB for each thread, for as long as the process lives. A second call
/// changes nothing.
pub fn start(mib: usize) {
    let records = (mib.clamp(1, MOST_MIB) << 20) / RECORD_BYTES;
    RECORDER.get_or_init(|| Recorder {
        records,
        rings: Mutex::default(),
    });
    ON.store(true, Release);
}

/// Whether anything is recorded.
pub fn is_on() -> bool {
    ON.load(Relaxed)
}

/// Makes this thread's ring now, where something is recorded: the first note of a thread does it
/// otherwise, and touches so many MiB in the midst of its work.
pub fn ready() {
    if is_on() {
        let _ = RING.try_with(|ring| ring.get_or_init(new_ring).is_some());
    }
}

/// Connections that were lost since it is on.
pub fn faults() -> u32 {
    FAULTS.load(Relaxed)
}

/// Notes a record whose time is now, where something is recorded. `what` makes it.
#[inline(always)]
pub fn note(what: impl FnOnce() -> Record) {
    if ON.load(Relaxed) {
        keep(what());
    }
}

#[cold]
#[inline(never)]
fn keep(mut record: Record) {
    if record.at_ns == 0 {
        record.at_ns = now_ns();
    }
    if record.kind == Kind::Lost as u8 {
        FAULTS.fetch_add(1, Relaxed);
    }
    // A thread that is ending has no ring any more.
    let _ = RING.try_with(|ring| {
        if let Some(ring) = ring.get_or_init(new_ring) {
            ring.push(&record);
        }
    });
}

/// This thread's ring, the first time that it notes something.
fn new_ring() -> Option<Arc<Ring>> {
    // It is on, and this is seen behind it.
    ON.load(Acquire);
    let recorder = RECORDER.get()?;
    let mut rings = recorder
        .rings
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    if rings.len() >= MOST_THREADS {
        return None;
    }
    let ring = Arc::new(Ring::new(recorder.records));
    let name = std::thread::current().name().unwrap_or("?").to_owned();
    rings.push((name, ring.clone()));
    Some(ring)
}

/// What all threads have recorded so far. Those that go on overwrite the oldest meanwhile: such
/// records are left out.
pub fn take(node: &str, first_ns: u64, connections: &[String]) -> Option<Flight> {
    let recorder = RECORDER.get()?;
    let rings = recorder
        .rings
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    let threads = rings.iter().map(|(name, ring)| {
        let (records, overwritten) = ring.read();
        ThreadFlight {
            name: name.clone(),
            records,
            overwritten,
        }
    });
    Some(Flight::now(
        node,
        first_ns,
        connections.to_vec(),
        threads.collect(),
    ))
}

/// Writes what was recorded so far; nothing where nothing is recorded.
///
/// # Errors
/// The file cannot be written.
pub fn dump(path: &Path, node: &str, first_ns: u64, connections: &[String]) -> io::Result<()> {
    match take(node, first_ns, connections) {
        Some(flight) => flight.write(path),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_noted_until_it_is_on_and_then_each_thread_has_its_own() {
        let record = |slot| Record {
            kind: Kind::Posted as u8,
            connection: 3,
            slot,
            size: 64,
            ..Record::default()
        };
        // Another test of this process may have turned it on; none does.
        assert!(!is_on());
        note(|| panic!("it is off"));
        assert!(take("n", 0, &[]).is_none());
        start(1);
        let threads: Vec<_> = (0..3u16)
            .map(|t| {
                let note_all = move || (0..100).for_each(|i| note(|| record(t * 100 + i)));
                let named = std::thread::Builder::new().name(format!("flight-{t}"));
                named.spawn(note_all).expect("starts")
            })
            .collect();
        threads.into_iter().for_each(|t| t.join().expect("joined"));
        note(|| Record {
            kind: Kind::Lost as u8,
            ..Record::default()
        });
        let flight = take("n", 7, &["acc/0".to_owned()]).expect("it is on");
        let mut own = flight
            .threads
            .iter()
            .filter(|t| t.name.starts_with("flight-"));
        assert!(own.clone().count() == 3 && own.all(|t| t.records.len() == 100));
        for t in flight
            .threads
            .iter()
            .filter(|t| t.name.starts_with("flight-"))
        {
            assert!(t.records.windows(2).all(|w| w[0].slot + 1 == w[1].slot));
            assert!(
                t.records
                    .windows(2)
                    .all(|w| w[0].at_ns <= w[1].at_ns && w[0].at_ns > 0)
            );
        }
        assert!(faults() >= 1);
    }

    #[test]
    fn kinds_have_numbers_that_stay() {
        for kind in Kind::ALL {
            assert_eq!(Kind::from_number(kind as u8), Some(kind));
        }
        assert_eq!((Kind::from_number(0), Kind::from_number(99)), (None, None));
        assert_eq!((Kind::Posted as u8, Kind::Up as u8), (2, 11));
    }
}
