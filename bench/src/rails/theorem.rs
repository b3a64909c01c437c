//! Checks the Remote Rail Theorem on random rails: compares the scores of all paths.
//!
//! At the near end, a rail is *own* if its NIC is local to the sample's memory; at the far end, if
//! its NIC is local to the GPU. Over any other rail, the bytes cross the node's interior. `H` is
//! the health of a rail or an interior. A path's score is the product of the healths on the path:
//!
//! ```text
//!   direct   out on s, in on s                     H(s)                   s is own at both ends
//!   rd       out on s, across the far interior     H(s) * H(far)          s is own at the near end
//!   dr       across the near interior, in on t     H(near) * H(t)         t is own at the far end
//!   drd      across both, over any rail x          H(near) * H(x) * H(far)
//! ```
//!
//! A frontend's NICs are equally near to every sample. So for `qdl::rails`, `H(near)` is 1 and
//! every rail is own at the near end.

use proptest::prelude::*;
use qdl::rails::Score;

/// The score 1, as a number of steps.
const ONE: u64 = 1 << 16;

/// Random scores in steps of 1 / [`ONE`], clustered so that equal and close scores are frequent.
fn score() -> impl Strategy<Value = u64> {
    let steps = prop_oneof![
        (1u32..=12).prop_map(|n| n << 12),
        1u32..=65536,
        65530u32..=65536
    ];
    steps.prop_map(|n| u64::from(Score::from_steps(n).steps()))
}

/// Health of all rails and of both interiors; `source` and `destination` are the indices of the own
/// rails at the near and the far end.
#[derive(Clone, Debug)]
struct Ends {
    rails: Vec<u64>,
    source: usize,
    destination: usize,
    near: u64,
    far: u64,
}

impl Ends {
    fn rd(&self) -> u64 {
        self.rails[self.source] * self.far * ONE
    }

    fn dr(&self) -> u64 {
        self.near * self.rails[self.destination] * ONE
    }

    fn drd(&self, rail: u64) -> u64 {
        self.near * rail * self.far
    }

    /// Score of the best path over own rails.
    fn own(&self) -> u64 {
        let direct = if self.source == self.destination {
            self.rails[self.source] * ONE * ONE
        } else {
            0
        };
        self.rd().max(self.dr()).max(direct)
    }
}

fn ends() -> impl Strategy<Value = Ends> {
    let rails = prop::collection::vec(score(), 1..24);
    let all = rails.prop_flat_map(|rails| {
        let end = 0..rails.len();
        (Just(rails), end.clone(), end, score(), score())
    });
    all.prop_map(|(rails, source, destination, near, far)| Ends {
        rails,
        source,
        destination,
        near,
        far,
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    /// The path rd beats dr exactly when H(s) / H(near) exceeds H(t) / H(far). s is the own rail of
    /// the near end, t that of the far end.
    #[test]
    fn the_greater_ratio_names_the_better_two_hop_path(e in ends()) {
        let (s, t) = (e.rails[e.source], e.rails[e.destination]);
        prop_assert_eq!(e.rd().cmp(&e.dr()), (s * e.far).cmp(&(t * e.near)));
    }

    /// The theorem: drd over x beats every path over an own rail exactly when H(x) > m. If s and t
    /// differ, m = max(H(s) / H(near), H(t) / H(far)); if one rail, m = H(s) / (H(near) * H(far)).
    #[test]
    fn a_remote_rail_wins_exactly_above_m(e in ends()) {
        let (s, t) = (e.rails[e.source], e.rails[e.destination]);
        // m as a fraction makes the comparison exact.
        let (numerator, denominator) = match e.source == e.destination {
            true => (s * ONE * ONE, e.near * e.far),
            false if s * e.far > t * e.near => (s * ONE, e.near),
            false => (t * ONE, e.far),
        };
        for x in &e.rails {
            prop_assert_eq!(e.drd(*x) > e.own(), x * denominator > numerator);
        }
    }

    /// The corollary: if H(s) > H(near) or H(t) > H(far), drd over no rail beats an own rail.
    #[test]
    fn no_detour_with_a_ratio_above_one(e in ends()) {
        if e.rails[e.source] > e.near || e.rails[e.destination] > e.far {
            prop_assert!(e.rails.iter().all(|x| e.drd(*x) <= e.own()));
        }
    }
}
