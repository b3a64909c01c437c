//! Refusals of an accelerator, counted by kind, with their full reasons, which the control plane
//! may deliver before or after the refusal. A data structure.

use std::collections::VecDeque;

use record::{RefusalRecord, kind_of};

use crate::dispatch::RefusedSample;

/// Most kinds counted separately; further kinds are counted with the last.
const KINDS: usize = 32;
/// Most refusals that wait for their full reasons, and most early reasons.
const WAITING: usize = 256;

/// One use of a slot: connection index at the accelerator, epoch, slot, use count.
pub(crate) type SlotUse = (u16, u32, u16, u16);

/// Refusals of one accelerator, by kind.
#[derive(Debug, Default)]
pub struct Refusals {
    records: Vec<RefusalRecord>,
    /// Refusals with a partial reason: the slot use, the index of the record that the refusal
    /// opened, and the sample if this was its last refusal.
    waiting: VecDeque<(SlotUse, Option<usize>, Option<u64>)>,
    reasons: VecDeque<(SlotUse, String)>,
}

/// Reaction to a refusal.
#[derive(Debug, PartialEq, Eq)]
pub enum OnRefusal {
    /// None: the refusal is counted.
    Count,
    /// The first of its kind: report this line.
    Note(String),
    /// The sample's last refusal: abort the run for this reason.
    End(String),
    /// The sample's last refusal: abort the run once the full reason has come, or soon.
    EndSoon(String),
}

impl Refusals {
    /// Records a refusal on connection `number` of the accelerator `node`.
    pub fn add(&mut self, node: &str, number: u16, r: &RefusedSample) -> OnRefusal {
        let use_of = (number, r.epoch, r.imm.slot(), r.imm.use_count());
        let early = self.reasons.iter().position(|(u, _)| *u == use_of);
        let whole = early.and_then(|i| self.reasons.remove(i));
        let is_whole = whole.is_some() || !r.is_cut;
        let words = whole.map_or_else(|| r.reason.clone(), |(_, words)| words);
        let words = words.replace(record::is_unprintable, " ");
        let Some(sample) = r.index else {
            return OnRefusal::Count;
        };
        let kind = kind_of(&words);
        let known = self.records.iter().position(|k| k.kind == kind);
        let full = self.records.len() >= KINDS;
        let at = known.or_else(|| full.then_some(KINDS - 1));
        let opened = match at {
            Some(at) => {
                self.records[at].count += 1;
                None
            }
            None => {
                self.records.push(RefusalRecord {
                    node: node.to_owned(),
                    kind,
                    count: 1,
                    sample,
                    words: words.clone(),
                });
                Some(self.records.len() - 1)
            }
        };
        let is_last = r.tries.are_over() && !r.is_completed;
        if !is_whole {
            self.waiting.truncate(WAITING - 1);
            let last = is_last.then_some(sample);
            self.waiting.push_front((use_of, opened, last));
        }
        match (is_last, is_whole, opened) {
            (true, true, _) => OnRefusal::End(last_words(node, sample, &words)),
            (true, false, _) => OnRefusal::EndSoon(last_words(node, sample, &words)),
            // The heartbeat says why an accelerator takes no samples.
            (false, _, Some(_)) if !r.is_away && !r.is_completed => OnRefusal::Note(format!(
                "{node} refused sample {sample}, which is tried again: {words}"
            )),
            _ => OnRefusal::Count,
        }
    }

    /// Records a full reason. Returns the cause of the abort, if the abort waited for it.
    pub(crate) fn add_reason(
        &mut self,
        node: &str,
        use_of: SlotUse,
        words: &str,
    ) -> Option<String> {
        let waits = self.waiting.iter().position(|(u, ..)| *u == use_of);
        let Some((_, opened, last)) = waits.and_then(|i| self.waiting.remove(i)) else {
            self.reasons.truncate(WAITING - 1);
            self.reasons.push_front((use_of, words.to_owned()));
            return None;
        };
        if let Some(at) = opened {
            words.clone_into(&mut self.records[at].words);
            let kind = kind_of(words);
            if !self.records.iter().any(|r| r.kind == kind) {
                self.records[at].kind = kind;
            }
        }
        last.map(|sample| last_words(node, sample, words))
    }

    /// Records of all kinds.
    pub fn records(&self) -> &[RefusalRecord] {
        &self.records
    }
}

fn last_words(node: &str, sample: u64, words: &str) -> String {
    format!("sample {sample} was refused three times, at last by {node}: {words}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dispatch::Tries;
    use fabric::Imm;

    fn refused(slot: u16, refusals: u8, reason: &str, is_cut: bool) -> RefusedSample {
        RefusedSample {
            connection: 0,
            epoch: 1,
            imm: Imm::new(slot, 9),
            index: Some(57),
            tries: Tries {
                refusals,
                ..Tries::default()
            },
            reason: reason.to_owned(),
            is_cut,
            is_away: false,
            is_completed: false,
        }
    }

    #[test]
    fn the_first_of_a_kind_is_said_and_the_third_of_a_sample_ends_the_run() {
        let mut r = Refusals::default();
        let OnRefusal::Note(line) = r.add("a", 0, &refused(1, 1, "HTTP 500: x", false)) else {
            panic!("the first of its kind");
        };
        assert!(line.contains("a refused sample 57"), "{line}");
        let again = r.add("a", 0, &refused(1, 2, "HTTP 500: y", false));
        assert_eq!(again, OnRefusal::Count);
        let last = r.add("a", 0, &refused(1, 3, "HTTP 500: z", false));
        let words = "sample 57 was refused three times, at last by a: HTTP 500: z";
        assert_eq!(last, OnRefusal::End(words.to_owned()));
        assert_eq!((r.records().len(), r.records()[0].count), (1, 3));
    }

    #[test]
    fn a_reason_is_whole_whichever_of_its_two_ways_is_quicker() {
        let whole = "HTTP 400: token 151936 of 151936";
        for control_first in [false, true] {
            let mut r = Refusals::default();
            let told = |r: &mut Refusals| r.add_reason("a", (0, 1, 4, 9), whole);
            let end = match control_first {
                true => {
                    assert_eq!(told(&mut r), None);
                    match r.add("a", 0, &refused(4, 3, "HTTP 400: to", true)) {
                        OnRefusal::End(words) => words,
                        other => panic!("{other:?}"),
                    }
                }
                false => {
                    let soon = r.add("a", 0, &refused(4, 3, "HTTP 400: to", true));
                    assert!(matches!(soon, OnRefusal::EndSoon(_)), "{soon:?}");
                    told(&mut r).expect("waited for")
                }
            };
            assert!(end.ends_with(whole), "{end}");
            assert_eq!(r.records()[0].words, whole);
        }
    }

    #[test]
    fn what_a_peer_fills_is_bounded() {
        let mut r = Refusals::default();
        for i in 0..1000u16 {
            let kind = format!("kind {i}: x");
            let _ = r.add("a", 0, &refused(i, 3, &kind, true));
            let _ = r.add_reason("a", (7, 1, i, 1), "never asked for");
        }
        assert_eq!(r.records().len(), KINDS);
        assert_eq!((r.waiting.len(), r.reasons.len()), (WAITING, WAITING));
        let all: u64 = r.records().iter().map(|k| k.count).sum();
        assert_eq!(all, 1000);
    }
}
