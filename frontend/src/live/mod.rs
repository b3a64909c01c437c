//! `--live`: a run looked at while it goes on, in a browser.
//!
//! Once a second, and only while somebody looks, the thread that watches the run anyway puts
//! together what is known of it ([`SoFar`]): from the same counters, and the same ticks, that the
//! run's own page is made of. Threads of a lower priority draw it. NIC threads know nothing of it.
//!
//! | file | what it is for |
//! | --- | --- |
//! | [`gather`] | what is known of a run that goes on |
//! | [`access`] | who may read it |
//! | [`server`] | HTTP: the page, and a stream of events |
//! | [`page`] | the page around the pictures, and its script |

mod access;
mod gather;
mod page;
mod server;

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
        mpsc,
    },
    time::{Duration, Instant},
};

use report::{Over, SoFar, State};
use tokio::sync::watch;

pub use access::FILE as KEY_FILE;
pub use gather::{Known, Moment};

/// The address that `--live` alone stands for.
pub const DEFAULT: &str = "127.0.0.1:9417";
/// Between two ticks of what is shown.
const EVERY: Duration = Duration::from_secs(1);
/// The end of a run waits no longer for those who look on.
const LINGER: Duration = Duration::from_secs(1);
/// How nice the threads that draw are to those that measure.
const NICE: libc::c_int = 10;

/// A run cannot be shown.
#[derive(Debug, thiserror::Error)]
pub enum LiveError {
    /// The address.
    #[error("--live {address}: {source}; name another one, or port 0 for any that is free")]
    Bind {
        /// Which.
        address: SocketAddr,
        /// What the system says.
        source: std::io::Error,
    },
    /// The page's key, which whoever looks on from another machine needs.
    #[error("--live: cannot write the page's key into {}: {source}", folder.display())]
    Key {
        /// The run's folder.
        folder: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// No thread.
    #[error("--live: cannot start a thread: {0}")]
    Thread(std::io::Error),
}

/// Parses the value of `--live`.
///
/// # Errors
/// A line that names the accepted format.
pub fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| match text {
        "tui" => format!(
            "there is no terminal screen: --live serves the page at {DEFAULT}, --live ADDRESS:PORT \
             elsewhere"
        ),
        _ => format!("expected ADDRESS:PORT, as in {DEFAULT}, not {text:?}"),
    })
}

/// Those who look on.
#[derive(Debug, Default)]
struct Onlookers {
    /// How many there are.
    looking: AtomicUsize,
    /// One of them has seen nothing yet.
    fresh: AtomicBool,
}

impl Onlookers {
    /// One more, until what is returned is dropped.
    fn one(self: &Arc<Self>) -> Onlooker {
        self.looking.fetch_add(1, Relaxed);
        self.fresh.store(true, Relaxed);
        Onlooker(self.clone())
    }
}

/// One who looks on.
#[derive(Debug)]
struct Onlooker(Arc<Onlookers>);

impl Drop for Onlooker {
    fn drop(&mut self) {
        self.0.looking.fetch_sub(1, Relaxed);
    }
}

/// The latest that is known, for those who draw it: what nobody has drawn yet is overwritten.
type Latest = watch::Receiver<Arc<SoFar>>;

/// A run that is shown while it goes on.
#[derive(Debug)]
pub struct LiveView {
    latest: watch::Sender<Arc<SoFar>>,
    onlookers: Arc<Onlookers>,
    shown: Option<Instant>,
    /// Says that whoever draws is done.
    done: mpsc::Receiver<()>,
    /// In words, where it is to be seen.
    pub note: String,
}

impl LiveView {
    /// Begins to show a run, of which nothing is known but `first`, and whose results go into
    /// `folder`.
    ///
    /// # Errors
    /// [`LiveError`]: nothing has begun.
    pub fn open(address: SocketAddr, folder: &Path, first: SoFar) -> Result<Self, LiveError> {
        let (latest, seen) = watch::channel(Arc::new(first));
        let onlookers = Arc::<Onlookers>::default();
        let (tell, done) = mpsc::channel();
        let bound = server::bind(address, folder)?;
        let note = bound.note();
        server::begin(bound, seen, onlookers.clone(), tell)?;
        Ok(LiveView {
            latest,
            onlookers,
            shown: None,
            done,
            note,
        })
    }

    /// Whether somebody looks on who has seen nothing for a second.
    pub fn due(&mut self) -> bool {
        if self.onlookers.looking.load(Relaxed) == 0 {
            return false;
        }
        let fresh = self.onlookers.fresh.swap(false, Relaxed);
        let due = fresh || self.shown.is_none_or(|at| at.elapsed() >= EVERY);
        if due {
            self.shown = Some(Instant::now());
        }
        due
    }

    /// This is known by now.
    pub fn show(&self, so_far: SoFar) {
        self.latest.send_replace(Arc::new(so_far));
    }

    /// Shows that everything was answered.
    pub fn ending(&self, so_far: Option<SoFar>) {
        let mut last = so_far.unwrap_or_else(|| (**self.latest.borrow()).clone());
        last.state = State::Ending;
        self.show(last);
    }

    /// The run is over. Waits until everybody has heard of it, but no longer than a second.
    pub fn end(self, over: Over) {
        let mut last = (**self.latest.borrow()).clone();
        last.state = State::Over(over);
        self.show(last);
        let _ = self.done.recv_timeout(LINGER);
    }
}

/// Lets every other thread go before the calling one.
fn be_nice() {
    // SAFETY: setpriority takes numbers and touches no memory. On Linux 0 is the calling thread
    // alone.
    let set = unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, NICE) };
    if set != 0 {
        tracing::debug!("the priority of the live view's thread could not be lowered");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_shown_at_an_address_alone() {
        assert!(address(DEFAULT).is_ok_and(|a| a.ip().is_loopback()));
        assert!(address("[::1]:0").is_ok());
        let wrong = address("9417").expect_err("no address");
        assert!(wrong.contains("ADDRESS:PORT"), "{wrong}");
        let gone = address("tui").expect_err("no terminal screen");
        assert!(gone.contains("--live serves the page"), "{gone}");
    }
}
