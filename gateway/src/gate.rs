//! What the threads of a gateway share: the cluster, the prompts' memory, limits and counts.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
};

use program::{
    metrics::{Family, Figures},
    web::Access,
};
use qdl::{request::OptionSet, run::Cluster};
use tokio_util::sync::CancellationToken;

use crate::{
    config::{GatewayConfig, TokenSizes},
    inbox::{Inbox, RequestId},
    prompts::Prompts,
    record::RequestLog,
    text::Text,
    totals::{RequestEnd, RequestTimes},
};

/// The shared parts of a gateway.
pub struct Gate {
    /// The section `gateway`.
    pub config: GatewayConfig,
    /// Name of the gateway's node.
    pub node: String,
    /// The model's name.
    pub model: String,
    /// Limits of the model.
    pub sizes: TokenSizes,
    /// The model's tokenizer; `None` where requests and answers are token ids.
    pub text: Option<Arc<Text>>,
    /// What requests must have, where they must have something.
    pub access: Option<Access>,
    /// The accelerators.
    pub cluster: Cluster,
    /// Options that all accelerators have.
    pub options: OptionSet,
    /// The accelerators are prefill and decode nodes.
    pub has_roles: bool,
    /// Memory of the prompts.
    pub prompts: Arc<Prompts>,
    /// Per thread: what NIC threads have read for it.
    pub inboxes: Arc<[Inbox]>,
    /// The log of requests, if there is one.
    pub log: Option<RequestLog>,
    /// The gateway's start: Unix time in seconds, and nanoseconds on [`fabric::clock`].
    pub started: u64,
    /// As `started`, in nanoseconds on [`fabric::clock`].
    pub began_ns: u64,
    /// Set at the gateway's end: new requests get status 503.
    pub is_draining: AtomicBool,
    /// Cancelled once no connection is served any more.
    pub closed: CancellationToken,
    /// Samples without an outcome.
    pub in_flight: AtomicUsize,
    /// Per thread: open connections.
    pub connections: Box<[AtomicUsize]>,
    /// Wakes the thread that accepts.
    pub closes: tokio::sync::Notify,
    /// Answers by kind of status.
    pub answers: AnswerCounts,
    /// Answers that went on elsewhere with other tokens.
    pub diverged: AtomicU64,
    /// Clients that read nothing for too long.
    pub stalled: AtomicU64,
    /// Tokens of all answers.
    pub tokens: AtomicU64,
    /// Requests whose clients went away.
    pub left: AtomicU64,
}

/// Numbers of answers.
#[derive(Debug, Default)]
pub struct AnswerCounts {
    /// Status 200.
    pub good: AtomicU64,
    /// Status 429.
    pub full: AtomicU64,
    /// Other statuses below 500.
    pub wrong: AtomicU64,
    /// Statuses from 500 on.
    pub failed: AtomicU64,
}

impl AnswerCounts {
    /// Counts an answer with this status.
    pub fn add(&self, status: u16) {
        let count = match status {
            200 => &self.good,
            429 => &self.full,
            500.. => &self.failed,
            _ => &self.wrong,
        };
        count.fetch_add(1, Ordering::Relaxed);
    }
}

impl Gate {
    /// Asks the accelerator of a sample to stop.
    pub fn cancel(&self, id: RequestId) {
        self.cluster.dispatcher().cancel(id.to_bits());
    }

    /// Records a request that has ended.
    pub fn record(&self, times: &RequestTimes) {
        let has_left = times.end == RequestEnd::Left;
        let counts = [
            (&self.tokens, u64::from(times.tokens)),
            (&self.left, u64::from(has_left)),
        ];
        for (count, n) in counts {
            count.fetch_add(n, Ordering::Relaxed);
        }
        if let Some(log) = &self.log {
            log.push(times);
        }
    }

    /// Counts a connection of a thread as closed.
    pub fn connection_closed(&self, thread: usize) {
        if let Some(open) = self.connections.get(thread) {
            open.fetch_sub(1, Ordering::Relaxed);
            self.closes.notify_one();
        }
    }

    /// Number of open connections.
    pub fn open_connections(&self) -> usize {
        let each = self.connections.iter();
        each.map(|open| open.load(Ordering::Relaxed)).sum()
    }

    /// Whether requests are answered: an accelerator is there, and the gateway does not end.
    pub fn is_healthy(&self) -> bool {
        !self.is_draining.load(Ordering::Relaxed) && self.cluster.dispatcher().connections_up() > 0
    }

    /// Figures of `/metrics`.
    pub fn figures(&self) -> Figures {
        let read = |n: &AtomicU64| n.load(Ordering::Relaxed);
        let AnswerCounts {
            good,
            full,
            wrong,
            failed,
        } = &self.answers;
        let mut figures = Figures::new("gateway", &self.node, "");
        figures.add(Family::Samples, read(good) as f64);
        let in_flight = self.in_flight.load(Ordering::Relaxed);
        figures.add(Family::InFlight, in_flight as f64);
        figures.add(Family::Tokens, read(&self.tokens) as f64);
        let ledger = self.cluster.dispatcher().counts();
        figures.add_each(
            Family::Failures,
            [
                ("status_429", read(full)),
                ("status_4xx", read(wrong)),
                ("status_5xx", read(failed)),
                ("diverged", read(&self.diverged)),
                ("stalled_client", read(&self.stalled)),
                ("left_client", read(&self.left)),
                ("redispatched", ledger.redispatched),
                ("lost_connection", ledger.lost_connections),
            ],
        );
        let up = self.cluster.dispatcher().connections_up();
        figures.add_each(
            Family::Connections,
            [("up", up as u64), ("http", self.open_connections() as u64)],
        );
        figures
    }
}
