//! `--live`: shows a run in progress in a browser.
//!
//! Once a second, and only with a viewer, the run's watching thread assembles the state ([`SoFar`])
//! from the counters and ticks of the final page. A thread of lower priority draws the page. NIC
//! threads are not involved.
//!
//! | module | purpose |
//! | --- | --- |
//! | [`gather`] | the state of a running run |
//! | [`figures`] | the figures of `/metrics` |
//! | [`server`] | the page, a stream of events, and the figures |
//! | [`page`] | the HTML around the charts, and its script |

mod figures;
mod gather;
mod page;
mod server;

use std::{
    net::SocketAddr,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
        mpsc,
    },
    time::{Duration, Instant},
};

use anyhow::Result;
use report::{RunEnd, SoFar, State};
use tokio::sync::{Semaphore, watch};

pub use figures::RunFigures;
pub use gather::{LiveRun, RunMoment};
pub use program::web::FILE as KEY_FILE;

/// Interval between updates.
const EVERY: Duration = Duration::from_secs(1);
/// Maximum wait for viewers and the last scrape at the end of a run.
const LINGER: Duration = Duration::from_secs(3);

#[derive(Debug)]
struct Viewers {
    /// Each viewer holds one of [`server::MOST_VIEWERS`] places.
    places: Arc<Semaphore>,
    /// True if a viewer has seen nothing yet.
    fresh: AtomicBool,
}

/// The latest state for the drawing thread; undrawn states are overwritten.
type Latest = watch::Receiver<Arc<SoFar>>;

/// A run shown in progress.
pub struct LiveView {
    latest: watch::Sender<Arc<SoFar>>,
    viewers: Arc<Viewers>,
    shown: Option<Instant>,
    done: mpsc::Receiver<()>,
    pub figures: Arc<RunFigures>,
    /// Note for the user, with the page's address.
    pub note: String,
}

impl LiveView {
    /// Starts to show a run with the initial state `first` and results in `folder`.
    pub fn open(address: SocketAddr, folder: &Path, first: SoFar) -> Result<Self> {
        let viewers = Arc::new(Viewers {
            places: Arc::new(Semaphore::new(server::MOST_VIEWERS)),
            fresh: AtomicBool::new(false),
        });
        let (tell, done) = mpsc::channel();
        let figures = Arc::new(RunFigures::new(&first.node));
        let (latest, seen) = watch::channel(Arc::new(first));
        let bound = server::bind(address, folder)?;
        let note = bound.note();
        server::begin(bound, seen, viewers.clone(), figures.clone(), tell)?;
        Ok(LiveView {
            latest,
            viewers,
            shown: None,
            done,
            figures,
            note,
        })
    }

    /// Whether a viewer needs an update: a new viewer, or a second has passed.
    pub fn due(&mut self) -> bool {
        if self.viewers.places.available_permits() == server::MOST_VIEWERS {
            return false;
        }
        let fresh = self.viewers.fresh.swap(false, Relaxed);
        let due = fresh || self.shown.is_none_or(|at| at.elapsed() >= EVERY);
        if due {
            self.shown = Some(Instant::now());
        }
        due
    }

    pub fn show(&self, so_far: SoFar) {
        self.latest.send_replace(Arc::new(so_far));
    }

    /// Publishes that all samples are answered.
    pub fn ending(&self, so_far: Option<SoFar>) {
        let mut last = so_far.unwrap_or_else(|| (**self.latest.borrow()).clone());
        last.state = State::Ending;
        self.show(last);
    }

    /// Publishes the end of the run, and waits until the viewers have got it ([`LINGER`] at most).
    pub fn end(self, over: RunEnd) {
        let mut last = (**self.latest.borrow()).clone();
        last.state = State::Over(over);
        self.show(last);
        let _ = self.done.recv_timeout(LINGER);
    }
}
