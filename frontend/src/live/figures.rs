//! Figures of a run for `/metrics`, read from the counters at each scrape.

use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use fabric::os::lock;
use program::metrics::{Family, Figures};
use qdl::counters::Live;
use record::Ledger;
use tokio::{sync::Notify, time::timeout};

use crate::backend::Backend;

/// Maximum wait at the run's end for one more scrape by a reader as frequent as this.
const LAST_SCRAPE: Duration = Duration::from_secs(2);

#[derive(Default)]
struct Sources {
    engine: String,
    live: Option<Arc<Live>>,
    /// True if every engine counts tokens.
    counted: bool,
    /// `None` before the backend exists, and once its counts are held.
    backend: Option<Arc<dyn Backend>>,
    held: Ledger,
}

/// Figures of one run, during the run and at its end.
pub struct RunFigures {
    node: String,
    sources: Mutex<Sources>,
    scraped: Mutex<Option<Instant>>,
    scrape: Notify,
}

impl RunFigures {
    pub fn new(node: &str) -> Self {
        RunFigures {
            node: node.to_owned(),
            sources: Mutex::default(),
            scraped: Mutex::default(),
            scrape: Notify::new(),
        }
    }

    /// Sets the sources, once the backend exists.
    pub fn begin(&self, backend: Arc<dyn Backend>, live: Arc<Live>) {
        let engines = backend.engines();
        let mut names: Vec<_> = engines.iter().map(|(_, e)| e.name.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        *lock(&self.sources) = Sources {
            engine: names.join(","),
            live: Some(live),
            counted: engines.iter().all(|(_, e)| e.tokens),
            backend: Some(backend),
            held: Ledger::default(),
        };
    }

    /// Replaces the backend, which stops, by its counts.
    pub fn hold(&self, ledger: Ledger) {
        let mut sources = lock(&self.sources);
        (sources.backend, sources.held) = (None, ledger);
    }

    pub fn read(&self) -> Figures {
        *lock(&self.scraped) = Some(Instant::now());
        self.scrape.notify_waiters();
        let sources = lock(&self.sources);
        let held = || (sources.held, [0; 2]);
        let (ledger, [up, lost]) = sources.backend.as_ref().map_or_else(held, |b| b.figures());
        let mut figures = Figures::new("frontend", &self.node, &sources.engine);
        let done = ledger.answered + ledger.emptied;
        figures.add(Family::Samples, ledger.answered as f64);
        figures.add(Family::InFlight, ledger.issued.saturating_sub(done) as f64);
        let failures = [
            ("refused", ledger.refused.iter().sum()),
            ("redispatched", ledger.redispatched),
            ("emptied", ledger.emptied),
            ("lost_connections", ledger.lost_connections),
        ];
        figures.add_each(Family::Failures, failures);
        figures.add_each(Family::Connections, [("up", up), ("lost", lost)]);
        if let Some(live) = &sources.live {
            let shown = live.figures();
            let payload = [("out", shown.bytes_out), ("in", shown.bytes_in)];
            figures.add_each(Family::Payload, payload);
            if sources.counted {
                figures.add(Family::Tokens, shown.tokens as f64);
            }
            for (stage, times) in live.times() {
                figures.add_times(stage, &times);
            }
        }
        figures
    }

    /// Waits for one more scrape if there was one within [`LAST_SCRAPE`], so that a frequent reader
    /// gets the final figures.
    pub async fn wait_for_last_scrape(&self) {
        let last = *lock(&self.scraped);
        if last.is_some_and(|at| at.elapsed() < LAST_SCRAPE) {
            let _ = timeout(LAST_SCRAPE, self.scrape.notified()).await;
        }
    }
}
