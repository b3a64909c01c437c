//! Shrinking: a failing plan becomes the smallest one that fails in the same way.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::{
    plan::{Event, Plan, Shape},
    run,
};

/// Kind of a violation: its text up to the first colon.
pub fn kind_of(violation: &str) -> &str {
    violation.split(':').next().unwrap_or(violation)
}

/// Smaller plans, the smallest first: fewer events, a plainer shape, smaller events.
fn smaller(plan: &Plan) -> Vec<Plan> {
    let mut all = Vec::new();
    let mut without = plan.events.len() / 2;
    while without > 0 {
        for first in (0..plan.events.len()).step_by(without) {
            let mut plan = plan.clone();
            let end = (first + without).min(plan.events.len());
            plan.events.drain(first..end);
            all.push(plan);
        }
        without /= 2;
    }
    let (mut shape, mut plain) = (plan.shape, Shape::default());
    for (i, ((_, value), (_, least))) in shape.fields().iter().zip(plain.fields()).enumerate() {
        let (value, least) = (**value, *least);
        let nearer = value.abs_diff(least) / 2;
        let nearer = if value > least {
            least + nearer
        } else {
            least - nearer
        };
        for smaller in [least, nearer] {
            if smaller != value {
                let mut plan = plan.clone();
                *plan.shape.fields().swap_remove(i).1 = smaller;
                all.push(plan);
            }
        }
    }
    for i in 0..plan.events.len() {
        let n = plan.events[i].n;
        for smaller in [1, n / 2, n.saturating_sub(1)] {
            if smaller > 0 && smaller < n {
                let mut plan = plan.clone();
                plan.events[i].n = smaller;
                all.push(plan);
            }
        }
    }
    all.retain(is_sound);
    all
}

/// Whether all events concern nodes of the shape.
fn is_sound(plan: &Plan) -> bool {
    let concerns = |e: &Event| e.on < plan.shape.count(e.kind.concerns());
    plan.shape.slots > 0 && plan.events.iter().all(concerns)
}

/// Makes a plan smaller while the same kind of violation comes, within `tries` worlds. Returns the
/// plan with its violation. Counts each world in `progress`.
pub fn shrink(plan: &Plan, violation: &str, tries: usize, progress: &AtomicU64) -> (Plan, String) {
    let (mut best, mut text) = (plan.clone(), violation.to_owned());
    let mut left = tries;
    'again: loop {
        for plan in smaller(&best) {
            // The smaller plan may need another order of steps.
            for seed in [best.seed, best.seed ^ 0xbeef, best.seed ^ 0xcafe] {
                if left == 0 {
                    return (best, text);
                }
                left -= 1;
                let plan = Plan {
                    seed,
                    ..plan.clone()
                };
                let found = run(&plan, false).violation;
                progress.fetch_add(1, Ordering::Relaxed);
                if let Some(found) = found.filter(|v| kind_of(v) == kind_of(violation)) {
                    (best, text) = (plan, found);
                    continue 'again;
                }
            }
        }
        return (best, text);
    }
}
