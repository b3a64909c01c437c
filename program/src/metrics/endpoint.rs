//! The accelerator's endpoint of figures, from the program's start to its end.

use std::{io, net::SocketAddr, time::Duration};

use hyper::{Request, StatusCode};
use qdl::control::Token;
use tokio::sync::oneshot;

use super::{Figures, PATH};
use crate::web::{self, Access, words};

/// Longest connection: a client that does not read its answer loses the place.
const LONGEST: Duration = Duration::from_secs(10);

/// A served endpoint; dropping it ends its thread.
#[derive(Debug)]
pub struct Endpoint(#[allow(dead_code, reason = "its drop is the signal")] oneshot::Sender<()>);

impl Endpoint {
    /// Binds `address`, and serves what `read` returns at each scrape. Without a `token`, only this
    /// machine has access.
    ///
    /// # Errors
    /// The address is not this machine's, or taken, or no thread can be started.
    pub fn start(
        address: SocketAddr,
        token: Option<Token>,
        read: impl Fn() -> Figures + Clone + Send + 'static,
    ) -> io::Result<Self> {
        let (open, ended) = oneshot::channel();
        let bound = web::bind(address)?;
        let access = token.map_or(Access::Loopback, Access::Token);
        tracing::info!("metrics: http://{}{PATH}", bound.address);
        web::start("metrics", async move || {
            let over = async { drop(ended.await) };
            let site = || {
                let read = read.clone();
                move |request: &Request<_>| match request.uri().path() {
                    PATH => read().answer(request),
                    _ => words(StatusCode::NOT_FOUND, "Only /metrics is here.\n"),
                }
            };
            web::serve(bound, &access, LONGEST, over, site).await
        })?;
        Ok(Endpoint(open))
    }
}
