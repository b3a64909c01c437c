//! Tests that no bytes cause a panic, nor a valid file with random errors.

use proptest::prelude::*;

use super::{files::config_files, *};

fn both(text: &str) {
    // Every error has a text.
    if let Err(error) = frontend(text) {
        assert!(!error.to_string().is_empty());
    }
    if let Err(error) = accelerator(text) {
        assert!(!error.to_string().is_empty());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn no_text_panics(
        any in any::<String>(),
        like_yaml in "[-a-c:{}\\[\\],#&*!|>'\"%@ \\t\\n0-9é\u{1}]{0,60}",
    ) {
        both(&any);
        both(&like_yaml);
    }

    #[test]
    fn no_mutation_of_a_good_file_panics(
        which in any::<prop::sample::Index>(),
        edits in prop::collection::vec((any::<prop::sample::Index>(), 0u8..4, any::<char>()), 1..6),
    ) {
        let files = config_files();
        let file = which.get(&files);
        let mut chars: Vec<char> = std::fs::read_to_string(file).unwrap().chars().collect();
        for (at, kind, c) in edits {
            if chars.is_empty() {
                break;
            }
            let at = at.index(chars.len());
            match kind {
                0 => chars[at] = c,
                1 => chars.insert(at, c),
                2 => { chars.remove(at); }
                _ => chars.truncate(at),
            }
        }
        both(&chars.into_iter().collect::<String>());
    }

    #[test]
    fn no_number_panics(key in 0usize..12, number in any::<i128>()) {
        let key = [
            "slots", "connections", "inline_bytes", "send_buffer_bytes", "numa", "cpus",
            "post_from_issue_thread_up_to", "gid_index", "mtu", "send_depth", "port", "gpu",
        ][key];
        both(&format!("{FRONTEND}accelerators: [{{control: localhost:1}}]\nnics:\n  - {key}: \
                       {number}\n    device: d\n"));
    }
}
