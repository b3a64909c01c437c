//! Status of a cluster: of itself, its connections, and its accelerators.

use std::time::Duration;

use fabric::clock::now_ns;
use record::{
    EngineInfo, Ledger, LossRecord, NodeFacts, OptionSet,
    timeline::{ConnectionTick, Event, MOST_SIZES, NodeSide},
};
use tokio::time::Instant;

use super::{
    asked::{Answers, Asked},
    cluster::Cluster,
    description::{DESCRIBING, Described},
    notes,
    peer_state::PeerState,
    rail_map::RailMap,
};
use crate::{
    control::{ClientHandle, ControlError, block_on, limits::MAX_SIDE},
    counters::ticks::{FIRST_TICK_NS, MOST_TICKS, tick_ns},
    rails::RailReport,
    run::{error::RunError, lock},
    wire::Standing,
};

/// Time limit for all accelerators to send their parts of `timeline.json`.
const SIDES: Duration = Duration::from_secs(2);
const MOST_THREADS: usize = 32;

impl Cluster {
    /// Counts of samples so far, and the number of connections that are up, and lost.
    pub fn figures(&self) -> (Ledger, [u64; 2]) {
        let dispatcher = self.state.dispatcher();
        let up = dispatcher.connections_up() as u64;
        let lost = (self.state.connection_of.len() as u64).saturating_sub(up);
        (dispatcher.counts(), [up, lost])
    }

    /// Live figures of each connection, by index, with the scores of rails.
    pub fn readings(&self) -> Vec<ConnectionTick> {
        let mut all = self.state.dispatcher().readings();
        if let Some(rails) = self.state.rails.get() {
            for peer in 0..self.state.peers.len() {
                let report = self.state.dispatcher().rail_report(peer);
                for (i, reading) in all.iter_mut().enumerate() {
                    let rail = rails.of_connection(i).filter(|(p, _)| *p == peer);
                    let score = |r: &RailReport| {
                        (Some(r.rail) == rail.map(|(_, rail)| rail)).then(|| r.score.as_f64())
                    };
                    reading.score = reading.score.or_else(|| report.iter().find_map(score));
                }
            }
        }
        all
    }

    /// Requests every accelerator's side of the run. A lost or slow accelerator is left out, and
    /// the report page says so.
    pub(super) async fn sides(&self) -> Vec<NodeSide> {
        let end = Instant::now() + SIDES;
        let mut sides = Vec::new();
        for peer in 0..self.state.peers.len() {
            sides.extend(self.side(peer, end).await);
        }
        sides
    }

    async fn side(&self, peer: usize, end: Instant) -> Option<NodeSide> {
        let first_ns = self.state.dispatcher().first_issued_ns();
        let (handle, node) = {
            let peer = self.state.peer(peer);
            (peer.handle.clone()?, peer.node.clone())
        };
        let mut text = String::new();
        let mut asked_ns = None;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let sent_ns = now_ns();
            let (of, part) = handle.side(text.len() as u64).within(left).await.ok()?;
            // The side states its age at the time of the answer, half a round trip ago.
            let middle = || sent_ns + now_ns().saturating_sub(sent_ns) / 2;
            let asked_ns = *asked_ns.get_or_insert_with(middle);
            text += &part;
            if part.is_empty() || of > MAX_SIDE || text.len() as u64 > of {
                return None;
            }
            if text.len() as u64 == of {
                let side: NodeSide = serde_json::from_str(&text).ok()?;
                return to_own_clock(side, node, asked_ns, first_ns?);
            }
        }
    }

    /// Requests every accelerator's part of the SUT's name over the network. The duration is that
    /// of the slowest answer. An accelerator that was lost after it had sent its name keeps that
    /// name, marked as lost: the failure rules let the run go on without it.
    ///
    /// # Errors
    /// [`RunError`] names the first accelerator without a name; the SUT's name must
    /// cover all nodes.
    pub fn name(&self) -> Result<(String, Duration), RunError> {
        let began = Instant::now();
        let most = self.state.config.deadlines.name();
        let answers = block_on(self.ask_names().within(most));
        Ok((self.name_of(answers)?, began.elapsed()))
    }

    /// Requests every accelerator's part of the SUT's name.
    pub fn ask_names(&self) -> Asked<String> {
        self.ask(ClientHandle::name)
    }

    /// The SUT's name from the answers to [`Cluster::ask_names`].
    ///
    /// # Errors
    /// As [`Cluster::name`].
    pub fn name_of(&self, answers: Answers<String>) -> Result<String, RunError> {
        let mut parts = Vec::with_capacity(answers.len());
        for (i, answer) in answers.into_iter().enumerate() {
            let mut peer = self.state.peer(i);
            let gone = match &answer {
                Some(Ok(name)) => {
                    peer.named = Some(name.clone());
                    parts.push(name.clone());
                    continue;
                }
                // The session and its connections are up, so the accelerator should answer.
                Some(Err(ControlError::Timeout { .. } | ControlError::Refused { .. })) => {
                    peer.outages.is_whole()
                }
                Some(Err(_)) | None => true,
            };
            match &peer.named {
                Some(named) if gone => parts.push(format!("{named} (lost)")),
                _ => {
                    let problem = match (answer, peer.outages.open_outage()) {
                        (Some(Err(e)), _) => e.to_string(),
                        (_, Some(outage)) => outage.cause.clone(),
                        (_, None) => "its session is over".to_owned(),
                    };
                    return Err(RunError::new(format!(
                        "{} ({}) did not answer Name(): {problem}",
                        peer.node, peer.address
                    )));
                }
            }
        }
        Ok(format!("Network SUT: {}", parts.join(" + ")))
    }

    /// Whether no accelerator takes samples for now, and one waits for its engine's server. The
    /// accelerator limits that time.
    pub fn waits_for_server(&self) -> bool {
        let standings = self.state.each_peer(|peer| peer.standing.clone());
        let is_up = |(i, _): &(usize, &Standing)| self.state.dispatcher().is_up(*i);
        let up: Vec<_> = standings.iter().enumerate().filter(is_up).collect();
        up.iter().all(|(_, standing)| standing.absence().is_some())
            && up
                .iter()
                .any(|(_, standing)| matches!(standing, Standing::Away(_)))
    }

    /// Events and losses of the current run so far.
    pub fn happened(&self) -> (Vec<Event>, Vec<LossRecord>) {
        let state = &self.state;
        let in_run = |at_ns| state.in_run(at_ns);
        let losses = state.each_peer(|peer| peer.outages.records(&peer.node, in_run));
        let mut events = Vec::new();
        let Some(began_ns) = state.dispatcher().first_issued_ns() else {
            return (events, losses.concat());
        };
        let mut add = |at_ns: u64, kind: &str, text: String| {
            events.push(Event {
                at_s: (at_ns as f64 - began_ns as f64) / 1e9,
                kind: kind.to_owned(),
                text,
            });
        };
        if let Some((report, at_ns)) = &*lock(&self.warmed) {
            let (n, ms) = (report.samples, report.took_ms as u64);
            let text = format!("{n} samples in {ms} ms");
            add(*at_ns, "warm_up", text);
        }
        for (peer, at_ns, probe, text) in state
            .rails
            .get()
            .into_iter()
            .flat_map(RailMap::changes_so_far)
        {
            let node = state.peer(peer).node.clone();
            add(
                at_ns,
                if probe { "probe" } else { "rail" },
                format!("{node} {text}"),
            );
        }
        (events, losses.concat())
    }

    /// Options of a caller's request that every accelerator's engine acts on.
    /// [`RequestOptions::needs`] says which options a request needs.
    ///
    /// [`RequestOptions::needs`]: crate::request::RequestOptions::needs
    pub fn options(&self) -> OptionSet {
        let each = self.state.each_peer(|peer| peer.engine.options);
        each.into_iter().fold(OptionSet::OF_CLIENTS, OptionSet::and)
    }

    /// Node name and engine of each accelerator, in the order of the configuration.
    pub fn engines(&self) -> Vec<(String, EngineInfo)> {
        let of = |peer: &PeerState| (peer.node.clone(), peer.engine.clone());
        self.state.each_peer(of)
    }

    /// Name of each connection, by index: the accelerator's node and the index there.
    pub fn connection_names(&self) -> Vec<String> {
        let all = 0..self.state.connection_of.len();
        all.map(|i| self.state.connection_name(i)).collect()
    }

    /// Names of the NICs' fabrics, as in the summary: `ib`, or `ib + tcp` for NICs of both.
    pub fn fabric(&self) -> String {
        let mut all: Vec<_> = self
            .state
            .config
            .nics
            .iter()
            .map(|n| n.facts().fabric)
            .collect();
        all.sort_unstable();
        all.dedup();
        all.join(" + ")
    }

    /// Reasons why the Network division would not permit the links, such as loopback or an unknown
    /// link layer. One line each; empty where there are none.
    pub fn link_notes(&self) -> Vec<String> {
        let (own, peers) = self.facts();
        notes::links(&own, &peers)
    }

    /// Reasons against the machines: nodes on one machine, or on indistinguishable machines.
    pub fn machine_notes(&self) -> Vec<String> {
        let (own, peers) = self.facts();
        notes::machines(&own, &peers)
    }

    /// Requests every accelerator's description; a missing description is replaced by the reason.
    pub fn describe(&self) -> Vec<Described> {
        block_on(self.ask_descriptions())
    }

    /// As [`Cluster::describe`], on a task.
    pub async fn ask_descriptions(&self) -> Vec<Described> {
        let answers = self.ask(ClientHandle::describe).within(DESCRIBING).await;
        let nodes = self.state.each_peer(|peer| peer.node.clone());
        let each = nodes.into_iter().zip(answers);
        let described = each.map(|(node, answer)| match answer {
            Some(answer) => Described::of(node, answer),
            None => Described {
                node,
                description: Err("its session is over".to_owned()),
            },
        });
        described.collect()
    }

    /// Facts that this node sends to its peers, and each accelerator's node name and facts.
    pub fn facts(&self) -> (NodeFacts, Vec<(String, NodeFacts)>) {
        let of = |peer: &PeerState| (peer.node.clone(), peer.facts.clone());
        (self.state.local.facts.clone(), self.state.each_peer(of))
    }
}

/// Checks a peer's side received at `answered_ns`, clips it, and converts it to the clock of a run
/// that began at `first_ns`. `None` where the side is invalid.
fn to_own_clock(
    mut side: NodeSide,
    node: String,
    answered_ns: u64,
    first_ns: u64,
) -> Option<NodeSide> {
    // The cast saturates: values below 0 and NaN become 0.
    let lasted_ns = (-side.begins_s * 1e9) as u64;
    let tick = side.tick_ms.checked_mul(1_000_000)?;
    let ticks = side.engines.len();
    // This node's clock began with its process, before any session.
    let possible = side.begins_s <= 0.0
        && lasted_ns <= answered_ns
        && (FIRST_TICK_NS..=tick_ns(lasted_ns)).contains(&tick)
        && ticks <= MOST_TICKS
        && (ticks as u64).saturating_sub(1) <= lasted_ns / tick
        && side.engines.iter().all(|e| e.batches.len() <= MOST_SIZES);
    if !possible {
        return None;
    }
    side.node = node;
    side.begins_s += (answered_ns as f64 - first_ns as f64) / 1e9;
    side.threads.truncate(MOST_THREADS);
    for t in &mut side.threads {
        t.name = t
            .name
            .chars()
            .filter(|c| !record::is_unprintable(*c))
            .take(32)
            .collect();
        t.on_core.truncate(ticks);
        t.waited.truncate(ticks);
        let both = t.on_core.iter_mut().chain(&mut t.waited);
        both.for_each(|permille| *permille = (*permille).min(1000));
    }
    Some(side)
}

#[cfg(test)]
mod tests {
    use record::timeline::EngineTick;

    use super::*;

    const S: u64 = 1_000_000_000;

    #[test]
    fn a_side_is_moved_to_the_own_clock_and_impossible_values_are_refused() {
        let own = NodeSide {
            begins_s: -100.0,
            tick_ms: 100,
            engines: vec![EngineTick::default(); 1_000],
            ..NodeSide::default()
        };
        let convert = |side| to_own_clock(side, "b".to_owned(), 202 * S, 100 * S);
        let there = convert(own.clone()).expect("sound");
        assert_eq!((there.node.as_str(), there.begins_s), ("b", 2.0));
        let lies: [fn(&mut NodeSide); 8] = [
            |side| side.tick_ms = 1,
            |side| side.tick_ms = 1_000,
            |side| side.tick_ms = 18_000_000_000_000,
            |side| side.tick_ms = u64::MAX,
            |side| side.begins_s = 1.0,
            |side| side.begins_s = f64::NEG_INFINITY,
            |side| side.begins_s = -90.0,
            |side| side.engines[0].batches = vec![(1, 1); 17],
        ];
        for (i, lie) in lies.iter().enumerate() {
            let mut side = own.clone();
            lie(&mut side);
            assert_eq!(convert(side), None, "lie {i}");
        }
        // A tick longer than any run.
        let long = NodeSide {
            begins_s: -1.0,
            tick_ms: 18_000_000_000_000,
            ..NodeSide::default()
        };
        assert_eq!(to_own_clock(long, "b".to_owned(), 7 * S, 0), None);
    }
}
