//! Feeds the entry functions of the fuzz targets without a fuzzer: the seeds of each target, and
//! mutations of the seeds. `QDL_FUZZ_COUNT` sets the number of mutations, `QDL_FUZZ_SEED` their
//! generator.

use std::path::Path;

use qdl::testkit::fuzz;

fn count_of(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

fn feed(target: &str, count: u64, entry: fn(&[u8])) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/seeds");
    let count = count_of("QDL_FUZZ_COUNT").unwrap_or(count);
    let seed = count_of("QDL_FUZZ_SEED").unwrap_or(1);
    let files = fuzz::mutate(&root.join(target), count, seed, entry);
    assert!((2..=20).contains(&files), "{files} seeds of {target}");
}

macro_rules! targets {
    ($($test:ident: $target:literal, $count:literal, $entry:path;)*) => {$(
        #[test]
        fn $test() {
            feed($target, $count, $entry);
        }
    )*};
}

targets! {
    bytes_of_a_control_connection_are_messages_or_errors:
        "control_frames", 5000, fuzz::control_frames;
    a_changed_control_connection_ends_and_adds_no_frame: "handshake", 3000, fuzz::handshake;
    bytes_of_a_data_connection_stay_in_their_slots_and_complete_each_sample_once:
        "data_frames", 400, fuzz::data_frames;
    responses_of_any_bytes_complete_each_sample_once: "responses", 400, fuzz::responses;
    a_configuration_of_any_bytes_is_loaded_or_refused_with_its_place:
        "yaml", 2000, frontend::fuzz::yaml;
    a_file_for_loadgen_of_any_bytes_is_taken_or_refused_by_name:
        "loadgen_conf", 3000, frontend::fuzz::loadgen_conf;
    arrays_of_any_bytes_are_read_within_their_bounds: "arrays", 3000, frontend::fuzz::arrays;
    a_server_that_sends_any_bytes_gets_an_answer_or_an_error:
        "server_events", 3000, engines::fuzz_server_events;
}
