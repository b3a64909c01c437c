//! Answers that the caller keeps: no slot has two owners.

use std::sync::{Arc, Mutex};

use super::{front::*, rig::*, *};

/// The answers that a completer has kept.
#[derive(Clone, Default)]
struct Kept(Arc<Mutex<Vec<KeptResponse>>>);

impl Completer for Kept {
    fn complete(&mut self, _: &mut dyn ExactSizeIterator<Item = Response<'_>>) {
        panic!("this completer keeps its answers");
    }
    fn keeps(&self) -> bool {
        true
    }
    fn complete_kept(&mut self, responses: &mut dyn ExactSizeIterator<Item = KeptResponse>) {
        self.0.lock().expect("alive").extend(responses);
    }
}

impl Kept {
    /// Takes the kept answer of a sample, whose bytes are still those that were answered.
    fn take(&self, id: u64) -> KeptResponse {
        let mut kept = self.0.lock().expect("alive");
        let is_wanted = |k: &KeptResponse| k.response().id == id;
        let kept = kept.iter().position(is_wanted).map(|i| kept.remove(i));
        let kept = kept.expect("kept");
        let token = (10 + id) as u32;
        assert_eq!(kept.response().payload, token.to_le_bytes());
        kept
    }
}

/// Answers the requests that have come with the numbers of their samples, from `id` on.
fn answer_from(far: &mut Far, id: u64) -> Vec<u16> {
    let all = far.requests();
    for (i, imm) in all.iter().enumerate() {
        far.whole(*imm, &[(10 + id) as u32 + i as u32]);
    }
    all.iter().map(|imm| imm.slot()).collect()
}

#[test]
fn a_kept_slot_has_one_owner_until_its_answer_is_dropped() {
    for policy in [Policy::default(), Policy::Best] {
        let all = Kept::default();
        let cfgs = RigCfgs {
            nics: 1,
            ..RigCfgs::new(1, 4).policy(policy)
        };
        let front = Front::with(cfgs, |_| Box::new(all.clone()));
        let mut far = front.connect(0, 1);
        front.issue(0..4);
        front.turn();
        assert_eq!(answer_from(&mut far, 0).len(), 4);
        front.turn();
        assert_eq!(front.dispatcher.outstanding(), 0);
        // All slots are kept, so the next samples wait.
        front.issue(4..6);
        front.turn();
        assert!(answer_from(&mut far, 4).is_empty());
        // A dropped answer gives its slot to one of them, from any thread.
        let kept = all.take(1);
        let slot = kept.slot;
        std::thread::scope(|scope| _ = scope.spawn(|| drop(kept)));
        front.turn();
        assert_eq!(answer_from(&mut far, 4), [slot]);
        front.turn();
        if policy.is_by_health() {
            // A rail that was lost would only get probes.
            continue;
        }
        // The next epoch uses none of the kept slots, and the answers keep their bytes.
        far.cut();
        front.turn();
        let mut far = front.connect(0, 2);
        assert!(far.requests().is_empty());
        let kept = all.take(4);
        assert_eq!(kept.slot, slot);
        drop(kept);
        front.turn();
        assert_eq!(answer_from(&mut far, 5), [slot]);
        front.turn();
        assert_eq!(front.dispatcher.outstanding(), 0);
        // The others outlive the dispatcher.
        drop(front);
        [0, 2, 3, 5].into_iter().for_each(|id| drop(all.take(id)));
        assert!(all.0.lock().expect("alive").is_empty());
    }
}

#[test]
fn an_answer_that_is_not_taken_frees_its_slot() {
    /// Takes the first answer of a turn alone, and drops it.
    struct One;
    impl Completer for One {
        fn complete(&mut self, _: &mut dyn ExactSizeIterator<Item = Response<'_>>) {}
        fn keeps(&self) -> bool {
            true
        }
        fn complete_kept(&mut self, responses: &mut dyn ExactSizeIterator<Item = KeptResponse>) {
            let _ = responses.next();
        }
    }
    let front = Front::with(RigCfgs::new(1, 4), |_| Box::new(One));
    let mut far = front.connect(0, 1);
    for ids in [0..4, 4..8] {
        front.issue(ids);
        front.turn();
        assert_eq!(answer_from(&mut far, 0).len(), 4);
        front.turn();
    }
    assert_eq!(front.dispatcher.outstanding(), 0);
    assert_eq!(front.dispatcher.look(0).in_flight, 0);
}
