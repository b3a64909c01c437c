//! HTTP server of the live page: the page at `/`, server-sent events at `/events`, each with the
//! full drawing, and figures at `/metrics`.
//!
//! One thread serves all viewers and draws each tick once. A slow viewer skips to the latest tick.
//! So viewers do not delay each other and memory is bounded: a connection holds at most the tick in
//! transmission and one waiting tick.

use std::{
    io,
    net::SocketAddr,
    path::Path,
    sync::{Arc, Mutex, atomic::Ordering::Relaxed, mpsc::Sender},
    time::Duration,
};

use anyhow::{Result, anyhow};
use bytes::Bytes;
use fabric::os::lock;
use futures_util::stream::unfold;
use http_body_util::{Full, StreamBody};
use hyper::{
    Request, StatusCode,
    body::{Frame, Incoming},
};
use program::{
    metrics,
    web::{self, Access, Answer, Bound, respond, words},
};
use report::State;
use tokio::{
    sync::{OwnedSemaphorePermit, watch},
    time::{Instant, timeout_at},
};

use super::{Latest, Viewers, figures::RunFigures, page};

pub(super) const MOST_VIEWERS: usize = 16;
/// Time limit for sending the last event.
const LAST: Duration = Duration::from_millis(800);

pub struct LiveListener {
    bound: Bound,
    access: Access,
}

/// Binds the address, so that address errors occur before the run.
pub fn bind(address: SocketAddr, folder: &Path) -> Result<LiveListener> {
    let bound =
        web::bind(address).map_err(|e| anyhow!("--live: {e}; port 0 takes any that is free"))?;
    let access = Access::of(bound.address, folder).map_err(|e| {
        let folder = folder.display();
        anyhow!("--live: cannot write the page's key into {folder}: {e}")
    })?;
    Ok(LiveListener { bound, access })
}

impl LiveListener {
    /// Returns the note for the user, with the page's address.
    pub fn note(&self) -> String {
        let address = self.bound.address;
        match &self.access {
            Access::Key(key) => format!(
                "live: http://{address}/; open the address in {}, which holds its key",
                key.file.display()
            ),
            Access::Loopback | Access::Token(_) => format!("live: http://{address}/"),
        }
    }
}

struct ConnectionContext {
    viewers: Arc<Viewers>,
    figures: Arc<RunFigures>,
    /// The latest tick as an event; empty before the first.
    events: watch::Receiver<DrawnEvent>,
    /// This connection's viewer place, held until the last byte is sent.
    place: Mutex<Option<OwnedSemaphorePermit>>,
}

#[derive(Clone, Debug, Default)]
struct DrawnEvent {
    bytes: Bytes,
    last: bool,
}

/// Serves on its own thread until the run ends, and then signals `done`.
pub fn begin(
    listener: LiveListener,
    latest: Latest,
    viewers: Arc<Viewers>,
    figures: Arc<RunFigures>,
    done: Sender<()>,
) -> Result<()> {
    let serve = async move || {
        let served = serve(listener, latest, viewers, figures).await;
        let _ = done.send(());
        served
    };
    web::start("live", serve).map_err(|e| anyhow!("--live: cannot start a thread: {e}"))
}

async fn serve(
    listener: LiveListener,
    latest: Latest,
    viewers: Arc<Viewers>,
    figures: Arc<RunFigures>,
) -> io::Result<()> {
    let (draw, events) = watch::channel(DrawnEvent::default());
    let over = async {
        drawing(latest, draw).await;
        figures.wait_for_last_scrape().await;
    };
    let site = || {
        let context = ConnectionContext {
            viewers: viewers.clone(),
            figures: figures.clone(),
            events: events.clone(),
            place: Mutex::default(),
        };
        move |request: &Request<Incoming>| answer(request, &context)
    };
    web::serve(listener.bound, &listener.access, Duration::MAX, over, site).await?;
    // A viewer's place is free once the viewer has the last event.
    let all = MOST_VIEWERS as u32;
    let _ = timeout_at(Instant::now() + LAST, viewers.places.acquire_many(all)).await;
    Ok(())
}

async fn drawing(mut latest: Latest, draw: watch::Sender<DrawnEvent>) {
    let mut number = 0u64;
    while latest.changed().await.is_ok() {
        let so_far = latest.borrow_and_update().clone();
        let last = matches!(so_far.state, State::Over(_));
        number += 1;
        draw.send_replace(DrawnEvent {
            bytes: page::event(number, &so_far),
            last,
        });
        if last {
            return;
        }
        // Let the viewers' tasks run first.
        tokio::task::yield_now().await;
    }
}

fn answer(request: &Request<Incoming>, context: &ConnectionContext) -> Answer {
    match request.uri().path() {
        "/" => respond(StatusCode::OK, page::TYPE, Full::new(page::html())),
        "/events" => events(context),
        metrics::PATH => context.figures.read().answer(request),
        _ => words(
            StatusCode::NOT_FOUND,
            "There is nothing here: / is the page, /events what it draws, /metrics its figures.\n",
        ),
    }
}

fn events(context: &ConnectionContext) -> Answer {
    let Ok(place) = context.viewers.places.clone().try_acquire_owned() else {
        return words(
            StatusCode::SERVICE_UNAVAILABLE,
            "Too many look on already; close one of the pages and load this one again.\n",
        );
    };
    let mut seen = context.events.clone();
    // Skip the old event: the new viewer makes the next event come at once.
    seen.borrow_and_update();
    *lock(&context.place) = Some(place);
    context.viewers.fresh.store(true, Relaxed);
    // Wait for an event only when the connection has room, and then take the latest event.
    let next = |seen: Option<watch::Receiver<DrawnEvent>>| async move {
        let mut seen = seen?;
        seen.changed().await.ok()?;
        let event = seen.borrow_and_update().clone();
        let frame = Ok(Frame::data(event.bytes));
        Some((frame, (!event.last).then_some(seen)))
    };
    let body = StreamBody::new(unfold(Some(seen), next));
    respond(StatusCode::OK, "text/event-stream", body)
}
