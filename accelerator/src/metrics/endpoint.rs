//! The accelerator's endpoint of figures, from the program's start to its end.

use std::{io, net::SocketAddr, time::Duration};

use hyper::StatusCode;
use tokio::sync::oneshot;

use super::{Figures, PATH, answer};
use crate::web::{self, Access, words};

/// Longest connection: a client that does not read its answer loses the place.
const LONGEST: Duration = Duration::from_secs(10);

/// The address of `metrics` cannot be served.
#[derive(Debug, thiserror::Error)]
#[error("metrics: {address}: {source}; name another address or port, or end its owner")]
pub struct EndpointError {
    /// The address in the configuration.
    pub address: SocketAddr,
    /// The error of the system.
    pub source: io::Error,
}

/// A served endpoint. Dropping it ends its thread.
#[derive(Debug)]
pub struct Endpoint(#[allow(dead_code, reason = "its drop is the signal")] oneshot::Sender<()>);

impl Endpoint {
    /// Binds `address`, and serves what `read` returns at each scrape.
    ///
    /// # Errors
    /// [`EndpointError`] names the key and the address.
    pub fn start(
        address: SocketAddr,
        read: impl Fn() -> Figures + Clone + Send + 'static,
    ) -> Result<Self, EndpointError> {
        let (open, ended) = oneshot::channel();
        let started = web::bind(address).and_then(|bound| {
            let (access, at) = (Access::keyless(bound.address), bound.address);
            let note = match &access {
                Access::Open => "; every host that reaches the address can read it",
                _ => "",
            };
            tracing::info!("metrics: http://{at}{PATH}{note}");
            web::start("metrics", async move || {
                let over = async { drop(ended.await) };
                let site = || {
                    let read = read.clone();
                    move |request: &hyper::Request<_>| match request.uri().path() {
                        PATH => answer(request, read()),
                        _ => words(
                            StatusCode::NOT_FOUND,
                            "There is nothing here: the figures are at /metrics.\n",
                        ),
                    }
                };
                web::serve(bound, &access, LONGEST, over, site).await
            })
        });
        let error = |source| EndpointError { address, source };
        started.map(|()| Endpoint(open)).map_err(error)
    }
}
