//! What is planted, and what is to be said of it.

/// What happens during a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum During {
    /// Nothing.
    Nothing,
    /// The accelerator is stopped (SIGSTOP) so many seconds after LoadGen began, for so many.
    Stopped(f64, f64),
    /// LoadGen's issue thread shares the first core with others that never sleep; everything else
    /// runs on the last.
    Crowded,
    /// The first NIC thread of the frontend does.
    Starved,
}

/// Where the two nodes are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Net {
    /// On this machine's loopback.
    Loopback,
    /// In namespaces with a line of so many Mbit/s between them.
    Shaped(u32),
    /// The same with four lines, of which the second has so many Mbit/s alone.
    OneSlow(u32, u32),
}

impl Net {
    /// Lines, and so entries of `nics` at either node.
    pub fn lines(self) -> usize {
        if matches!(self, Net::OneSlow(..)) {
            4
        } else {
            1
        }
    }
}

/// One planted cause.
pub struct Plant {
    /// What it is called.
    pub name: &'static str,
    /// The cause as `summary.json` names it; `nothing` for a run that is well, and `any` where the
    /// page alone can tell.
    pub cause: &'static str,
    /// What the page's advice names first.
    pub page: &'static str,
    /// `engine` of the accelerator.
    pub engine: &'static str,
    /// Bytes of a sample.
    pub bytes: usize,
    /// What the frontend's NIC has beside its address.
    pub nic: &'static str,
    /// What both NICs have.
    pub both: &'static str,
    /// The frontend's arguments.
    pub arguments: &'static [&'static str],
    /// What happens meanwhile.
    pub during: During,
    /// The line between them.
    pub net: Net,
}

impl Plant {
    /// Whether this is what was to be said, in the summary's last line and on the page.
    pub fn is_right(&self, cause: &str, page: &str) -> bool {
        (self.cause == "any" || self.cause == cause) && self.page == page
    }
}

const PLAIN: Plant = Plant {
    name: "",
    cause: "nothing",
    page: "nothing",
    engine: "{kind: digest, max_batch: 64, delay_us: 1000}",
    bytes: 64,
    nic: "connections: 2",
    both: "",
    arguments: &[],
    during: During::Nothing,
    net: Net::Loopback,
};

/// A run that is well, and the causes.
pub const PLANTS: [Plant; 12] = [
    Plant {
        name: "healthy",
        arguments: &[
            "--scenario",
            "server",
            "--target-qps",
            "400",
            "--duration-s",
            "4",
            "--set",
            "min_query_count=1",
            "--set",
            "target_latency=2000",
        ],
        ..PLAIN
    },
    Plant {
        name: "one-thread",
        cause: "engine_threads",
        page: "engine threads",
        engine: "{kind: digest, max_batch: 64, delay_us: 10000, threads: 1}",
        arguments: &[
            "--scenario",
            "offline",
            "--set",
            "min_duration=0",
            "--samples",
            "20000",
        ],
        ..PLAIN
    },
    Plant {
        name: "max-batch-1",
        cause: "max_batch",
        page: "max_batch",
        engine: "{kind: digest, max_batch: 1, delay_us: 1000, threads: 2}",
        arguments: &[
            "--scenario",
            "offline",
            "--set",
            "min_duration=0",
            "--samples",
            "5000",
        ],
        ..PLAIN
    },
    Plant {
        name: "two-slots",
        cause: "slots",
        page: "slots",
        engine: "{kind: digest, max_batch: 64, delay_us: 2000, threads: 2}",
        nic: "connections: 1, slots: 2",
        arguments: &[
            "--scenario",
            "offline",
            "--set",
            "min_duration=0",
            "--samples",
            "2500",
        ],
        ..PLAIN
    },
    Plant {
        name: "event-mode",
        cause: "wake_ups",
        page: "wake-ups",
        engine: "{kind: digest}",
        both: "completion: {mode: event}",
        nic: "connections: 1",
        arguments: &[
            "--scenario",
            "single-stream",
            "--set",
            "min_duration=0",
            "--samples",
            "20000",
        ],
        ..PLAIN
    },
    Plant {
        name: "rate",
        cause: "rate",
        page: "rate",
        engine: "{kind: \"null\"}",
        arguments: &[
            "--scenario",
            "server",
            "--target-qps",
            "3000000",
            "--duration-s",
            "1",
            "--set",
            "min_query_count=1",
        ],
        ..PLAIN
    },
    Plant {
        name: "link",
        cause: "link",
        page: "link",
        engine: "{kind: digest}",
        bytes: 20_000,
        arguments: &[
            "--scenario",
            "offline",
            "--set",
            "min_duration=0",
            "--samples",
            "2000",
        ],
        net: Net::Shaped(100),
        ..PLAIN
    },
    Plant {
        name: "stopped",
        cause: "accelerator",
        page: "accelerator",
        arguments: &[
            "--scenario",
            "server",
            "--target-qps",
            "400",
            "--duration-s",
            "5",
            "--set",
            "min_query_count=1",
            "--set",
            "target_latency=250",
            "--warm-up-ms",
            "100",
        ],
        during: During::Stopped(1.5, 1.5),
        ..PLAIN
    },
    Plant {
        name: "crowded",
        cause: "issue_thread",
        page: "issue thread",
        engine: "{kind: digest}",
        nic: "connections: 1",
        arguments: &[
            "--scenario",
            "server",
            "--target-qps",
            "200",
            "--duration-s",
            "4",
            "--set",
            "min_query_count=1",
            "--set",
            "target_latency=10",
        ],
        during: During::Crowded,
        ..PLAIN
    },
    Plant {
        name: "slow-engine",
        cause: "engine",
        page: "engine",
        engine: "{kind: digest, max_batch: 64, delay_us: 10000, threads: 2}",
        arguments: &[
            "--scenario",
            "offline",
            "--set",
            "min_duration=0",
            "--samples",
            "30000",
        ],
        ..PLAIN
    },
    Plant {
        name: "one-rail",
        cause: "any",
        page: "one connection",
        engine: "{kind: digest, max_batch: 64, threads: 2}",
        bytes: 20_000,
        nic: "connections: 1",
        arguments: &[
            "--scenario",
            "server",
            "--target-qps",
            "2000",
            "--duration-s",
            "5",
            "--set",
            "min_query_count=1",
            "--set",
            "target_latency=20",
        ],
        net: Net::OneSlow(1_000, 40),
        ..PLAIN
    },
    Plant {
        name: "one-nic-thread",
        cause: "any",
        page: "one NIC thread",
        engine: "{kind: digest, max_batch: 64, threads: 1}",
        nic: "connections: 1, completion: {mode: event}",
        arguments: &[
            "--scenario",
            "server",
            "--target-qps",
            "400",
            "--duration-s",
            "5",
            "--set",
            "min_query_count=1",
            "--set",
            "target_latency=5",
        ],
        during: During::Starved,
        ..PLAIN
    },
];
