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
    # LoadGen runs for 10 s and 100 queries at least. With a user.conf it goes by the rules, which
    # are 10 minutes, unless a line here says otherwise: all of these go before a user.conf.
    # min_duration_ms: 10000
    # LoadGen makes its queries beforehand, enough for samples that take half of this or longer.
    # Where yours are faster, lower it: a run that uses its queries up is INVALID.
    single_stream_expected_latency_ns: 20000
    # With --scenario server: low, to begin with. Out with it where a user.conf has a target_qps.
    server_target_qps: 100
";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_fits_a_page() {
        assert!(FIRST_RUN.lines().all(|line| line.len() <= 100));
    }
}
