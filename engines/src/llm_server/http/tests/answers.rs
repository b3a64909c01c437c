//! Correct answers in every dialect: their tokens and parts.

use crate::config::Dialect;
use fabric::wire::Stream;

use super::{
    rig::{ROOM, prompts, samples, started},
    server::{Reply, Server, events, tokens_of},
};

#[test]
fn answers_are_the_servers_tokens_whatever_is_streamed() {
    for dialect in Dialect::ALL {
        let server = Server::good(dialect);
        let started = started(&server, dialect, |_| ());
        for stream in [Stream::None, Stream::First, Stream::All] {
            let prompts = prompts(33);
            let all = samples(&prompts, stream);
            started.run(&all);
            for (i, prompt) in prompts.iter().enumerate() {
                let record = all.record(i);
                let right = tokens_of(prompt, ROOM);
                let what = format!("{dialect:?}, {stream}, sample {i}: {:?}", record.refused);
                assert_eq!(record.answer().as_ref(), Some(&right), "{what}");
                // Each event except the last is a part, or only the first one.
                let parts = match stream {
                    Stream::None => 0,
                    Stream::First => 1.min(right.len() - 1),
                    Stream::All => right.len() - 1,
                };
                // llama.cpp sends a separate end event, so its last token may leave as a part.
                let late = usize::from(dialect == Dialect::LlamaCpp && stream != Stream::None);
                let late = record.parts.len().checked_sub(parts).expect(&what) <= late;
                assert!(late, "{what}: {:?}", record.parts);
            }
        }
        assert_eq!(started.fatal(), None);
    }
}

#[test]
fn an_event_may_carry_several_tokens_or_a_whole_answer() {
    for (dialect, most) in Dialect::ALL.into_iter().flat_map(|d| [(d, 3), (d, ROOM)]) {
        let server = Server::of(dialect, move |asked| {
            let tokens = tokens_of(&asked.prompt(), asked.most());
            let groups: Vec<_> = tokens.chunks(most).collect();
            let (prompt, finish) = (asked.prompt().len(), asked.finish(&tokens));
            // All events in one chunk, as a server sends them after a delay.
            Reply::of(vec![events(dialect, prompt, &groups, finish).concat()])
        });
        let started = started(&server, dialect, |_| ());
        let prompts = prompts(33);
        let all = samples(&prompts, Stream::All);
        started.run(&all);
        for (i, prompt) in prompts.iter().enumerate() {
            let right = tokens_of(prompt, ROOM);
            assert_eq!(all.answer(i), Some(right), "{dialect:?}");
        }
    }
}
