//! Calls that may block: drivers, providers and files; and threads that wait for tasks.

use std::{io, time::Duration};

use futures_util::future::{BoxFuture, ready};
use tokio::{task::spawn_blocking, time::sleep};

/// Runs a future on a plain thread, which waits for its end.
pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build();
    // The error would be that of a descriptor, and a runtime without sockets has none.
    let runtime = runtime.expect("no descriptors");
    runtime.block_on(future)
}

/// The thread of calls that may block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Blocking {
    /// A second thread, so that the runtime's thread goes on with its sessions.
    #[default]
    SecondThread,
    /// The runtime's thread, after a time: a simulation, in which no call blocks.
    SameThread {
        /// Time until the call; zero for a call at once.
        after: Duration,
    },
}

impl Blocking {
    /// Runs `call`, also if the future is dropped.
    ///
    /// # Errors
    /// `call` panicked on the second thread.
    pub(crate) fn run<T: Send + 'static>(
        self,
        call: impl FnOnce() -> T + Send + 'static,
    ) -> BoxFuture<'static, io::Result<T>> {
        match self {
            Blocking::SecondThread => {
                let call = spawn_blocking(call);
                Box::pin(async { call.await.map_err(io::Error::other) })
            }
            Blocking::SameThread { after } if after.is_zero() => Box::pin(ready(Ok(call()))),
            Blocking::SameThread { after } => {
                let call = tokio::spawn(async move {
                    sleep(after).await;
                    call()
                });
                Box::pin(async { call.await.map_err(io::Error::other) })
            }
        }
    }
}
