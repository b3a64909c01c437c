//! The gateway's own record of each request, beside the client's: `requests.csv`, and its totals.
//!
//! A thread of its own writes the file. If the disk is too slow, records are dropped and counted;
//! no request waits for them.

use std::{
    fs::File,
    io::{self, BufWriter, Write},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel},
    },
    thread::JoinHandle,
    time::Duration,
};

use crate::totals::{Counter, RequestTimes, Totals};

/// Name of the file.
pub const FILE: &str = "requests.csv";

/// Rest after which the file has all records.
const FLUSH: Duration = Duration::from_secs(1);
/// Records that wait for the disk at most.
const WAITING: usize = 1 << 16;

/// The log of requests.
#[derive(Debug)]
pub struct RequestLog {
    records: Option<SyncSender<RequestTimes>>,
    dropped: Arc<AtomicU64>,
    thread: Option<JoinHandle<io::Result<Totals>>>,
}

impl RequestLog {
    /// Creates the file in `folder`; `nodes` has the name of each connection's accelerator.
    ///
    /// # Errors
    /// The file cannot be made, or the thread cannot be started.
    pub fn create(folder: &Path, nodes: Vec<String>) -> io::Result<Self> {
        std::fs::create_dir_all(folder)?;
        let file = File::create(folder.join(FILE))?;
        let (records, waiting) = sync_channel(WAITING);
        let counter = Counter::new()?;
        let write = move || write(file, &nodes, &waiting, counter);
        let thread = std::thread::Builder::new().name("gateway-log".to_owned());
        Ok(RequestLog {
            records: Some(records),
            dropped: Arc::default(),
            thread: Some(thread.spawn(write)?),
        })
    }

    /// Queues a record.
    pub fn push(&self, times: &RequestTimes) {
        let sent = self
            .records
            .as_ref()
            .map(|records| records.try_send(*times));
        if let Some(Err(TrySendError::Full(_) | TrySendError::Disconnected(_))) = sent {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Writes what waits. Returns the totals, and the number of records that the disk was too slow
    /// for.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn finish(mut self) -> io::Result<(Totals, u64)> {
        self.records = None;
        let written = self.thread.take().map(JoinHandle::join);
        let panicked = |_| Err(io::Error::other("its thread panicked"));
        let totals = written.map_or(Ok(Totals::default()), |w| w.unwrap_or_else(panicked))?;
        Ok((totals, self.dropped.load(Ordering::Relaxed)))
    }
}

fn write(
    file: File,
    nodes: &[String],
    waiting: &Receiver<RequestTimes>,
    mut counter: Counter,
) -> io::Result<Totals> {
    let mut out = BufWriter::with_capacity(1 << 20, file);
    writeln!(
        out,
        "arrived_ns,issued_ns,first_token_ns,last_token_ns,node,prompt_tokens,tokens,end"
    )?;
    loop {
        let r = match waiting.recv_timeout(FLUSH) {
            Ok(times) => times,
            Err(RecvTimeoutError::Timeout) => {
                out.flush()?;
                continue;
            }
            Err(RecvTimeoutError::Disconnected) => {
                out.flush()?;
                return Ok(counter.totals());
            }
        };
        counter.add(&r);
        let node = r.node.and_then(|n| nodes.get(n as usize));
        writeln!(
            out,
            "{},{},{},{},{},{},{},{}",
            r.arrived_ns,
            r.issued_ns,
            r.first_ns,
            r.last_ns,
            node.map_or("", |n| n),
            r.prompt,
            r.tokens,
            r.end.word()
        )?;
    }
}
