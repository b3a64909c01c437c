//! The frontend's look-out for one accelerator: opens its lanes, quarantines lost ones until both ends
//! have let go, opens them again, and comes back to an accelerator that was gone.

use std::{
    collections::HashMap,
    sync::{Arc, PoisonError},
    time::Duration,
};

use tokio::{
    sync::{mpsc, watch},
    task::JoinSet,
    time::Instant,
};

use super::{
    common::{Common, Loss},
    face::ClusterError,
    health::LaneEnd,
    transport::Prepared,
};
use crate::{
    control::{
        ClientEvent, ClientHandle, ClientSession, ControlError, LaneGrant, LaneRequest, Scores,
    },
    fabric::{Broken, Link},
    quarantine::Quarantine,
};

/// First pause before something is tried again; doubles up to the last.
const FIRST_RETRY: Duration = Duration::from_millis(50);
const LAST_RETRY: Duration = Duration::from_secs(1);

/// A lane's local side was destroyed.
#[derive(Debug)]
pub(super) struct LocalLoss {
    /// Index of the lane within the peer.
    pub index: u16,
    pub epoch: u32,
    pub cause: Broken,
    pub again: usize,
}

struct PeerLane {
    /// Index among all lanes.
    lane: usize,
    rail: usize,
    /// Which of the accelerator's NICs to ask for, and which of its GPUs.
    turn: u16,
    gpu_turn: u16,
    quarantine: Quarantine,
    /// Its local side was not taken down in time, and the session it was opened in is over: it is nobody's until it is down.
    stuck: bool,
    /// It was granted, and its data connection is being made.
    connecting: bool,
    /// The next attempt to open it, and the pause before the one after.
    retry_at: Instant,
    pause: Duration,
}

impl PeerLane {
    /// It is tried again after a pause, twice as long as the last.
    fn later(&mut self) {
        self.pause = (self.pause * 2).min(LAST_RETRY);
        self.retry_at = Instant::now() + self.pause;
    }
}

/// See the module.
pub(super) struct PeerTask {
    index: usize,
    common: Arc<Common>,
    losses: mpsc::UnboundedReceiver<LocalLoss>,
    lanes: Vec<PeerLane>,
    /// Lanes that were granted and whose data connection is being made. While a session is served nobody waits for them: a
    /// path that swallows everything must not hold up the lanes of the others.
    connecting: JoinSet<Connected>,
}

/// A grant and what came of connecting to it.
type Connected = (LaneGrant, Result<Link, ClusterError>);

impl PeerTask {
    pub fn new(
        index: usize,
        common: Arc<Common>,
        losses: mpsc::UnboundedReceiver<LocalLoss>,
    ) -> Self {
        let seen_nics = common.config.nics.len();
        let mut seen = vec![0usize; seen_nics];
        let lanes = common
            .lane_of
            .iter()
            .enumerate()
            .filter(|(_, (peer, _))| *peer == index)
            .map(|(lane, _)| {
                let rail = common.dispatcher().lane(lane).rail;
                let on_nic = &mut seen[rail];
                let connection = *on_nic;
                *on_nic += 1;
                let nic = &common.config.nics[rail];
                PeerLane {
                    lane,
                    rail,
                    // NICs are paired by their place. Where the accelerator has more of them, a NIC's connections go
                    // round those that are left over.
                    turn: (rail + connection * seen_nics) as u16,
                    gpu_turn: if nic.all_gpus() { connection as u16 } else { 0 },
                    quarantine: Quarantine::new(),
                    stuck: false,
                    connecting: false,
                    retry_at: Instant::now(),
                    pause: FIRST_RETRY,
                }
            })
            .collect();
        PeerTask {
            index,
            common,
            losses,
            lanes,
            connecting: JoinSet::new(),
        }
    }

    /// Opens every lane of a fresh session, then says that all are up.
    pub async fn open_all(&mut self, session: &ClientSession) -> Result<(), ClusterError> {
        let all: Vec<_> = (0..self.lanes.len())
            .filter(|i| !self.lanes[*i].stuck)
            .collect();
        if all.is_empty() {
            return Err(ClusterError::Slots(format!(
                "no connection to {} has been taken down yet",
                session.peer_node
            )));
        }
        let mut failed = self.open(&session.handle, &all).await.err();
        while let Some(done) = self.connecting.join_next().await {
            let done = done.map_err(std::io::Error::other)?;
            failed = failed.or(self.connected(&session.handle, done).err());
        }
        if let Some(e) = failed {
            return Err(e);
        }
        let deadline = self.common.config.deadlines.connect();
        session.handle.start().within(deadline).await?;
        Ok(())
    }

    /// Looks after the accelerator until the cluster closes.
    pub async fn run(mut self, mut session: ClientSession, mut stopped: watch::Receiver<bool>) {
        loop {
            let ended = tokio::select! {
                e = self.serve(&mut session) => Some(e),
                _ = stopped.wait_for(|s| *s) => None,
            };
            let Some(cause) = ended else {
                session.handle.bye();
                // Until the bye is out, or there is nobody to hear it.
                while session.events.next().await.is_some() {}
                return;
            };
            if self.common.is_closing() {
                return;
            }
            self.gone(&cause);
            session = tokio::select! {
                s = self.come_back() => s,
                _ = stopped.wait_for(|s| *s) => return,
            };
        }
    }

    /// Serves one session until it ends.
    async fn serve(&mut self, session: &mut ClientSession) -> ControlError {
        let handle = session.handle.clone();
        loop {
            let due = self.reopen_at();
            tokio::select! {
                event = session.events.next() => match event {
                    Some(ClientEvent::LaneLost { lane, epoch, cause }) => {
                        if let Some(l) = self.lanes.get(usize::from(lane)) {
                            let cause = Broken::GivenUp(format!("the accelerator lost it: {cause}"));
                            self.common.dispatcher().give_up(l.lane, epoch, cause);
                        }
                    }
                    Some(ClientEvent::LaneReset { lane, epoch }) => {
                        if let Some(l) = self.lanes.get_mut(usize::from(lane)) {
                            l.quarantine.reset_there(epoch);
                        }
                    }
                    Some(ClientEvent::Heartbeat(counters)) => {
                        self.common.peer(self.index).counters = Some(counters);
                    }
                    Some(ClientEvent::Scores(scores)) => self.told(&scores),
                    Some(ClientEvent::Gone(cause)) => return cause,
                    None => return self.over(&handle),
                },
                Some(loss) = self.losses.recv() => self.lost(&handle, &loss),
                Some(Ok(done)) = self.connecting.join_next() => {
                    let lane = done.0.lane;
                    match self.connected(&handle, done) {
                        Ok(()) => self.back(&format!("connection {lane} opened again")),
                        Err(e) => tracing::debug!("reopening connection {lane}: {e}"),
                    }
                }
                () = tokio::time::sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {
                    self.reopen(&handle).await;
                }
            }
        }
    }

    /// The accelerator's view of its interior and its NICs.
    fn told(&self, scores: &Scores) {
        let Some(rails) = self.common.rails.get() else {
            return;
        };
        let each = scores.rails.iter().flat_map(|r| {
            rails
                .at_nic(self.index, r.nic)
                .map(move |rail| (rail, r.score))
        });
        self.common
            .dispatcher()
            .told(self.index, scores.interior, each);
    }

    fn over(&self, handle: &ClientHandle) -> ControlError {
        handle.ended().unwrap_or_else(|| ControlError::Setting {
            key: "control",
            problem: format!(
                "the session with {} ended",
                self.common.peer(self.index).node
            ),
        })
    }

    /// The dispatcher has destroyed this end of a lane and sent its samples elsewhere.
    fn lost(&mut self, handle: &ClientHandle, loss: &LocalLoss) {
        self.report(loss);
        let Some(l) = self.lanes.get_mut(usize::from(loss.index)) else {
            return;
        };
        if std::mem::take(&mut l.stuck) {
            // The session that it was opened in is over: the peer knows of no such lane in this one.
            let epoch = l.quarantine.epoch();
            l.quarantine.lost(epoch);
            l.quarantine.reset_here(epoch);
            l.quarantine.reset_there(epoch);
        } else {
            if l.quarantine.lost(loss.epoch) {
                handle.lane_lost(loss.index, loss.epoch, &loss.cause.to_string());
            }
            l.quarantine.reset_here(loss.epoch);
            handle.lane_reset(loss.index, loss.epoch);
        }
        l.later();
    }

    fn report(&self, loss: &LocalLoss) {
        let node = {
            let mut peer = self.common.peer(self.index);
            // The first cause stands: the others of a dead peer follow from it.
            peer.lost.get_or_insert_with(|| Loss {
                at: self.common.began.elapsed(),
                cause: loss.cause.to_string(),
                by_silence: loss.cause.by_silence(),
            });
            peer.node.clone()
        };
        if !self.common.is_closing() {
            self.common.listener.note(&format!(
                "{node}: connection {} (epoch {}) lost: {}; {} samples go again",
                loss.index, loss.epoch, loss.cause, loss.again
            ));
        }
    }

    /// When the next lane that is out of quarantine is to be opened again.
    fn reopen_at(&self) -> Option<Instant> {
        self.lanes
            .iter()
            .filter(|l| l.quarantine.is_free())
            .map(|l| l.retry_at)
            .min()
    }

    async fn reopen(&mut self, handle: &ClientHandle) {
        let now = Instant::now();
        let due: Vec<_> = (0..self.lanes.len())
            .filter(|i| self.lanes[*i].quarantine.is_free() && self.lanes[*i].retry_at <= now)
            .collect();
        if self.common.is_closing() || due.is_empty() {
            return;
        }
        if let Err(e) = self.open(handle, &due).await {
            tracing::debug!("reopening {} connections: {e}", due.len());
            due.into_iter().for_each(|i| self.lanes[i].later());
        }
    }

    fn back(&self, what: &str) {
        let mut peer = self.common.peer(self.index);
        peer.lost = None;
        let line = format!("{}: {what}", peer.node);
        drop(peer);
        self.common.listener.note(&line);
    }

    /// Has lanes granted and begins to make their data connections.
    async fn open(&mut self, handle: &ClientHandle, which: &[usize]) -> Result<(), ClusterError> {
        let deadline = self.common.config.deadlines.connect();
        let (mut requests, mut prepared) = (Vec::with_capacity(which.len()), HashMap::new());
        let mut failed = None;
        for &i in which {
            let l = &self.lanes[i];
            let dispatcher = self.common.dispatcher();
            let cfgs = dispatcher.lane(l.lane);
            let nic = &self.common.nics[l.rail];
            let (half, transport) = match nic.prepare(l.rail, || dispatcher.endpoint(l.lane)) {
                Ok(p) => p,
                Err(e) => {
                    // A NIC that is down holds up its own lanes alone.
                    failed = Some(e);
                    continue;
                }
            };
            prepared.insert(i as u16, half);
            requests.push(LaneRequest {
                lane: i as u16,
                rail: l.turn,
                gpu_turn: l.gpu_turn,
                epoch: l.quarantine.epoch() + 1,
                slots: cfgs.slots as u32,
                request_stride: cfgs.request_stride as u32,
                response_stride: cfgs.response_stride as u32,
                transport,
            });
        }
        if let Some(e) = failed.take_if(|_| prepared.is_empty()) {
            return Err(e);
        }
        let asked: Vec<_> = requests.iter().map(|r| (r.lane, r.epoch)).collect();
        let grants = match handle.open(requests).within(deadline).await {
            Ok(grants) => grants,
            Err(e) => {
                if matches!(e, ControlError::Timeout { .. }) {
                    self.let_go(handle, &asked, &e);
                }
                return Err(e.into());
            }
        };
        for g in &grants {
            let lane = self.lanes[usize::from(g.lane)].lane;
            let mut ends = self
                .common
                .ends
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            ends[lane] = Some(LaneEnd {
                nic: g.nic,
                gpu: g.gpu,
            });
            drop(ends);
            // Nothing was open before, so nothing stands in the way.
            let _ = self.lanes[usize::from(g.lane)].quarantine.open(g.epoch);
        }
        for g in grants {
            let half = prepared.remove(&g.lane).unwrap_or(Prepared::Tcp);
            self.lanes[usize::from(g.lane)].connecting = true;
            let connecting = self.connect(g, half);
            self.connecting.spawn(connecting);
        }
        failed.map_or(Ok(()), Err)
    }

    /// A data connection was made and is put up, or it was not.
    fn connected(
        &mut self,
        handle: &ClientHandle,
        (grant, link): Connected,
    ) -> Result<(), ClusterError> {
        let l = &mut self.lanes[usize::from(grant.lane)];
        l.connecting = false;
        let link = link.inspect_err(|e| {
            // It never carried anything here, but the accelerator has slots waiting for it.
            l.quarantine.lost(grant.epoch);
            l.quarantine.reset_here(grant.epoch);
            l.later();
            handle.lane_lost(grant.lane, grant.epoch, &e.to_string());
            handle.lane_reset(grant.lane, grant.epoch);
        })?;
        l.pause = FIRST_RETRY;
        self.common.dispatcher().attach(l.lane, grant.epoch, link);
        Ok(())
    }

    /// Lanes that were asked for and not granted in time: they may have been granted all the same, so the accelerator is told
    /// that nobody will come, and their epochs are not used again.
    fn let_go(&mut self, handle: &ClientHandle, asked: &[(u16, u32)], why: &ControlError) {
        for &(lane, epoch) in asked {
            let quarantine = &mut self.lanes[usize::from(lane)].quarantine;
            if quarantine.open(epoch).is_ok() {
                quarantine.lost(epoch);
                quarantine.reset_here(epoch);
                handle.lane_lost(lane, epoch, &why.to_string());
                handle.lane_reset(lane, epoch);
            }
        }
    }

    /// One data connection.
    fn connect(
        &self,
        grant: LaneGrant,
        prepared: Prepared,
    ) -> impl Future<Output = (LaneGrant, Result<Link, ClusterError>)> + Send + use<> {
        let common = self.common.clone();
        let lane = &self.lanes[usize::from(grant.lane)];
        let (lane, rail) = (lane.lane, lane.rail);
        let node = common.peer(self.index).node.clone();
        async move {
            let deadline = common.config.deadlines.connect();
            let endpoint = || common.dispatcher().endpoint(lane);
            let link = common.nics[rail]
                .connect(rail, prepared, &grant, endpoint, &node, deadline)
                .await;
            (grant, link)
        }
    }

    /// The session is over: all of the peer's lanes are given up.
    fn gone(&mut self, cause: &ControlError) {
        self.common.dispatcher().control_session(self.index, true);
        self.common.peer(self.index).handle = None;
        self.connecting = JoinSet::new();
        for l in &mut self.lanes {
            if std::mem::take(&mut l.connecting) {
                // No rail thread ever had it, and none will say that it is down.
                l.quarantine.lost(l.quarantine.epoch());
                l.quarantine.reset_here(l.quarantine.epoch());
            } else if l.quarantine.is_live() {
                let (epoch, cause) = (l.quarantine.epoch(), given_up(cause));
                self.common.dispatcher().give_up(l.lane, epoch, cause);
            }
        }
        self.common.listener.note(&cause.to_string());
    }

    /// Tries the accelerator again and again; the monitor says when that has gone on for too long.
    async fn come_back(&mut self) -> ClientSession {
        self.all_down().await;
        let mut pause = FIRST_RETRY;
        loop {
            match self.try_again().await {
                Ok(session) => {
                    self.back("is back");
                    return session;
                }
                Err(e) => tracing::debug!("{e}"),
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LAST_RETRY);
            if self.common.is_closing() {
                return std::future::pending().await;
            }
        }
    }

    /// After a session: waits until every lane's local side is down. The peer's memory belongs to a session that is over and is
    /// not used again. A lane that is not down in time stays out of use until it is.
    async fn all_down(&mut self) {
        let deadline = self.common.config.deadlines.connect();
        let end = Instant::now() + deadline;
        let waited_for = |l: &PeerLane| l.quarantine.is_live() && !l.stuck;
        while self.lanes.iter().any(waited_for) {
            match tokio::time::timeout_at(end, self.losses.recv()).await {
                Ok(Some(loss)) => {
                    self.report(&loss);
                    if let Some(l) = self.lanes.get_mut(usize::from(loss.index)) {
                        l.stuck = false;
                        l.quarantine.lost(loss.epoch);
                        l.quarantine.reset_here(loss.epoch);
                    }
                }
                // The cluster is going.
                Ok(None) => return std::future::pending().await,
                Err(_) => break,
            }
        }
        let mut left = 0;
        for l in &mut self.lanes {
            if waited_for(l) {
                (l.stuck, left) = (true, left + 1);
            } else {
                l.quarantine.reset_there(l.quarantine.epoch());
            }
        }
        if left > 0 {
            let node = self.common.peer(self.index).node.clone();
            self.common.listener.note(&format!(
                "{node}: {left} connections were not taken down within {deadline:?}; they stay out of use until they are"
            ));
        }
    }

    async fn try_again(&mut self) -> Result<ClientSession, ClusterError> {
        let session = ClientSession::connect(self.common.params(self.index)).await?;
        let expected = self.common.peer(self.index).node.clone();
        if session.peer_node != expected {
            return Err(ClusterError::Slots(format!(
                "{} answers where {expected} was",
                session.peer_node
            )));
        }
        let result = self.open_all(&session).await;
        if let Err(e) = result {
            // Whatever was attached goes with the session.
            self.gone(&ControlError::Setting {
                key: "control",
                problem: e.to_string(),
            });
            session.handle.bye();
            self.all_down().await;
            return Err(e);
        }
        self.common.peer(self.index).handle = Some(session.handle.clone());
        self.common.dispatcher().control_session(self.index, false);
        Ok(session)
    }
}

/// Why the connections of a session that is over are given up.
fn given_up(cause: &ControlError) -> Broken {
    let text = cause.to_string();
    match cause {
        ControlError::Silent { .. } => Broken::Silent(text),
        _ => Broken::GivenUp(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::Peer;

    #[test]
    fn silence_is_what_the_cause_is_and_not_what_its_text_says() {
        let peer = Peer::at("10.0.0.1:7400");
        let silent = given_up(&ControlError::Silent {
            peer,
            silent: Duration::from_secs(2),
        });
        assert!(silent.by_silence(), "{silent}");
        let closed = given_up(&ControlError::Closed {
            peer: Peer::at("silent-dgx (10.0.0.1:7400), no sign of life"),
            waiting_for: "a frame",
        });
        assert!(!closed.by_silence(), "{closed}");
        let io = |errno| Broken::Io {
            verb: "readv",
            errno,
        };
        assert!(io(libc::ETIMEDOUT).by_silence() && !io(libc::ECONNRESET).by_silence());
    }
}
