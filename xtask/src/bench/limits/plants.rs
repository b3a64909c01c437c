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
}

/// Where the two nodes are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Net {
    /// On this machine's loopback.
    Loopback,
    /// In namespaces with a line of so many Mbit/s between them.
    Shaped(u32),
}

/// One planted cause.
pub struct Plant {
    /// What it is called.
    pub name: &'static str,
    /// The cause as `summary.json` names it; `nothing` for a run that is well.
    pub cause: &'static str,
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
    /// Whether this is what was to be said.
    pub fn is_right(&self, cause: &str) -> bool {
        self.cause == cause
    }
}

const PLAIN: Plant = Plant {
    name: "",
    cause: "nothing",
    engine: "{kind: digest, max_batch: 64, delay_us: 1000}",
    bytes: 64,
    nic: "connections: 2",
    both: "",
    arguments: &[],
    during: During::Nothing,
    net: Net::Loopback,
};

/// A run that is well, and the causes.
pub const PLANTS: [Plant; 9] = [
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
];
