//! The frontend's control thread: brings every session up, runs the peer tasks, and aborts the run
//! when no accelerator is left.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use fabric::Broken;
use record::Content;
use tokio::{
    sync::{mpsc, watch},
    task::JoinSet,
    time::Instant,
};

use super::{
    cluster_state::{AbortReason, ClusterEvent, ClusterState, LocalLoss, abort_soon},
    peer::PeerTask,
};
use crate::{
    config::{FrontendConfig, ModelFiles},
    control::{ClientSession, ControlError, NotYet, check_unique_names},
    run::error::RunError,
    wire::Standing,
};

const MONITOR: Duration = Duration::from_millis(50);
/// Interval of checks whether the first connections are up.
const LOOK: Duration = Duration::from_millis(1);
/// Time limit for the byes of all sessions.
const LEAVE: Duration = Duration::from_millis(500);

/// Interval of attempts to reach an accelerator, and interval of the log lines about it.
const AGAIN: Duration = Duration::from_millis(200);
const SAY: Duration = Duration::from_secs(10);
/// Longest wait for an accelerator that loads its model. Its own limits are shorter.
pub(super) const LOADING: Duration = Duration::from_secs(3600);

/// Part of the frontend's time limit that is reserved for ending the run.
const ENDING: Duration = Duration::from_millis(500);

/// Receivers of the control task.
pub(crate) struct Inboxes {
    /// Losses of each accelerator's connections.
    pub losses: Vec<mpsc::UnboundedReceiver<LocalLoss>>,
    /// Reasons to abort the run soon.
    pub reasons: mpsc::UnboundedReceiver<AbortReason>,
    /// The stop of the run.
    pub stopped: watch::Receiver<bool>,
}

/// Brings the cluster up, reports that to `ready`, and runs it until it is stopped.
pub(crate) async fn control(
    state: Arc<ClusterState>,
    inboxes: Inboxes,
    ready: impl FnOnce(Result<(), RunError>),
) {
    let Inboxes {
        losses,
        reasons,
        mut stopped,
    } = inboxes;
    let tasks = tokio::select! { biased;
        // The caller of `connect` has given up.
        _ = stopped.wait_for(|s| *s) => return,
        tasks = bring_up(&state, losses) => tasks,
    };
    let tasks = match tasks {
        Ok(tasks) => tasks,
        Err(e) => return ready(Err(e)),
    };
    let mut running = JoinSet::new();
    for (task, session) in tasks {
        running.spawn(task.run(session, stopped.clone()));
    }
    let begun = tokio::select! { biased;
        _ = stopped.wait_for(|s| *s) => Ok(()),
        begun = begin(&state) => begun,
    };
    ready(begun);
    let mut watching = JoinSet::new();
    let watched = state.clone();
    watching.spawn(async move { monitor(&watched).await });
    watching.spawn(abort_soon(state, reasons));
    let _ = stopped.wait_for(|s| *s).await;
    watching.abort_all();
    // The tasks see the stop too, and end their sessions with a bye.
    let leave = async { while running.join_next().await.is_some() {} };
    let _ = tokio::time::timeout(LEAVE, leave).await;
}

/// Waits until every connection is up, and lets the dispatcher use the accelerators' facts.
async fn begin(state: &ClusterState) -> Result<(), RunError> {
    let (dispatcher, deadline) = (state.dispatcher(), state.config.deadlines.step());
    let end = Instant::now() + deadline;
    while dispatcher.connections_up() < dispatcher.connections() {
        if Instant::now() >= end {
            return Err(RunError::new(format!(
                "{} of {} connections came up within {deadline:?}",
                dispatcher.connections_up(),
                dispatcher.connections()
            )));
        }
        tokio::time::sleep(LOOK).await;
    }
    state.choose_by_health()?;
    state.limit_slots();
    Ok(())
}

/// Connects to all accelerators, checks their names, and opens all connections.
async fn bring_up(
    state: &Arc<ClusterState>,
    inboxes: Vec<mpsc::UnboundedReceiver<LocalLoss>>,
) -> Result<Vec<(PeerTask, ClientSession)>, RunError> {
    let mut connecting = JoinSet::new();
    for i in 0..state.peers.len() {
        let state = state.clone();
        connecting.spawn(async move { reach(&state, i).await.map(|session| (i, session)) });
    }
    let mut sessions = Vec::new();
    // The first failure ends the loop, even if other accelerators are waited for.
    while let Some(reached) = connecting.join_next().await {
        sessions.push(reached.map_err(RunError::of_control_thread)??);
    }
    sessions.sort_unstable_by_key(|(i, _)| *i);
    let sessions: Vec<_> = sessions.into_iter().map(|(_, session)| session).collect();
    let addresses: Vec<_> = sessions
        .iter()
        .map(|s| s.peer_address.to_string())
        .collect();
    let local = std::iter::once((state.config.node.as_str(), "this node"));
    let named = sessions
        .iter()
        .map(|s| s.peer_node.as_str())
        .zip(addresses.iter().map(String::as_str));
    check_unique_names(local.chain(named))?;
    if state.config.model_files == ModelFiles::Same {
        check_contents(&sessions)?;
    }
    check_roles(&state.config, &sessions)?;
    let mut tasks = Vec::new();
    for (i, (session, losses)) in sessions.into_iter().zip(inboxes).enumerate() {
        {
            let mut peer = state.peer(i);
            peer.node.clone_from(&session.peer_node);
            peer.engine.clone_from(&session.engine);
            peer.facts.clone_from(&session.facts);
            peer.handle = Some(session.handle.clone());
        }
        let mut task = PeerTask::new(i, state.clone(), losses);
        task.open_all(&session).await?;
        tasks.push((task, session));
    }
    Ok(tasks)
}

/// Connects to one accelerator; retries while no node is there, and while it loads its model.
async fn reach(state: &ClusterState, index: usize) -> Result<ClientSession, ControlError> {
    let (began, patience) = (Instant::now(), state.config.deadlines.connect());
    // The last sign of a node, and the text of the last line with the time of the next.
    let (mut seen, mut said) = (began, ("", began));
    loop {
        let error = match state.connect(index).await {
            Ok(session) => return Ok(session),
            Err(error) => error,
        };
        let (what, after, since, limit) = match error.not_yet() {
            None => return Err(error),
            Some(NotYet::Absent(what)) => (what, patience, seen, " (deadlines.connect_ms)"),
            Some(NotYet::Loading) => {
                seen = Instant::now();
                ("loads its model", LOADING, began, "")
            }
        };
        let left = after.saturating_sub(since.elapsed());
        if left.is_zero() {
            let s = after.as_secs_f64();
            let text = format!("{error}; it was tried for {s} s{limit}");
            return Err(ControlError::Local(text));
        }
        if said.0 != what || Instant::now() >= said.1 {
            said = (what, Instant::now() + SAY);
            let (address, left) = (
                &state.config.accelerators[index].control,
                left.as_secs_f64(),
            );
            let line = format!(
                "{address} {what}: waiting for the accelerator, for {left:.0} s more at \
                 most{limit}; Ctrl-C ends it"
            );
            (state.on_event)(ClusterEvent::Waiting(&line));
        }
        tokio::time::sleep(AGAIN.min(left)).await;
    }
}

/// Checks that each accelerator has the role that this node's configuration gives it.
fn check_roles(config: &FrontendConfig, sessions: &[ClientSession]) -> Result<(), RunError> {
    for (i, (session, accelerator)) in sessions.iter().zip(&config.accelerators).enumerate() {
        let (own, here) = (session.engine.role, accelerator.role);
        if own != here {
            return Err(RunError::new(format!(
                "{} ({}): its `engine.role` is `{own}`, and accelerators[{i}].role is `{here}`: \
                 make them equal",
                session.peer_node, session.peer_address
            )));
        }
    }
    Ok(())
}

/// Checks that all engines run the same model content, as far as they state it.
fn check_contents(sessions: &[ClientSession]) -> Result<(), RunError> {
    let mut kinds: Vec<(&Content, Vec<String>)> = Vec::new();
    for s in sessions {
        let Some(content) = &s.engine.content else {
            continue;
        };
        let node = format!("{} ({})", s.peer_node, s.peer_address);
        match kinds.iter_mut().find(|(c, _)| c.agrees(content)) {
            Some((_, nodes)) => nodes.push(node),
            None => kinds.push((content, vec![node])),
        }
    }
    if kinds.len() < 2 {
        return Ok(());
    }
    let each = kinds.iter().map(|(content, nodes)| {
        let have = if nodes.len() == 1 { "has" } else { "have" };
        format!("{} {have} {content}", nodes.join(", "))
    });
    let kinds = each.collect::<Vec<_>>().join("; ");
    Err(RunError::new(format!(
        "the accelerators do not run the same model: {kinds}; give all of them the same, or set \
         `model_files: any`"
    )))
}

/// Aborts the run when no accelerator is left: each has been lost for too long, or its engine's
/// server has been away for too long.
async fn monitor(state: &ClusterState) {
    let d = &state.config.deadlines;
    let mut none_since: Option<Instant> = None;
    let mut down = vec![false; state.links.len()];
    loop {
        tokio::time::sleep(MONITOR).await;
        if state.is_closing() {
            return;
        }
        for (nic, (was, link)) in down.iter_mut().zip(&state.links).enumerate() {
            let is = link.is_down() == Some(true);
            if is && !*was {
                // A link that is down carries nothing, so do not wait for the echo.
                let cause = format!(
                    "the link of {} is down",
                    state.config.nics[nic].facts().label
                );
                state.note(&cause);
                state.dispatcher().give_up_nic(nic, &Broken::GivenUp(cause));
            }
            *was = is;
        }
        let standings = state.each_peer(|peer| peer.standing.clone());
        let is_left = |(i, standing): (usize, &Standing)| {
            state.dispatcher().is_up(i) && !matches!(standing, Standing::Overdue(_))
        };
        // Prefill and decode need each other.
        let has_left = |role| {
            let of_role = (0..).zip(&standings).zip(&state.config.accelerators);
            let mut of_role = of_role.filter(|(_, a)| a.role == role);
            of_role.any(|(peer, _)| is_left(peer))
        };
        let mut roles = state.config.accelerators.iter().map(|a| a.role);
        if roles.all(has_left) {
            none_since = None;
            continue;
        }
        let overdue = (0..).zip(&standings).filter_map(|(i, standing)| {
            let (why, peer) = (standing.absence()?, state.peer(i));
            Some(format!("{} ({}): {why}", peer.node, peer.address))
        });
        let mut each: Vec<_> = overdue.collect();
        let since = *none_since.get_or_insert_with(Instant::now);
        let losses: Vec<_> = (0..state.peers.len())
            .filter_map(|i| {
                let p = state.peer(i);
                let outage = p.outages.open_outage()?.clone();
                Some((p.node.clone(), p.address.clone(), outage))
            })
            .collect();
        // The limit includes the time that the detection of the silence has taken.
        let noticed = if losses.iter().any(|(_, _, l)| l.by_silence) {
            d.echo_interval() + d.echo_timeout()
        } else {
            Duration::ZERO
        };
        let patience = match losses.is_empty() && !each.is_empty() {
            true => Duration::ZERO,
            false => d.lost().saturating_sub(noticed + ENDING).max(MONITOR),
        };
        if since.elapsed() < patience {
            continue;
        }
        let mut seen = BTreeSet::new();
        let lost = losses.iter().filter(|(node, ..)| seen.insert(node.clone()));
        each.extend(lost.map(|(node, address, l)| {
            let at = match state.in_run(l.at_ns) {
                Some(s) => format!("{s:.1} s into the run"),
                None => "before the run's first query".to_owned(),
            };
            let s = since.elapsed().as_secs_f64();
            format!(
                "{node} ({address}) lost {at}: {}; could not be reached again for {s:.1} s",
                l.cause
            )
        }));
        state.abort(&format!("no accelerator left: {}", each.join("; ")));
        return;
    }
}
