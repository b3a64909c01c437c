//! Correct answers in every dialect. The tests of a sequence cover which tokens leave as parts.

use crate::config::Dialect;
use fabric::wire::Stream;

use super::{
    rig::{ROOM, prompts, started},
    server::{Reply, Server, events, tokens_of},
};

#[test]
fn answers_are_the_servers_tokens_however_many_an_event_carries() {
    for (dialect, most) in Dialect::ALL
        .into_iter()
        .flat_map(|d| [(d, 1), (d, 3), (d, ROOM)])
    {
        let server = Server::of(dialect, move |asked| {
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
