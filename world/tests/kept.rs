//! Plans that have found a fault before.

use world::{plan::Plan, run};

#[test]
fn every_kept_plan_keeps_all_invariants_and_repeats_its_history() {
    let mut plans = 0;
    let mut broken = Vec::new();
    let mut sentence = "";
    for line in include_str!("../kept.txt").lines() {
        if !line.starts_with("seed=") {
            sentence = line;
            continue;
        }
        let plan = Plan::parse(line).expect(line);
        assert_eq!(plan.to_string(), line, "the text of a plan is the plan");
        let (first, second) = (run(&plan, false), run(&plan, false));
        broken.extend(first.violation.as_ref().map(|v| format!("{sentence}\n{v}")));
        assert_eq!(first, second, "{line}");
        plans += 1;
    }
    assert_eq!(broken, [""; 0]);
    assert!(plans > 0, "no plan is kept");
}
