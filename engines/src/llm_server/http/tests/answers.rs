//! Correct answers in every dialect. The tests of a sequence cover which tokens leave as parts.

use crate::config::Dialect;
use fabric::wire::Stream;

use super::{
    rig::{ROOM, prompts, started},
    server::{Reply, Server, correct, events, tokens_of},
};

#[test]
fn answers_are_the_servers_tokens_however_many_an_event_carries() {
    for (dialect, most) in Dialect::ALL
        .into_iter()
        .flat_map(|d| [(d, 1), (d, 3), (d, ROOM)])
    {
        let server = Server::of(dialect, move |asked| {
            if asked.body["stream"] == false {
                return correct(dialect, asked);
            }
            let tokens = tokens_of(&asked.prompt(), asked.most());
            let groups: Vec<_> = tokens.chunks(most).collect();
            let (prompt, finish) = (asked.prompt().len(), asked.finish(&tokens));
            let events = events(dialect, prompt, &groups, finish);
            // Several tokens: all events in one chunk, as a server sends them after a delay.
            Reply::of(match most {
                1 => events,
                _ => vec![events.concat()],
            })
        });
        let started = started(&server, dialect, |_| ());
        let prompts = prompts(33);
        let all = started.run_prompts(&prompts, Stream::All);
        for (i, prompt) in prompts.iter().enumerate() {
            let record = all.record(i);
            let right = Some(tokens_of(prompt, ROOM));
            assert_eq!(record.answer(), right, "{dialect:?}: {:?}", record.refused);
        }
        assert_eq!(started.fatal(), None);
    }
}

#[test]
fn llama_cpp_streams_an_answer_only_if_the_frontend_wants_parts() {
    for stream in [Stream::None, Stream::First, Stream::All] {
        let server = Server::working(Dialect::LlamaCpp, move |asked| {
            let is_stream = asked.body["stream"] == true;
            // The wrong answer is refused.
            match is_stream == (stream != Stream::None) {
                true => correct(Dialect::LlamaCpp, asked),
                false => Reply::Whole(400, "{}".to_owned()),
            }
        });
        let started = started(&server, Dialect::LlamaCpp, |_| ());
        let prompts = prompts(9);
        let all = started.run_prompts(&prompts, stream);
        for (i, prompt) in prompts.iter().enumerate() {
            let record = all.record(i);
            let right = Some(tokens_of(prompt, ROOM));
            assert_eq!(record.answer(), right, "{stream:?}: {:?}", record.refused);
        }
    }
}
