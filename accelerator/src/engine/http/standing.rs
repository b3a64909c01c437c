//! Whether the server takes requests: it may be busy, or away for a while, as in a restart.
//!
//! ```text
//!  429, 503 --> a sequence waits: busy --> accepted, or `busy_s` is over --\
//!  connection refused, 502 to 504, and a trial fails alike ----------------+--> away
//!       away: samples are given back; a trial each second --> back, or `ready_s` is over: the end
//! ```

use std::{
    sync::atomic::{AtomicUsize, Ordering::SeqCst},
    time::Duration,
};

use qdl::wire::Standing;
use tokio::{sync::watch, time::sleep};

use crate::engine::Sequence;

/// Interval of checks whether the server is back, or a frontend still wants an answer.
pub(super) const LOOK: Duration = Duration::from_millis(200);

pub(super) struct ServerStanding {
    /// Sequences that wait because the server reports to be busy.
    waiting: AtomicUsize,
    /// The reason while the server is away.
    pub away: watch::Sender<Option<String>>,
}

impl Default for ServerStanding {
    fn default() -> Self {
        ServerStanding {
            waiting: AtomicUsize::new(0),
            away: watch::Sender::new(None),
        }
    }
}

impl ServerStanding {
    /// The standing of the node, for its frontends.
    pub fn of_node(&self) -> Standing {
        match (self.away(), self.waiting.load(SeqCst)) {
            (Some(why), _) => Standing::Away(why),
            (None, 0) => Standing::Takes,
            (None, _) => Standing::Busy,
        }
    }

    /// The reason while the server is away.
    pub fn away(&self) -> Option<String> {
        self.away.borrow().clone()
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

    /// Marks the server as away.
    pub fn leave(&self, why: &str) {
        let before = self.away.send_replace(Some(why.to_owned()));
        if before.is_none() {
            tracing::warn!("{why}; asked again each second");
        }
    }

    /// Waits until the server is back, or no frontend wants the sequence.
    pub async fn back(&self, sequence: &Sequence) {
        while self.away().is_some() && sequence.is_wanted() {
            sleep(LOOK).await;
        }
    }
}
