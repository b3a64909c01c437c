//! Finds the limit of a run: a pure function of its record.
//!
//! The meaning of "limited" depends on the scenario. *Server* has an aim: if the scheduled rate was
//! completed and LoadGen's percentile used at most four fifths of its bound, nothing limited the
//! run. *Offline* measures a rate, *SingleStream* and *MultiStream* a latency: both have a limit.
//!
//! The rules compare shares and ratios, so they hold on slow and busy machines. They follow the
//! order of [`Cause`], where earlier causes entail later ones: waits for cores make an engine look
//! busy, and a full link fills all slots.

use record::{
    AcceleratorRecord, Cause, Finding, ISSUE, Limits, LossRecord, Mode, NIC, NodeUse, PathUse,
    RunRecord, SilentOn, Stage, ThreadGroup,
};

use super::{line, turn};
use crate::text;

/// Least share of time at which an engine, a slot or a link counts as always in use.
const BUSY: f64 = 0.85;
/// Least share of time at which NIC threads and cores, which are shared more, count as always busy.
const ALWAYS: f64 = 0.9;
/// Share below which a thread is not the limit, and from which slots or batches count as full.
const EASY: f64 = 0.7;
/// Least share that counts as the largest part.
const MOST: f64 = 0.5;
/// Least share of runnable time spent waiting for a core that makes threads late.
const WAITING: f64 = 0.25;
/// Share of the run below which waiting for cores does not matter.
const LITTLE: f64 = 0.1;
/// Least share of the scheduled rate that counts as reached.
const REACHED: f64 = 0.95;
/// Largest share of LoadGen's bound that leaves room.
const ROOM: f64 = 0.8;
/// Shortest run that is judged, in seconds.
const SHORTEST_S: f64 = 0.3;
/// Sleeps per sample from which wake-ups cost much of a sample's time.
const OFTEN: f64 = 0.5;
/// Shortest standstill that counts, as a share of a run with a latency bound: half of the 1 % that
/// p99 may miss.
const STOOD: f64 = 0.005;
/// Shortest silence that counts, in milliseconds.
const SILENCE_MS: u64 = 400;
/// Largest batch below which the advice is to try a larger one.
const SMALL_BATCH: u64 = 8;

/// Finds the causes that limited the run, from its record.
pub fn judge(run: &RunRecord) -> Limits {
    let view = JudgedRun::of(run);
    let aim = view.aim();
    let mut findings = Vec::new();
    // An accuracy run is not timed; the summary's line `losses` reports its losses.
    if run.mode != Mode::Accuracy {
        findings.extend(view.standstill(&aim));
        findings.extend(view.accelerator(&aim));
    }
    if let Aim::Open = aim {
        type Rule<'a> = fn(&JudgedRun<'a>) -> Option<Finding>;
        let rules: [Rule<'_>; 6] = [
            JudgedRun::cores,
            JudgedRun::link,
            JudgedRun::slots,
            JudgedRun::transfer,
            JudgedRun::engine,
            JudgedRun::wake_ups,
        ];
        findings.extend(rules.iter().filter_map(|rule| rule(&view)));
    }
    let line = match (findings.first(), aim) {
        (Some(first), _) => line(first),
        (None, Aim::Kept(how)) => format!("nothing: {how}"),
        (None, Aim::Unmeasured(why)) => format!("not judged: {why}"),
        (None, Aim::Open) => "nothing stands out: no engine, slot, link or core was in use all \
                              the time"
            .to_owned(),
    };
    Limits { line, findings }
}

/// Whether the run had an aim and reached it.
enum Aim {
    /// The aim was reached with room; the text gives the figures.
    Kept(String),
    /// The run cannot be judged; the text gives the reason.
    Unmeasured(String),
    /// Something limited the run.
    Open,
}

struct JudgedRun<'a> {
    run: &'a RunRecord,
    seconds: f64,
    /// Seconds over which the frontend node's use was measured.
    node_seconds: f64,
    /// The scenario has one sample, or one query, in flight at a time.
    by_latency: bool,
    /// Slots of all connections together.
    slots: f64,
    /// Mean number of samples in flight: rate times round trip.
    in_flight: f64,
}

fn percent(share: f64) -> String {
    format!("{:.0} %", (share * 100.0).min(100.0))
}

/// `part` divided by `whole`; 0 if `whole` is 0.
fn share(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 0.0 }
}

/// Share of their time that a node's NIC threads spent in polls that found work.
fn nic_share(node: &NodeUse, seconds: f64) -> f64 {
    let time = seconds * 1e6 * f64::from(node.nics.threads);
    share(node.nics.worked_us as f64, time)
}

/// Describes a node's waits for cores; `None` if they were short.
fn waits(node: &NodeUse, seconds: f64, machine: &str, whose: &str) -> Option<String> {
    let busy = share(node.machine_busy_ticks as f64, node.machine_ticks as f64);
    // A peer may report any number, so sum floats, which cannot overflow.
    let sum = |of: fn(&ThreadGroup) -> f64| node.threads.iter().map(of).sum::<f64>();
    let (ran, waited) = (sum(|g| g.ran_us as f64), sum(|g| g.waited_us as f64));
    let waiting = share(waited, ran + waited);
    if busy >= ALWAYS && waiting >= WAITING && waited >= LITTLE * seconds * 1e6 {
        let (busy, waiting) = (percent(busy), percent(waiting));
        return Some(format!(
            "{busy} of {machine} were busy, {whose} threads waited {waiting} of the time for a core"
        ));
    }
    // Threads that share one core wait although other cores are idle.
    [(NIC, "NIC"), (ISSUE, "issue")]
        .into_iter()
        .find_map(|(name, called)| {
            let group = node.group(name)?;
            let time = seconds * 1e6 * f64::from(group.threads.max(1));
            let part = share(group.waited_us as f64, time);
            let words = format!(
                "{whose} {called} threads waited for a core {} of the run, {} of {machine} were \
                 busy",
                percent(part),
                percent(busy)
            );
            (part >= MOST).then_some(words)
        })
}

impl<'a> JudgedRun<'a> {
    fn of(run: &'a RunRecord) -> Self {
        let seconds = run.duration_s;
        let round_trip = run.stages.get(Stage::RoundTrip);
        let round_trip_s = round_trip.map_or(0.0, |r| r.mean_us / 1e6);
        JudgedRun {
            run,
            seconds,
            node_seconds: run.evidence.node.clock_us as f64 / 1e6,
            by_latency: matches!(run.scenario.as_str(), "SingleStream" | "MultiStream"),
            slots: run.total().slots as f64,
            in_flight: share(run.samples as f64, seconds) * round_trip_s,
        }
    }

    fn mean_us(&self, stage: Stage) -> f64 {
        self.run.stages.get(stage).map_or(0.0, |r| r.mean_us)
    }

    fn of_round_trip(&self, stage: Stage) -> f64 {
        share(self.mean_us(stage), self.mean_us(Stage::RoundTrip))
    }

    fn aim(&self) -> Aim {
        if self.run.mode == Mode::Accuracy {
            return Aim::Unmeasured("an accuracy run is not timed".to_owned());
        }
        if self.run.mode == Mode::FindPeak {
            let why = "find-peak runs at many rates; run Server at its peak to see".to_owned();
            return Aim::Unmeasured(why);
        }
        if self.seconds < SHORTEST_S || self.run.samples == 0 {
            let took = text::time_us(self.seconds * 1e6);
            return Aim::Unmeasured(format!("{took} are too short to say"));
        }
        let Some(loadgen) = &self.run.loadgen else {
            return Aim::Open;
        };
        let asked = loadgen.scheduled_per_s.or(self.run.target_qps);
        let asked = asked.unwrap_or(self.run.per_s);
        let bounds = loadgen.limits.iter().filter(|limit| limit.at_most);
        let met = bounds.clone().all(|limit| limit.met);
        if self.run.scenario != "Server" || self.run.per_s < REACHED * asked || !met {
            return Aim::Open;
        }
        let (came, asked) = (text::rate(self.run.per_s), text::rate(asked));
        let rate = format!("{came}/s came back of {asked}/s scheduled");
        let bounds = bounds.filter_map(|l| Some((l.name.as_str(), l.was?, l.limit)));
        match bounds.max_by(|a, b| share(a.1, a.2).total_cmp(&share(b.1, b.2))) {
            Some((_, us, bound)) if share(us, bound) > ROOM => Aim::Open,
            Some((what, us, bound)) => {
                let (time, limit) = (text::time_us(us), text::time_us(bound));
                Aim::Kept(format!("{rate}, {what} {time} of the {limit} allowed"))
            }
            None => Aim::Kept(rate),
        }
    }

    /// Finds a standstill of the frontend that matters to the run.
    fn standstill(&self, aim: &Aim) -> Option<Finding> {
        let stood_s = self.run.evidence.stood_still_s;
        let [stood, whole] = [stood_s, self.seconds].map(|s| text::time_us(s * 1e6));
        let counts = match aim {
            // Server alone bounds a percentile, which a short standstill exceeds.
            Aim::Open if self.run.scenario == "Server" => share(stood_s, self.seconds) >= STOOD,
            Aim::Open | Aim::Kept(_) => share(stood_s, self.seconds) >= 0.05,
            Aim::Unmeasured(_) => false,
        };
        let figure = format!("this frontend stood still for {stood} of {whole}");
        self.found(Cause::Standstill, figure).filter(|_| counts)
    }

    /// Finds an accelerator that was lost, or silent for a significant part of the run.
    fn accelerator(&self, aim: &Aim) -> Option<Finding> {
        let system = &self.run.system;
        let away = |l: &&LossRecord| l.whole && !l.back;
        let losses = &system.losses;
        if let Some(loss) = losses.iter().find(away).or(losses.first()) {
            let figure = match losses.len() {
                1 => loss.to_string(),
                n => format!("{n} losses, one of them: {loss}"),
            };
            let advice = match loss.silent_on {
                Some(on) => turn_of_silence(on),
                // The reason of the loss names the accelerator's log.
                None if loss.why.contains("its log") && !loss.back => {
                    "its program is gone: see its log, then start it again".to_owned()
                }
                None => "look at its log and its machine".to_owned(),
            };
            return Some(Finding {
                cause: Cause::Accelerator,
                figure,
                turn: advice,
            });
        }
        let silent = system.connections.iter().max_by_key(|c| c.silent_ms)?;
        let part = share(silent.silent_ms as f64 / 1000.0, self.seconds);
        let counts = match aim {
            // A node that waits for a core is silent meanwhile: prefer the cause `Cores`.
            Aim::Open => part >= 0.02 && self.cores().is_none(),
            Aim::Kept(_) => part >= 0.05,
            Aim::Unmeasured(_) => false,
        };
        let node = silent.name.rsplit_once('/').map_or("", |(node, _)| node);
        let times = [silent.silent_ms as f64 * 1e3, self.seconds * 1e6];
        let [silence, whole] = times.map(text::time_us);
        let figure = format!("{node} gave no sign of life for {silence} of {whole}");
        (silent.silent_ms >= SILENCE_MS && counts).then(|| Finding {
            cause: Cause::Accelerator,
            figure,
            turn: turn_of_silence(SilentOn::Data),
        })
    }

    /// Finds threads of the frontend's node or of an accelerator that wait for cores.
    fn cores(&self) -> Option<Finding> {
        let own = &self.run.evidence.node;
        let own = waits(own, self.node_seconds, "this machine's cores", "our");
        let mut theirs = self.run.system.accelerators.iter().filter_map(|a| {
            let machine = format!("the cores of {}'s machine", a.node);
            waits(&a.used, self.seconds, &machine, "its")
        });
        self.found(Cause::Cores, own.or_else(|| theirs.next())?)
    }

    /// Finds packets that queue in the network while NIC threads have time to spare.
    fn link(&self) -> Option<Finding> {
        let mut path = PathUse::default();
        for c in &self.run.system.connections {
            path.add(&c.path);
        }
        let busy = share(path.busy_us as f64, path.looked_us as f64);
        let rwnd = share(path.rwnd_limited_us as f64, path.busy_us as f64);
        let (rtt, least) = (path.mean_rtt_us(), path.min_rtt_us as f64);
        let queued = rtt >= 1000.0 && rtt >= 5.0 * least;
        let network = self.of_round_trip(Stage::Network);
        let idle = nic_share(&self.run.evidence.node, self.node_seconds) < EASY;
        if path.looks == 0 || busy < BUSY || rwnd > MOST || !queued || network < MOST || !idle {
            return None;
        }
        let c = &self.run.carried;
        let rate = text::bit_rate(c.gbit_out_per_s.max(c.gbit_in_per_s));
        let took = format!("packets took {} there and back", text::time_us(rtt));
        let least = text::time_us(least);
        let figure = format!("{rate} of payload; {took}, the fastest {least}");
        self.found(Cause::Link, figure)
    }

    /// The accelerator with the busiest engine, and that engine's busy share.
    fn busiest(&self) -> Option<(&'a AcceleratorRecord, f64)> {
        let engines = self.run.system.accelerators.iter();
        let engines = engines.filter(|a| a.used.engine.workers > 0).map(|a| {
            let time = self.seconds * 1e6 * f64::from(a.used.engine.workers);
            (a, share(a.used.engine.busy_us as f64, time))
        });
        engines.max_by(|a, b| a.1.total_cmp(&b.1))
    }

    /// Finds full slots while engines have small batches or time to spare.
    fn slots(&self) -> Option<Finding> {
        let used = share(self.in_flight, self.slots);
        let nics = nic_share(&self.run.evidence.node, self.node_seconds);
        if self.by_latency || used < EASY || nics >= EASY {
            return None;
        }
        let (in_use, slots) = (
            self.in_flight.min(self.slots),
            text::grouped(self.slots as u64),
        );
        let mut figure = format!("{in_use:.1} of {slots} in use on average");
        // An engine that batches by itself reports no busy time: use the share of inference.
        let (mut small, mut at_work) = (false, self.of_round_trip(Stage::Compute));
        if let Some((a, busy)) = self.busiest() {
            let e = &a.used.engine;
            let mean = share(e.samples as f64, e.batches as f64);
            let all = self.run.system.accelerators.iter().map(|a| &a.used.engine);
            let room: f64 = all.map(|e| e.max_batch as f64 * f64::from(e.workers)).sum();
            small = mean < MOST * e.max_batch as f64 && self.slots < room;
            at_work = busy;
            let (mean, most) = (text::three(mean), e.max_batch);
            figure.push_str(&format!(", batches of {mean} where {most} fit"));
        }
        let idle = used >= BUSY && at_work < BUSY;
        self.found(Cause::Slots, figure).filter(|_| small || idle)
    }

    /// Finds the transfer of KV caches as most of a decode node's round trip. The wait for a decode
    /// node is not part of it.
    fn transfer(&self) -> Option<Finding> {
        let transfer = self.mean_us(Stage::Transfer) - self.mean_us(Stage::IssueToPost);
        let round_trip = self.mean_us(Stage::RoundTrip);
        let [shown, whole] = [transfer, round_trip].map(text::time_us);
        let figure = format!("KV caches took {shown} of a decode node's {whole}");
        let found = self.found(Cause::Transfer, figure);
        found.filter(|_| share(transfer, round_trip) >= MOST)
    }

    /// Finds an engine that computes all the time, or the setting that limits it.
    fn engine(&self) -> Option<Finding> {
        match self.busiest().filter(|_| !self.by_latency) {
            Some((a, busy)) if busy >= BUSY => self.engine_at_work(a, busy),
            Some(_) => None,
            None => self.engine_by_latency(),
        }
    }

    /// Finds inference as most of the time, for latency scenarios and self-batching engines.
    fn engine_by_latency(&self) -> Option<Finding> {
        let (compute, total) = (self.mean_us(Stage::Compute), self.mean_us(Stage::Total));
        let whole = match self.by_latency {
            true => total,
            // Offline issues all samples at once, so exclude their wait for a slot.
            false => self.mean_us(Stage::RoundTrip),
        };
        let part = share(compute, whole);
        let (compute, whole) = (text::time_us(compute), text::time_us(whole));
        let http = self.run.system.accelerators.iter();
        let figure = match http.filter(|a| a.engine == "http").count() {
            0 => format!("compute is {} of a sample's {whole}", percent(part)),
            _ => format!("the server: {compute} of {whole} are its own"),
        };
        self.found(Cause::Engine, figure).filter(|_| part >= MOST)
    }

    fn engine_at_work(&self, a: &AcceleratorRecord, busy: f64) -> Option<Finding> {
        let e = &a.used.engine;
        let mean = share(e.samples as f64, e.batches as f64);
        let full = share(mean, e.max_batch as f64) >= EASY;
        let cause = match e.workers {
            _ if full && e.max_batch < SMALL_BATCH => Cause::MaxBatch,
            1 if self.has_cores_left(a) => Cause::EngineThreads,
            _ => Cause::Engine,
        };
        let (node, busy, most) = (&a.node, percent(busy), e.max_batch);
        let threads = text::counted(u64::from(e.workers), "thread");
        let batches = format!("batches of {} where {most} fit", text::three(mean));
        let figure = format!("{node} computed {busy} of the time on {threads}, {batches}");
        self.found(cause, figure)
    }

    /// Whether the accelerator's own threads leave a quarter of its cores idle.
    fn has_cores_left(&self, a: &AcceleratorRecord) -> bool {
        let own = match a.used.threads.is_empty() {
            // On the local fabric the engine's threads belong to the frontend's node.
            true => &self.run.evidence.node,
            false => &a.used,
        };
        let ran: f64 = own.threads.iter().map(|g| g.ran_us as f64).sum();
        let cores = f64::from(own.cores);
        cores == 0.0 || ran < 0.75 * cores * self.seconds * 1e6
    }

    /// Finds NIC threads that sleep for at least every other sample.
    fn wake_ups(&self) -> Option<Finding> {
        let network = share(self.mean_us(Stage::Network), self.mean_us(Stage::Total));
        let there = self.run.system.accelerators.iter();
        let there: f64 = there.map(|a| a.used.nics.sleeps as f64).sum();
        let here = self.run.evidence.node.nics.sleeps as f64;
        let of = |sleeps| share(sleeps, self.run.samples as f64);
        let (here, there) = (of(here), of(there));
        if self.run.scenario == "Offline" || network < 0.4 || here.max(there) < OFTEN {
            return None;
        }
        let figure = format!(
            "the network is {} of a sample's time, and NIC threads slept {here:.1} times a sample \
             here and {there:.1} there",
            percent(network)
        );
        self.found(Cause::WakeUps, figure)
    }

    fn found(&self, cause: Cause, figure: String) -> Option<Finding> {
        let advice = match cause {
            Cause::Engine if self.run.fabric == "local" => "a faster engine",
            _ => turn(cause),
        };
        Some(Finding {
            cause,
            figure,
            turn: advice.to_owned(),
        })
    }
}

fn turn_of_silence(on: SilentOn) -> String {
    let deadline = on.deadline();
    format!("look at its log and its machine; `{deadline}` says how soon silence is a loss")
}

#[cfg(test)]
#[path = "judge_tests.rs"]
mod tests;
