//! Checks each output of a core.

use super::messages::{Output, finish};
use crate::engine::{
    error::shorten,
    llm_server::account::{Account, Finish, Limits},
};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    More,
    End,
    /// The core could not run this sample; others go on.
    Refuse(String),
}

/// Checks an output and counts its tokens.
/// Error text: the core breaks a rule, so that no answer of it counts.
pub(super) fn judge(
    account: &mut Account,
    limits: &Limits,
    output: &Output<'_>,
) -> Result<Progress, String> {
    if let Some(counts) = output.prompt {
        account.count_prompt(usize::try_from(counts.num_prompt_tokens).unwrap_or(usize::MAX))?;
        match counts.num_cached_tokens {
            0 => {}
            n => {
                return Err(format!(
                    "it took {n} prompt tokens from its prefix cache, which is forbidden"
                ));
            }
        }
    }
    account.take(limits, &output.tokens)?;
    let finish = match output.finish {
        None => return Ok(Progress::More),
        Some(finish::STOP) => Finish::Stop,
        Some(finish::LENGTH) => Finish::Length,
        Some(finish::ERROR) => {
            let words = output.error.map(|words| format!(": {}", shorten(words)));
            let words = words.unwrap_or_default();
            let why = format!("the core could not run this prompt{words}");
            return Ok(Progress::Refuse(why));
        }
        Some(finish::ABORT) => return Err("it gave up an answer that is wanted".to_owned()),
        Some(n) => return Err(format!("it ended an answer for the unknown reason {n}")),
    };
    account.end(limits, finish, 0).map(|()| Progress::End)
}

#[cfg(test)]
mod tests {
    use super::{super::messages::PromptCounts, *};

    /// Scripted cores test refused prompts (`tests::answers`), and the account the other rules.
    #[test]
    fn outputs_are_judged() {
        let limits = Limits {
            engine: "vllm",
            vocab: 100,
            context: 20,
            min_tokens: 0,
            max_tokens: 8,
            ends: vec![2],
            are_all_ends: true,
        };
        let none = None::<(u64, u64)>;
        for (token, reason, counts, words) in [
            (1, None, Some((3, 0)), "More"),
            (2, Some(finish::STOP), Some((3, 0)), "End"),
            (
                2,
                Some(finish::STOP),
                none,
                "it does not count the tokens of the prompt",
            ),
            (
                1,
                None,
                Some((3, 1)),
                "it took 1 prompt tokens from its prefix cache",
            ),
            (
                1,
                Some(finish::ABORT),
                Some((3, 0)),
                "it gave up an answer that is wanted",
            ),
            (1, Some(4), Some((3, 0)), "unknown reason 4"),
            (
                1,
                Some(finish::ERROR),
                none,
                "could not run this prompt: no room",
            ),
        ] {
            let output = Output {
                tokens: [token].into_iter().collect(),
                finish: reason,
                prompt: counts.map(|(num_prompt_tokens, num_cached_tokens)| PromptCounts {
                    num_prompt_tokens,
                    num_cached_tokens,
                }),
                error: Some("no room"),
                ..Output::default()
            };
            let verdict = match judge(&mut limits.account(3, 8), &limits, &output) {
                Ok(Progress::Refuse(words)) | Err(words) => words,
                Ok(other) => format!("{other:?}"),
            };
            assert!(verdict.contains(words), "{words}: {verdict}");
        }
    }
}
