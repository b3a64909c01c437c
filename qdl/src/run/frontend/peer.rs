//! The frontend's task for one accelerator: opens connections, quarantines lost connections until
//! both ends have let go, opens them again, and reconnects to a lost accelerator.

use std::{sync::Arc, time::Duration};

use fabric::{Broken, Half, clock::now_ns, wire::End};
use record::EngineInfo;
use tokio::{
    sync::{mpsc, watch},
    task::JoinSet,
    time::Instant,
};

use super::{
    cluster_state::{ClusterState, LocalLoss, REASON},
    opening::{self, OpeningResult, Requested},
    rail_map::ConnectionEnd,
};
use crate::{
    config::{Gpus, ModelFiles},
    control::{
        ClientEvent, ClientHandle, ClientSession, ConnectionGrant, ConnectionRequest, ControlError,
        Scores,
    },
    run::{
        error::RunError,
        life::frontend_end::{EndActions, FrontendEnd, OpenAnswer, RetryBackoff},
        lock,
    },
    wire::Standing,
};

/// Delay of the report of a loss, so that one line covers losses at about the same time.
const TOGETHER: Duration = Duration::from_millis(250);
/// Interval of checks whether the session has ended while its connections are opened.
const SESSION_LOOK: Duration = Duration::from_millis(50);

struct PeerConnection {
    connection: usize,
    /// Indices of the accelerator's NIC and GPU to request.
    turn: u16,
    gpu_turn: u16,
    life: FrontendEnd,
}

pub(crate) struct PeerTask {
    index: usize,
    state: Arc<ClusterState>,
    losses: mpsc::UnboundedReceiver<LocalLoss>,
    connections: Vec<PeerConnection>,
    /// Requests to the accelerator, and data connections that are being made. A running session
    /// does not wait for them: no slow answer or dead path may delay the others.
    tasks: JoinSet<OpeningResult>,
    /// A request for connections is in progress. Only one: the accelerator handles one at a time.
    asking: bool,
    /// Back-off of attempts to reconnect after the session's end.
    backoff: RetryBackoff,
    report_at: Option<Instant>,
}

impl PeerTask {
    pub(crate) fn new(
        index: usize,
        state: Arc<ClusterState>,
        losses: mpsc::UnboundedReceiver<LocalLoss>,
    ) -> Self {
        let seen_nics = state.config.nics.len();
        let mut seen = vec![0usize; seen_nics];
        let connections = state
            .connection_of
            .iter()
            .enumerate()
            .filter(|(_, (peer, _))| *peer == index)
            .map(|(connection, _)| {
                let nic_index = state.dispatcher().connection(connection).nic_index;
                let on_nic = &mut seen[nic_index];
                let nth = *on_nic;
                *on_nic += 1;
                let nic = &state.config.nics[nic_index];
                PeerConnection {
                    connection,
                    // NICs are paired by index. Further connections of a NIC go in turn to the
                    // accelerator's remaining NICs.
                    turn: (nic_index + nth * seen_nics) as u16,
                    gpu_turn: if nic.gpus == Gpus::All { nth as u16 } else { 0 },
                    life: FrontendEnd::new(state.retry),
                }
            })
            .collect();
        PeerTask {
            index,
            backoff: RetryBackoff::new(state.retry),
            state,
            losses,
            connections,
            tasks: JoinSet::new(),
            asking: false,
            report_at: None,
        }
    }

    /// Time on the clock of the connections' states.
    fn now(&self) -> Duration {
        self.state.began.elapsed()
    }

    /// Supervises the accelerator until the cluster closes.
    pub(crate) async fn run(
        mut self,
        mut session: ClientSession,
        mut stopped: watch::Receiver<bool>,
    ) {
        loop {
            let ended = tokio::select! { biased;
                _ = stopped.wait_for(|s| *s) => None,
                e = self.serve(&mut session) => Some(e),
            };
            let Some(cause) = ended else {
                session.handle.bye();
                // Waits until the bye is sent, or the peer is gone.
                while !matches!(session.events.next().await, ClientEvent::Gone(_)) {}
                session.events.closed().await;
                return;
            };
            if self.state.is_closing() {
                return;
            }
            self.on_session_end(&cause).await;
            session = tokio::select! { biased;
                _ = stopped.wait_for(|s| *s) => return,
                s = self.come_back() => s,
            };
        }
    }

    async fn serve(&mut self, session: &mut ClientSession) -> ControlError {
        let handle = session.handle.clone();
        loop {
            let due = self.reopen_at();
            let report_at = self.report_at;
            tokio::select! { biased;
                event = session.events.next() => match event {
                    ClientEvent::ConnectionLost { connection, epoch, cause } => {
                        self.reason(connection, &cause);
                        let text = format!("the accelerator lost it: {cause}");
                        self.advance(&handle, connection, epoch, &text, |l| l.lost_there(epoch));
                    }
                    ClientEvent::ConnectionReset { connection, epoch } => {
                        self.reset_there(connection, epoch);
                    }
                    ClientEvent::RefusedSample(use_of, words) => {
                        let end = {
                            let mut peer = self.state.peer(self.index);
                            let node = peer.node.clone();
                            peer.refusals.add_reason(&node, use_of, &words)
                        };
                        if let Some(words) = end {
                            self.state.abort(&words);
                        }
                    }
                    ClientEvent::Heartbeat(counters) => {
                        let mut peer = self.state.peer(self.index);
                        let before = peer.heartbeat.map_or(0, |(c, _)| c.progress);
                        peer.heartbeat = Some((counters, now_ns()));
                        if counters.progress > before {
                            self.state.dispatcher().note_work();
                        }
                    }
                    ClientEvent::Scores(scores) => self.pass_scores(&scores),
                    ClientEvent::Gone(cause) => return cause,
                },
                Some(loss) = self.losses.recv() => self.on_loss(&handle, &loss),
                Some(done) = self.tasks.join_next() => {
                    let done = match done {
                        Ok(done) => done,
                        // The task held connections, which the session's end takes down.
                        Err(e) => {
                            let text = format!("a task that opens connections panicked: {e}");
                            return ControlError::Local(format!("control: {text}"));
                        }
                    };
                    let up = match &done {
                        OpeningResult::Connected(grant, _) => Some(grant.connection),
                        OpeningResult::Requested(_) => None,
                    };
                    match (self.on_opening(&handle, done), up) {
                        (Ok(()), Some(connection)) => self.up_again(connection),
                        (Ok(()), None) => {}
                        (Err(e), _) => tracing::debug!("opening connections again: {e}"),
                    }
                }
                () = tokio::time::sleep_until(report_at.unwrap_or_else(Instant::now)),
                    if report_at.is_some() => self.report_outage(),
                () = tokio::time::sleep(due.unwrap_or_default()), if due.is_some() => {
                    self.open(&handle, self.now());
                }
            }
        }
    }

    /// Records that the accelerator has let go of a lost connection.
    fn reset_there(&mut self, connection: u16, epoch: u32) {
        self.log_reset(connection, epoch, "there");
        if let Some(l) = self.connections.get_mut(usize::from(connection)) {
            l.life.reset_there(epoch);
        }
    }

    fn log_reset(&self, connection: u16, epoch: u32, end: &str) {
        tracing::debug!(
            "{}: connection {connection} (epoch {epoch}) reset {end}",
            self.state.peer(self.index).node
        );
    }

    /// Passes the accelerator's scores of its interior and its NICs, and whether it takes samples,
    /// to the dispatcher.
    fn pass_scores(&self, scores: &Scores) {
        self.note_standing(&scores.standing);
        let Some(rails) = self.state.rails.get() else {
            return;
        };
        let each = scores.rails.iter().flat_map(|r| {
            rails
                .at_nic(self.index, r.nic)
                .map(move |nic_index| (nic_index, r.score))
        });
        self.state
            .dispatcher()
            .put_scores(self.index, scores.interior, each);
    }

    fn note_standing(&self, standing: &Standing) {
        self.state.dispatcher().set_standing(self.index, standing);
        let line = {
            let mut peer = self.state.peer(self.index);
            let node = peer.node.clone();
            peer.standing = standing.clone();
            let away = standing.absence();
            let is_news = peer.outages.set_away(away, now_ns());
            is_news.then(|| match away {
                Some(why) => format!("{node} takes no samples for now: {why}"),
                None => format!("{node} takes samples again"),
            })
        };
        if let Some(line) = line.filter(|_| !self.state.is_closing()) {
            self.state.note(&line);
        }
    }

    /// Applies a transition to a connection's state and executes its consequences. True where the
    /// caller continues with the connection.
    fn advance(
        &mut self,
        handle: &ClientHandle,
        number: u16,
        epoch: u32,
        cause: &str,
        transition: impl FnOnce(&mut FrontendEnd) -> EndActions,
    ) -> bool {
        let Some(l) = self.connections.get_mut(usize::from(number)) else {
            return false;
        };
        let actions = transition(&mut l.life);
        if actions.give_up {
            let cause = Broken::GivenUp(cause.to_owned());
            self.state.dispatcher().give_up(l.connection, epoch, cause);
        }
        if actions.tell_lost {
            handle.connection_lost(number, epoch, cause);
        }
        if actions.tell_reset {
            self.log_reset(number, epoch, "here");
            handle.connection_reset(number, epoch);
        }
        actions.go_on
    }

    /// Opens every connection of a fresh session, then announces that all are up.
    pub(crate) async fn open_all(&mut self, session: &ClientSession) -> Result<(), RunError> {
        let free = |l: &PeerConnection| l.life.due();
        let Some(all_due) = self.connections.iter().filter_map(free).max() else {
            return Err(RunError::new(format!(
                "no connection to {} has been taken down yet",
                session.peer_node
            )));
        };
        // A fresh session opens every free connection at once.
        self.open(&session.handle, self.now().max(all_due));
        let mut failed = None;
        loop {
            let done = tokio::select! { biased;
                done = self.tasks.join_next() => done,
                () = tokio::time::sleep(SESSION_LOOK) => {
                    // After the session's end, tasks that wait for the peer's NIC cannot succeed.
                    if session.handle.ended().is_none() {
                        continue;
                    }
                    self.tasks.shutdown().await;
                    None
                }
            };
            let Some(done) = done else { break };
            let done = done.map_err(RunError::of_control_thread)?;
            failed = failed.or(self.on_opening(&session.handle, done).err());
        }
        // The session's end is the cause of the other failures.
        if let Some(cause) = session.handle.ended() {
            return Err(cause.into());
        }
        if let Some(e) = failed {
            return Err(e);
        }
        let deadline = self.state.config.deadlines.step();
        session.handle.start().within(deadline).await?;
        Ok(())
    }

    fn open(&mut self, handle: &ClientHandle, now: Duration) {
        let dispatcher = self.state.dispatcher();
        let due = (0u16..)
            .zip(&mut self.connections)
            .filter_map(|(number, l)| {
                let epoch = l.life.ask(now)?;
                let cfgs = dispatcher.connection(l.connection);
                let request = ConnectionRequest {
                    connection: number,
                    nic: l.turn,
                    gpu_turn: l.gpu_turn,
                    epoch,
                    slots: cfgs.slots as u32,
                    request_stride: cfgs.request_stride as u32,
                    response_stride: cfgs.response_stride as u32,
                    // The NIC's own parameters replace this.
                    transport: End::new("", String::new()),
                };
                Some((l.connection, request))
            });
        let due: Vec<_> = due.collect();
        if !due.is_empty() {
            self.asking = true;
            let request = opening::request(self.state.clone(), handle.clone(), due);
            self.tasks.spawn(request);
        }
    }

    /// Handles the result of a step. Drops unwanted halves before the session's task, on the same
    /// thread, tells the accelerator that this end is reset.
    fn on_opening(&mut self, handle: &ClientHandle, result: OpeningResult) -> Result<(), RunError> {
        let (grant, link) = match result {
            OpeningResult::Requested(requested) => return self.on_answer(handle, requested),
            OpeningResult::Connected(grant, link) => (grant, link),
        };
        let (number, epoch, now) = (grant.connection, grant.epoch, self.now());
        match link {
            Ok(link) => {
                if self.advance(handle, number, epoch, "", |l| l.on_connected(epoch)) {
                    let connection = self.connections[usize::from(number)].connection;
                    self.state.dispatcher().attach(connection, epoch, link);
                }
                Ok(())
            }
            Err(e) => {
                let cause = e.to_string();
                self.advance(handle, number, epoch, &cause, |l| l.lost_here(epoch, now));
                Err(e)
            }
        }
    }

    fn on_answer(&mut self, handle: &ClientHandle, requested: Requested) -> Result<(), RunError> {
        let Requested {
            failed,
            error,
            prepared,
            answer,
        } = requested;
        let now = self.now();
        self.asking = false;
        for (number, epoch) in failed {
            if let Some(l) = self.connections.get_mut(usize::from(number)) {
                let _ = l.life.on_answer(epoch, OpenAnswer::Refused, now);
            }
        }
        match answer {
            None => {}
            Some(Ok(grants)) => self.connect(handle, grants, prepared),
            Some(Err(e)) => {
                // Drops the halves before the accelerator learns that this end has let go.
                let asked: Vec<_> = prepared.into_iter().map(|(which, _)| which).collect();
                let answer = match e {
                    ControlError::Refused { .. } => OpenAnswer::Refused,
                    _ => OpenAnswer::Missing,
                };
                let cause = e.to_string();
                for (number, epoch) in asked {
                    let transition = |l: &mut FrontendEnd| l.on_answer(epoch, answer, now);
                    self.advance(handle, number, epoch, &cause, transition);
                }
                return Err(e.into());
            }
        }
        error.map_or(Ok(()), Err)
    }

    fn connect(
        &mut self,
        handle: &ClientHandle,
        grants: Vec<ConnectionGrant>,
        prepared: Vec<((u16, u32), Box<dyn Half>)>,
    ) {
        let now = self.now();
        let node = self.state.peer(self.index).node.clone();
        // The control plane has checked that the grants are in the order of the requests.
        for (g, (_, half)) in grants.into_iter().zip(prepared) {
            let transition = |l: &mut FrontendEnd| l.on_answer(g.epoch, OpenAnswer::Granted, now);
            if self.advance(handle, g.connection, g.epoch, "", transition) {
                let connection = self.connections[usize::from(g.connection)].connection;
                lock(&self.state.ends)[connection] = Some(ConnectionEnd {
                    nic: g.nic,
                    gpu: g.gpu,
                });
                let state = self.state.clone();
                let connecting = opening::connect(state, connection, g, half, node.clone());
                self.tasks.spawn(connecting);
            }
        }
    }

    /// Handles the loss of a connection's local end, whose samples are sent elsewhere.
    fn on_loss(&mut self, handle: &ClientHandle, loss: &LocalLoss) {
        self.record_loss(loss);
        let (epoch, now) = (loss.epoch, self.now());
        let cause = loss.cause.to_string();
        self.advance(handle, loss.index, epoch, &cause, |l| {
            l.lost_here(epoch, now)
        });
    }

    fn record_loss(&mut self, loss: &LocalLoss) {
        let LocalLoss {
            index,
            epoch,
            cause,
            again,
            at_ns,
        } = loss;
        let mut peer = self.state.peer(self.index);
        tracing::debug!(
            "{}: connection {index} (epoch {epoch}) lost: {cause}; {again} samples go again",
            peer.node
        );
        if self.state.is_closing() {
            return;
        }
        peer.outages.add_loss(*index, *at_ns, cause, *again as u64);
        if peer.outages.is_news() {
            let wait = match cause.says_why() {
                true => TOGETHER,
                // The cause says only that the peer closed the connection.
                false => REASON,
            };
            self.report_at.get_or_insert_with(|| Instant::now() + wait);
        }
    }

    fn reason(&mut self, number: u16, cause: &str) {
        if self
            .state
            .peer(self.index)
            .outages
            .add_reason(number, cause)
            && let Some(at) = &mut self.report_at
        {
            *at = (*at).min(Instant::now() + TOGETHER);
        }
    }

    fn report_outage(&mut self) {
        self.report_at = None;
        let record = {
            let mut peer = self.state.peer(self.index);
            let node = peer.node.clone();
            peer.outages
                .take_record(&node, |at_ns| self.state.in_run(at_ns))
        };
        if let Some(record) = record.filter(|_| !self.state.is_closing()) {
            self.state.note(&record.to_string());
        }
    }

    /// Records that a connection of the running session was opened again.
    fn up_again(&mut self, connection: u16) {
        let (node, whole) = {
            let mut peer = self.state.peer(self.index);
            let whole = peer.outages.connection_up(connection, now_ns());
            (peer.node.clone(), whole)
        };
        tracing::debug!("{node}: connection {connection} opened again");
        if whole {
            self.report_outage();
            let line = format!("connection {node}/{connection} is up again");
            self.state.note(&line);
        }
    }

    /// Delay until the next connection out of quarantine is due; `None` where none is.
    fn reopen_at(&self) -> Option<Duration> {
        let due = self.connections.iter().filter_map(|l| l.life.due()).min();
        due.filter(|_| !self.asking && !self.state.is_closing())
            .map(|at| at.saturating_sub(self.now()))
    }

    fn back(&mut self) {
        self.report_outage();
        let line = {
            let mut peer = self.state.peer(self.index);
            peer.outages.session_back(now_ns());
            format!("{} is back", peer.node)
        };
        self.state.note(&line);
    }

    /// Handles the end of the session: takes all of the peer's connections down.
    async fn on_session_end(&mut self, cause: &ControlError) {
        self.state.dispatcher().control_session(self.index, true);
        let words = {
            let mut peer = self.state.peer(self.index);
            (peer.handle, peer.standing) = (None, Standing::Takes);
            peer.session_over(|at_ns| self.state.in_run(at_ns));
            let silent = matches!(cause, ControlError::Silent { .. });
            let words = words_of(cause, &peer.node, &peer.address);
            if !self.state.is_closing() {
                peer.outages.session_over(now_ns(), &words, silent);
            }
            words
        };
        // Cancels tasks at their next await; afterwards no task holds a connection.
        self.tasks.shutdown().await;
        self.asking = false;
        for l in &mut self.connections {
            if l.life.session_over().give_up {
                let (epoch, cause) = (l.life.epoch(), given_up(cause, &words));
                self.state.dispatcher().give_up(l.connection, epoch, cause);
            }
        }
    }

    /// Reconnects until it succeeds; the monitor aborts the run if that takes too long.
    async fn come_back(&mut self) -> ClientSession {
        self.all_down().await;
        self.report_outage();
        loop {
            let pause = self.backoff.at().saturating_sub(self.now());
            tokio::time::sleep(pause).await;
            if self.state.is_closing() {
                return std::future::pending().await;
            }
            self.backoff.start_attempt(self.now());
            match self.try_again().await {
                Ok(session) => {
                    self.backoff.reset();
                    self.back();
                    return session;
                }
                Err(e) => tracing::debug!("{e}"),
            }
        }
    }

    /// Waits after a session until every connection's local side is down. The peer's memory belongs
    /// to the old session and is not used again. A connection that is not down in time stays out of
    /// use until it is down.
    async fn all_down(&mut self) {
        let deadline = self.state.config.deadlines.step();
        let end = Instant::now() + deadline;
        let held = |l: &&PeerConnection| l.life.is_on_nic_thread();
        while self.connections.iter().any(|l| held(&l)) {
            match tokio::time::timeout_at(end, self.losses.recv()).await {
                Ok(Some(loss)) => {
                    self.record_loss(&loss);
                    let now = self.now();
                    if let Some(l) = self.connections.get_mut(usize::from(loss.index)) {
                        // No session exists that would report the loss.
                        let _ = l.life.lost_here(loss.epoch, now);
                    }
                }
                // The cluster is being dropped.
                Ok(None) => return std::future::pending().await,
                Err(_) => break,
            }
        }
        let left = self.connections.iter().filter(held).count();
        if left > 0 {
            let node = self.state.peer(self.index).node.clone();
            self.state.note(&format!(
                "{node}: {left} connections were not taken down within {deadline:?}; \
                 they stay out of use until they are"
            ));
        }
    }

    async fn try_again(&mut self) -> Result<ClientSession, RunError> {
        let session = self.state.connect(self.index).await?;
        let (expected, engine) = {
            let peer = self.state.peer(self.index);
            (peer.node.clone(), peer.engine.clone())
        };
        if session.peer_node != expected {
            return Err(RunError::new(format!(
                "{} answers where {expected} was",
                session.peer_node
            )));
        }
        // The engine must stay the same for the whole run, above all whether tokens are counted.
        let files = self.state.config.model_files;
        if let Some(other) = another_engine(&engine, &session.engine, files) {
            let text = format!("{expected} came back with {other}");
            // Report it: otherwise a reachable accelerator would stay unused without a word.
            self.state.note(&text);
            return Err(RunError::new(text));
        }
        let result = self.open_all(&session).await;
        if let Err(e) = result {
            // Attached connections end with the session.
            let cause = ControlError::Local(format!("control: {e}"));
            self.on_session_end(&cause).await;
            session.handle.bye();
            self.all_down().await;
            return Err(e);
        }
        self.state.peer(self.index).handle = Some(session.handle.clone());
        let dispatcher = self.state.dispatcher();
        dispatcher.control_session(self.index, false);
        dispatcher.set_standing(self.index, &Standing::Takes);
        dispatcher.engine_works_on(self.index, session.engine.at_once);
        Ok(session)
    }
}

/// Difference between an accelerator's former and new engine or model content, if any.
fn another_engine(was: &EngineInfo, is: &EngineInfo, files: ModelFiles) -> Option<String> {
    if (&was.name, was.tokens) != (&is.name, is.tokens) {
        return Some(format!("engine `{}` where it had `{}`", is.name, was.name));
    }
    if was.role != is.role {
        return Some(format!("role `{}` where it had `{}`", is.role, was.role));
    }
    match (&was.content, &is.content) {
        (Some(a), Some(b)) if files == ModelFiles::Same && !a.agrees(b) => {
            Some(format!("{b} where it had {a}"))
        }
        _ => None,
    }
}

/// Text of `cause` without the peer's name and address, which the message states already.
fn words_of(cause: &ControlError, node: &str, address: &str) -> String {
    let text = cause.to_string();
    let peer = format!("{node} ({address}): ");
    text.strip_prefix(&peer).map_or(text.clone(), str::to_owned)
}

/// Cause for taking down the connections of an ended session.
fn given_up(cause: &ControlError, words: &str) -> Broken {
    match cause {
        ControlError::Silent { .. } => Broken::Silent(words.to_owned()),
        _ => Broken::GivenUp(words.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_does_not_name_its_node_twice() {
        let peer = "acc-a (10.0.0.1:7400)".to_owned();
        let cause = ControlError::Vanished { peer };
        let words = words_of(&cause, "acc-a", "10.0.0.1:7400");
        assert!(
            words.starts_with("its program ended or was killed"),
            "{words}"
        );
        assert!(words_of(&cause, "acc-b", "x").starts_with("acc-a (10."));
    }

    #[test]
    fn an_accelerator_comes_back_with_the_model_it_had() {
        let engine = |name: &str, hash: &str| EngineInfo {
            name: name.to_owned(),
            tokens: false,
            at_once: 64,
            content: Some(record::Content::Settings {
                sha256: hash.repeat(64),
            }),
            ..EngineInfo::default()
        };
        let was = engine("onnx", "a");
        let other = |is: &EngineInfo, files| another_engine(&was, is, files);
        assert_eq!(other(&was, ModelFiles::Same), None);
        assert!(other(&engine("aoti", "a"), ModelFiles::Any).is_some());
        assert!(other(&engine("onnx", "b"), ModelFiles::Same).is_some());
        assert_eq!(other(&engine("onnx", "b"), ModelFiles::Any), None);
    }

    #[test]
    fn silence_is_what_the_cause_is_and_not_what_its_text_says() {
        let peer = "10.0.0.1:7400".to_owned();
        let silent = given_up(
            &ControlError::Silent {
                peer,
                silent: Duration::from_secs(2),
            },
            "x",
        );
        assert!(silent.by_silence(), "{silent}");
        let closed = given_up(
            &ControlError::Vanished {
                peer: "silent-dgx (10.0.0.1:7400)".to_owned(),
            },
            "no sign of life",
        );
        assert!(!closed.by_silence(), "{closed}");
        let io = |errno| Broken::Io {
            verb: "readv",
            errno,
        };
        assert!(io(libc::ETIMEDOUT).by_silence() && !io(libc::ECONNRESET).by_silence());
    }
}
