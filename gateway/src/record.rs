//! The gateway's own record of each request, beside the client's: `requests.csv`.
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

/// Name of the file.
pub const FILE: &str = "requests.csv";

/// Rest after which the file has all records.
const FLUSH: Duration = Duration::from_secs(1);
/// Records that wait for the disk at most.
const WAITING: usize = 1 << 16;

/// One request. Times are nanoseconds on [`fabric::clock`]; 0 where the event did not happen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestTimes {
    /// The request's head was read.
    pub arrived_ns: u64,
    /// The sample was issued to the dispatcher.
    pub issued_ns: u64,
    /// A NIC thread read the first token.
    pub first_ns: u64,
    /// A NIC thread read the end.
    pub last_ns: u64,
    /// The cluster's connection that brought the answer.
    pub node: Option<u32>,
    /// Tokens of the prompt.
    pub prompt: u32,
    /// Tokens of the answer.
    pub tokens: u32,
    /// The client went away before the end.
    pub is_left: bool,
}

/// The log of requests.
#[derive(Debug)]
pub struct RequestLog {
    records: Option<SyncSender<RequestTimes>>,
    dropped: Arc<AtomicU64>,
    thread: Option<JoinHandle<io::Result<()>>>,
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
        let write = move || write(file, &nodes, &waiting);
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

    /// Writes what waits, and returns the number of records that the disk was too slow for.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn finish(&mut self) -> io::Result<u64> {
        self.records = None;
        if let Some(thread) = self.thread.take() {
            let written = thread.join();
            written.unwrap_or_else(|_| Err(io::Error::other("its thread panicked")))?;
        }
        Ok(self.dropped.load(Ordering::Relaxed))
    }
}

fn write(file: File, nodes: &[String], waiting: &Receiver<RequestTimes>) -> io::Result<()> {
    let mut out = BufWriter::with_capacity(1 << 20, file);
    writeln!(
        out,
        "arrived_ns,issued_ns,first_token_ns,last_token_ns,node,prompt_tokens,tokens,left"
    )?;
    loop {
        let r = match waiting.recv_timeout(FLUSH) {
            Ok(times) => times,
            Err(RecvTimeoutError::Timeout) => {
                out.flush()?;
                continue;
            }
            Err(RecvTimeoutError::Disconnected) => return out.flush(),
        };
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
            u8::from(r.is_left)
        )?;
    }
}
