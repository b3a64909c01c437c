//! `--live`: shows a run in progress in a browser.
//!
//! Once a second, and only with a viewer, the run's watching thread assembles the state ([`SoFar`])
//! from the counters and ticks of the final page. A thread of lower priority draws it. NIC threads
//! are not involved.
//!
//! | module | purpose |
//! | --- | --- |
//! | [`gather`] | the state of a running run |
//! | [`access`] | access rules |
//! | [`server`] | HTTP: the page, and a stream of events |
//! | [`page`] | the HTML around the charts, and its script |

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

use report::{RunEnd, SoFar, State};
use tokio::sync::watch;

pub use access::FILE as KEY_FILE;
pub use gather::{Known, Moment};

/// Default address of `--live`.
pub const DEFAULT: &str = "127.0.0.1:9417";
/// Interval between updates.
const EVERY: Duration = Duration::from_secs(1);
/// Maximum wait for viewers at the end of a run.
const LINGER: Duration = Duration::from_secs(1);
/// Nice value of the drawing thread.
const NICE: libc::c_int = 10;

/// Error: the run cannot be shown.
#[derive(Debug, thiserror::Error)]
pub enum LiveError {
    /// The address cannot be bound.
    #[error("--live {address}: {source}; name another one, or port 0 for any that is free")]
    Bind {
        /// The requested address.
        address: SocketAddr,
        /// The system's error.
        source: std::io::Error,
    },
    /// The page's key for remote viewers cannot be written.
    #[error("--live: cannot write the page's key into {}: {source}", folder.display())]
    Key {
        /// The run's folder.
        folder: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// The thread cannot be started.
    #[error("--live: cannot start a thread: {0}")]
    Thread(std::io::Error),
}

/// Parses the value of `--live`.
///
/// # Errors
/// The text is no address; the error names the accepted format.
pub fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| match text {
        "tui" => format!(
            "there is no terminal screen: --live serves the page at {DEFAULT}, --live ADDRESS:PORT \
             elsewhere"
        ),
        _ => format!("expected ADDRESS:PORT, as in {DEFAULT}, not {text:?}"),
    })
}

/// Counts the viewers.
#[derive(Debug, Default)]
struct Onlookers {
    /// Number of viewers.
    looking: AtomicUsize,
    /// True if a viewer has seen nothing yet.
    fresh: AtomicBool,
}

impl Onlookers {
    /// Registers a viewer until the returned value is dropped.
    fn one(self: &Arc<Self>) -> Onlooker {
        self.looking.fetch_add(1, Relaxed);
        self.fresh.store(true, Relaxed);
        Onlooker(self.clone())
    }
}

/// A registered viewer.
#[derive(Debug)]
struct Onlooker(Arc<Onlookers>);

impl Drop for Onlooker {
    fn drop(&mut self) {
        self.0.looking.fetch_sub(1, Relaxed);
    }
}

/// The latest state for the drawing thread; undrawn states are overwritten.
type Latest = watch::Receiver<Arc<SoFar>>;

/// A run shown in progress.
#[derive(Debug)]
pub struct LiveView {
    latest: watch::Sender<Arc<SoFar>>,
    onlookers: Arc<Onlookers>,
    shown: Option<Instant>,
    /// Signals that the drawing thread is done.
    done: mpsc::Receiver<()>,
    /// Note for the user, with the page's address.
    pub note: String,
}

impl LiveView {
    /// Starts to show a run with the initial state `first` and results in `folder`.
    ///
    /// # Errors
    /// [`LiveError`] if the address cannot be bound, the key written, or the thread started.
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

    /// Whether a viewer needs an update: a new viewer, or a second has passed.
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

    /// Publishes a state.
    pub fn show(&self, so_far: SoFar) {
        self.latest.send_replace(Arc::new(so_far));
    }

    /// Publishes that all samples are answered.
    pub fn ending(&self, so_far: Option<SoFar>) {
        let mut last = so_far.unwrap_or_else(|| (**self.latest.borrow()).clone());
        last.state = State::Ending;
        self.show(last);
    }

    /// Publishes the end, and waits at most a second until the viewers have it.
    pub fn end(self, over: RunEnd) {
        let mut last = (**self.latest.borrow()).clone();
        last.state = State::Over(over);
        self.show(last);
        let _ = self.done.recv_timeout(LINGER);
    }
}

/// Lowers the priority of the calling thread.
fn be_nice() {
    // SAFETY: setpriority takes integers and touches no memory. On Linux, 0 is the calling thread
    // only.
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
