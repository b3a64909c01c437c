//! Whether the server takes requests: it may be busy, or away for a while, as in a restart.
//!
//! ```text
//!  429, 503 --> a sequence waits: busy --> accepted, or `busy_s` is over --\
//!  connection refused, 502 to 504, and a trial fails alike ----------------+--> away
//!       away: samples are given back; a trial each second --> back
//!       away for `ready_s`: overdue; a frontend without another node aborts its run
//! ```

use std::{
    sync::atomic::{AtomicUsize, Ordering::SeqCst},
    time::Duration,
};

use qdl::wire::Standing;
use tokio::{sync::watch, time::sleep};

use crate::Sequence;

/// Interval of checks whether the server is back, or a frontend still wants an answer.
pub(super) const LOOK: Duration = Duration::from_millis(200);

pub(super) struct ServerStanding {
    /// Sequences that wait because the server reports to be busy.
    waiting: AtomicUsize,
    /// Away, overdue, or neither.
    pub absence: watch::Sender<Standing>,
}

impl Default for ServerStanding {
    fn default() -> Self {
        ServerStanding {
            waiting: AtomicUsize::new(0),
            absence: watch::Sender::new(Standing::Takes),
        }
    }
}

impl ServerStanding {
    /// The standing of the node, for its frontends.
    pub fn of_node(&self) -> Standing {
        match (self.absence.borrow().clone(), self.waiting.load(SeqCst)) {
            (Standing::Takes, 1..) => Standing::Busy,
            (absence, _) => absence,
        }
    }

    /// The reason while the server is away.
    pub fn away(&self) -> Option<String> {
        self.absence.borrow().absence().map(str::to_owned)
    }

    /// Counts one more sequence that waits for a busy server, until the drop of the guard.
    pub fn busy(&self) -> impl Drop + '_ {
        struct Waiting<'a>(&'a AtomicUsize);
        impl Drop for Waiting<'_> {
            fn drop(&mut self) {
                self.0.fetch_sub(1, SeqCst);
            }
        }
        self.waiting.fetch_add(1, SeqCst);
        Waiting(&self.waiting)
    }

    /// Marks the server as away, unless it is known to be.
    pub fn leave(&self, why: &str) {
        self.absence.send_if_modified(|known| {
            let is_news = known.absence().is_none();
            if is_news {
                tracing::warn!("{why}; asked again each second");
                *known = Standing::Away(why.to_owned());
            }
            is_news
        });
    }

    /// Waits until the server is back or overdue, or no frontend wants the sequence. Returns the
    /// reason if the server is overdue.
    pub async fn back(&self, sequence: &Sequence) -> Option<String> {
        loop {
            match &*self.absence.borrow() {
                Standing::Away(_) if sequence.is_wanted() => {}
                Standing::Overdue(why) => return Some(why.clone()),
                _ => return None,
            }
            sleep(LOOK).await;
        }
    }
}
