//! A thread that serves connections.
//!
//! ```text
//!  connection -> service: parse, store the prompt, issue ---------> dispatcher
//!       ^                        |                                      |
//!       +--- answer <--- place of the request <--- inbox <--- NIC threads
//! ```

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use fabric::clock::now_ns;
use slab::Slab;
use tokio::{
    net::TcpStream,
    sync::mpsc::UnboundedReceiver,
    task::{AbortHandle, LocalSet},
};

use crate::{gate::Gate, requests::Requests, service};

/// Time between two looks for clients that read nothing.
const SWEEP: Duration = Duration::from_secs(2);

/// One thread's connections.
struct Worker {
    gate: Arc<Gate>,
    thread: usize,
    requests: Rc<Requests>,
    connections: RefCell<Slab<Connection>>,
}

/// A connection that a sweep may end.
struct Connection {
    task: Option<AbortHandle>,
    /// Since when a write has waited for the client, in nanoseconds; 0 if none waits.
    blocked_ns: Rc<Cell<u64>>,
}

/// Serves the connections that `accepted` brings, on this thread, until it is closed and the gate
/// is.
pub async fn run(
    gate: Arc<Gate>,
    thread: u8,
    mut accepted: UnboundedReceiver<std::net::TcpStream>,
) {
    let requests = Rc::new(Requests::new(gate.clone(), thread));
    let worker = Rc::new(Worker {
        gate,
        thread: usize::from(thread),
        requests: requests.clone(),
        connections: RefCell::default(),
    });
    let sweep = worker.clone();
    let tasks = LocalSet::new();
    tasks.spawn_local(async move { requests.take_answers().await });
    tasks.spawn_local(async move {
        loop {
            tokio::time::sleep(SWEEP).await;
            sweep.end_stalled();
        }
    });
    let serve = async {
        while let Some(stream) = accepted.recv().await {
            match TcpStream::from_std(stream) {
                Ok(stream) => worker.clone().serve(stream),
                // The runtime takes no descriptor more.
                Err(_) => worker.gate.connection_closed(worker.thread),
            }
        }
        worker.gate.closed.cancelled().await;
    };
    tasks.run_until(serve).await;
}

impl Worker {
    fn serve(self: Rc<Self>, stream: TcpStream) {
        // Ignore the error: the connection is gone already, which the first read says.
        let _ = stream.set_nodelay(true);
        let blocked_ns = Rc::new(Cell::new(0));
        let key = self.connections.borrow_mut().insert(Connection {
            task: None,
            blocked_ns: blocked_ns.clone(),
        });
        let guard = OpenConnection(self.clone(), key);
        let served = service::serve(self.requests.clone(), stream, blocked_ns);
        let task = tokio::task::spawn_local(async move {
            served.await;
            drop(guard);
        });
        if let Some(connection) = self.connections.borrow_mut().get_mut(key) {
            connection.task = Some(task.abort_handle());
        }
    }

    /// Ends the connections of clients that read nothing for too long.
    fn end_stalled(&self) {
        let limit_ns = self.gate.config.stall_s.saturating_mul(1_000_000_000);
        let now = now_ns();
        for (_, connection) in &*self.connections.borrow() {
            let since = connection.blocked_ns.get();
            if since != 0
                && now.saturating_sub(since) > limit_ns
                && let Some(task) = &connection.task
            {
                self.gate.stalled.fetch_add(1, Ordering::Relaxed);
                task.abort();
            }
        }
    }
}

/// Counts a connection as open.
struct OpenConnection(Rc<Worker>, usize);

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.connections.borrow_mut().try_remove(self.1);
        self.0.gate.connection_closed(self.0.thread);
    }
}
