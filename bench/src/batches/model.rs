//! An engine that takes a time by the size of the batch, a stream of samples, and one hiccup.

use accelerator::batcher::{Begun, Policy, Step};

use super::before::Rules;

/// Nanoseconds of a millisecond.
pub const MS: f64 = 1e6;

/// An engine with its workers and its load.
#[derive(Clone, Debug)]
pub struct Engine {
    /// Microseconds of a batch of none, and of each sample more.
    pub base_us: f64,
    /// See `base_us`.
    pub each_us: f64,
    /// From this size on a batch takes so many microseconds more, and each sample beyond it.
    pub steps: Vec<(usize, f64, f64)>,
    /// Sizes that batches are padded to, if it has such.
    pub sizes: Vec<usize>,
    /// Batches at the same time.
    pub workers: usize,
    /// How far they are in each other's way: `k` of them are each as quick as one alone divided by
    /// `k` to the power of this. 0 where each has a processor to itself, nearly 1 on a GPU.
    pub shared: f64,
    /// All of them are quicker by this part while some are in the first half of what they do and
    /// others in the second, which wants something else of a GPU.
    pub halves: f64,
    /// What the configuration says of batches.
    pub policy: Policy,
    /// Samples that arrive in a second.
    pub per_s: f64,
    /// When an answer is late, in milliseconds.
    pub limit_ms: f64,
}

impl Engine {
    /// Microseconds of a batch.
    pub fn us(&self, samples: usize) -> f64 {
        let padded = self.sizes.iter().find(|s| **s >= samples);
        let n = *padded.unwrap_or(&samples);
        let steps = self.steps.iter().filter(|s| n >= s.0);
        let more: f64 = steps
            .map(|(at, us, each)| us + each * (n - at) as f64)
            .sum();
        self.base_us + self.each_us * n as f64 + more
    }

    /// Most samples a second that it can do, at its best size.
    #[cfg(test)]
    pub fn capacity(&self) -> f64 {
        let rate = |n: usize| n as f64 / self.us(n) * 1e6;
        let best = (1..=self.policy.max_batch).map(rate).fold(0.0, f64::max);
        best * self.workers as f64 * self.pace(self.workers)
    }

    /// Nanoseconds that a batch takes of the engine where several run all the time, half of them in
    /// the first half.
    pub fn own_ns(&self, samples: usize) -> f64 {
        let all = self.workers as f64 * self.pace(self.workers);
        self.us(samples) * 1e3 / all / (1.0 + self.halves)
    }

    /// How quick each of so many batches is, beside one that runs alone.
    fn pace(&self, running: usize) -> f64 {
        (running.max(1) as f64).powf(-self.shared)
    }
}

/// What goes wrong once.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Hiccup {
    /// Nothing.
    None,
    /// Nothing begins and nothing ends for so many milliseconds.
    Stall(f64),
    /// So many samples at once.
    Burst(usize),
    /// Batches take twice as long for so many milliseconds.
    Slow(f64),
    /// One worker is away for so many milliseconds.
    Away(f64),
}

impl Hiccup {
    /// In words.
    pub fn name(self) -> String {
        match self {
            Hiccup::None => "none".to_owned(),
            Hiccup::Stall(ms) => format!("stands still for {ms} ms"),
            Hiccup::Burst(n) => format!("{n} samples at once"),
            Hiccup::Slow(ms) => format!("half as quick for {ms} ms"),
            Hiccup::Away(ms) => format!("a worker is away for {ms} ms"),
        }
    }

    fn ms(self) -> f64 {
        match self {
            Hiccup::None | Hiccup::Burst(_) => 0.0,
            Hiccup::Stall(ms) | Hiccup::Slow(ms) | Hiccup::Away(ms) => ms,
        }
    }
}

/// What came of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Outcome {
    /// 99th percentile before the hiccup, in milliseconds.
    pub before_ms: f64,
    /// From the hiccup's begin to the arrival of the last sample that was late; nothing where
    /// samples are late to the end.
    pub recovered_ms: Option<f64>,
    /// Share of late answers, of all samples from the hiccup on.
    pub late: f64,
    /// Mean latency of those, in milliseconds.
    pub mean_ms: f64,
    /// Longest latency of those.
    pub worst_ms: f64,
    /// Mean batch of the whole run.
    pub batch: f64,
    /// Zeros that batches were padded with, beside all samples.
    pub padded: f64,
}

/// What a worker runs.
struct Running {
    /// What is left of it, and all of it, in nanoseconds of a worker that is alone.
    left: f64,
    whole: f64,
    begun: Begun,
    began: f64,
    samples: Vec<u64>,
}

impl Running {
    /// Times are sums, as where a batch ends.
    fn first_half(&self) -> bool {
        self.left - self.whole / 2.0 > 1.0
    }
}

/// Numbers from a seed, between 0 and 1.
struct Random(u64);

impl Random {
    fn next(&mut self) -> f64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as f64 / (1u64 << 53) as f64
    }
}

struct World<'a> {
    engine: &'a Engine,
    hiccup: Hiccup,
    /// When the hiccup begins and ends.
    from: f64,
    to: f64,
    now: f64,
    /// What each worker runs.
    busy: Vec<Option<Running>>,
    /// Of what batches vary by, and of arrivals: those are the same whatever the rules.
    random: Random,
    arrivals: Random,
    arrived: Vec<f64>,
    latency: Vec<f64>,
    batches: u64,
    padded: usize,
}

impl World<'_> {
    /// The pace of those that run a batch and are not held up.
    fn pace(&self) -> f64 {
        let running = |w: &usize| self.busy[*w].as_ref().filter(|_| !self.is_off(*w));
        let running = || (0..self.busy.len()).filter_map(|w| running(&w));
        let pace = self.engine.pace(running().count());
        let first = running().filter(|r| r.first_half()).count();
        match first > 0 && first < running().count() {
            true => pace * (1.0 + self.engine.halves),
            false => pace,
        }
    }

    /// When what each worker runs is half over and when it ends, if nothing comes between; never
    /// where it is held up.
    fn ends(&self) -> impl Iterator<Item = f64> {
        let pace = self.pace();
        let busy = self.busy.iter().enumerate();
        let on = busy.filter(|(worker, _)| !self.is_off(*worker));
        let left = on.filter_map(|(_, r)| r.as_ref()).flat_map(|r| {
            let half = Some(r.left - r.whole / 2.0).filter(|_| r.first_half());
            [Some(r.left), half]
        });
        left.flatten().map(move |left| self.now + left / pace)
    }

    /// Time goes on; nothing ends before `to`, and no hiccup begins or ends.
    fn advance(&mut self, to: f64) {
        let done = (to - self.now) * self.pace();
        for worker in 0..self.busy.len() {
            let off = self.is_off(worker);
            if let Some(r) = self.busy[worker].as_mut().filter(|_| !off) {
                r.left -= done;
            }
        }
        self.now = to;
    }

    fn is_off(&self, worker: usize) -> bool {
        let within = (self.from..self.to).contains(&self.now);
        match self.hiccup {
            Hiccup::Stall(_) => within,
            Hiccup::Away(_) => within && worker == 0,
            _ => false,
        }
    }

    /// How long a batch that begins now takes where it is alone, and not held up.
    fn takes(&mut self, samples: usize) -> f64 {
        // Times differ by some percent from batch to batch.
        let mut took = self.engine.us(samples) * 1e3 * (0.97 + 0.06 * self.random.next());
        let slow = matches!(self.hiccup, Hiccup::Slow(_));
        if slow && (self.from..self.to).contains(&self.now) {
            took *= 2.0;
        }
        took
    }

    /// Ends what is over and begins what there is to begin; when somebody wants to look again.
    fn settle(&mut self, rules: &mut dyn Rules) -> Option<f64> {
        for worker in 0..self.busy.len() {
            // Times are sums: the last nanosecond may be lost on the way.
            let is_over = |r: &Running| r.left < 1.0;
            if let Some(ran) = self.busy[worker].take_if(|r| is_over(r)) {
                let took = (self.now - ran.began) as u64;
                rules.ended(self.now as u64, ran.begun, took);
                for s in ran.samples {
                    self.latency[s as usize] = self.now - self.arrived[s as usize];
                }
            }
        }
        loop {
            let mut free = (0..self.busy.len()).filter(|w| self.busy[*w].is_none());
            let worker = free.find(|w| !self.is_off(*w))?;
            let busy = self.busy.iter().flatten().count();
            match rules.step(self.now as u64, busy) {
                Step::Wait => return None,
                Step::WaitUntil(t) => return Some((t as f64).max(self.now + 1.0)),
                Step::Run => {
                    let mut batch = Vec::new();
                    let begun = rules.take(self.now as u64, &mut batch);
                    self.batches += 1;
                    let fits = self.engine.sizes.iter().find(|s| **s >= batch.len());
                    self.padded += fits.map_or(0, |s| s - batch.len());
                    let takes = self.takes(batch.len());
                    self.busy[worker] = Some(Running {
                        left: takes,
                        whole: takes,
                        begun,
                        began: self.now,
                        samples: batch,
                    });
                }
            }
        }
    }
}

/// Runs `seconds` of it; the hiccup comes after a quarter of that.
pub fn run(
    engine: &Engine,
    hiccup: Hiccup,
    rules: &mut dyn Rules,
    seconds: f64,
    seed: u64,
) -> Outcome {
    let (length, from) = (seconds * 1e9, seconds * 0.25e9);
    let mut w = World {
        engine,
        hiccup,
        from,
        to: from + hiccup.ms() * MS,
        now: 0.0,
        busy: (0..engine.workers).map(|_| None).collect(),
        random: Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1),
        arrivals: Random(seed.wrapping_mul(0xd134_2543_de82_ef95) | 1),
        arrived: Vec::new(),
        latency: Vec::new(),
        batches: 0,
        padded: 0,
    };
    let gap = 1e9 / engine.per_s;
    let (mut next, mut burst) = (gap, hiccup);
    loop {
        let wake = w.settle(rules);
        let hiccups = [w.from, w.to].into_iter();
        let arrival = (next < length).then_some(next);
        let events = w.ends().chain(wake).chain(arrival).chain(hiccups);
        let now = events.filter(|t| *t > w.now).fold(f64::INFINITY, f64::min);
        if now.is_infinite() || w.now > 4.0 * length {
            break;
        }
        w.advance(now);
        let mut come = 0;
        if arrival == Some(now) {
            // As LoadGen's Server: no memory of the last.
            next += -(1.0 - w.arrivals.next()).ln() * gap;
            come = 1;
        }
        if let (true, Hiccup::Burst(n)) = (now >= from, burst) {
            come += n;
            burst = Hiccup::None;
        }
        for _ in 0..come {
            rules.push(now as u64, w.arrived.len() as u64);
            w.arrived.push(now);
            w.latency.push(f64::INFINITY);
        }
    }
    outcome(&w, length)
}

fn outcome(w: &World<'_>, length: f64) -> Outcome {
    let all = || w.arrived.iter().zip(&w.latency);
    let mut before: Vec<f64> = all()
        .filter(|(at, _)| (w.from * 0.2..w.from * 0.95).contains(*at))
        .map(|(_, l)| l / MS)
        .collect();
    before.sort_by(f64::total_cmp);
    let after: Vec<(f64, f64)> = all()
        .filter(|(at, _)| **at >= w.from)
        .map(|(at, l)| ((at - w.from) / MS, l / MS))
        .collect();
    let limit = w.engine.limit_ms;
    let late = || after.iter().filter(|(_, l)| *l > limit);
    let last = late().map(|(at, _)| *at).fold(0.0, f64::max);
    let of = after.len().max(1) as f64;
    Outcome {
        before_ms: before.get(before.len() * 99 / 100).copied().unwrap_or(0.0),
        // What is late in the last twentieth is late for ever, as far as can be seen.
        recovered_ms: (last < (length * 0.95 - w.from) / MS).then_some(last),
        late: late().count() as f64 / of,
        mean_ms: after.iter().map(|(_, l)| l).sum::<f64>() / of,
        worst_ms: after.iter().map(|(_, l)| *l).fold(0.0, f64::max),
        batch: w.arrived.len() as f64 / w.batches.max(1) as f64,
        padded: w.padded as f64 / w.arrived.len().max(1) as f64,
    }
}

#[cfg(test)]
mod tests;
