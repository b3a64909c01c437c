//! What LoadGen is told in a configuration that nobody has tried yet.

/// The mapping `loadgen` of a frontend's file for an engine of which nobody knows how fast it is.
///
/// LoadGen plans a run before it begins, from a rate. In Offline a rate that is too low makes the
/// one query too small for the shortest duration, and the run INVALID; in Server one that is too
/// high breaks the latency bound. SingleStream alone needs no rate: it goes on until the duration
/// and the count are reached, however long a sample takes. What can go wrong there is that LoadGen
/// runs out of the queries it has made, twice as many as fit into the duration at the expected
/// latency; so that is given shorter than any sample takes over a network.
pub const FIRST_RUN: &str = "\
loadgen:
  # One sample after the other: valid at any speed, and says how long one sample takes. Offline and
  # Server want a rate, which the next runs find (docs/own-model.md, \"The rate\").
  scenario: single_stream
  settings:
    min_duration_ms: 10000         # at least 10 s, and at least 100 queries
    # LoadGen makes its queries beforehand: enough for samples of half this latency, and a run that
    # uses them up is INVALID. Do not raise it above what a sample really takes.
    single_stream_expected_latency_ns: 20000
    server_target_qps: 100         # with --scenario server: low, to begin with
";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_fits_a_page() {
        assert!(FIRST_RUN.lines().all(|line| line.len() <= 100));
    }
}
