//! Tests of the defaults of missing keys.

use super::*;

#[test]
fn what_is_left_out_has_its_default() {
    // The test of `docs/configuration.md` has the defaults of the other keys.
    let c = good(frontend(&format!("{FRONTEND}{REST}")));
    assert_eq!(c.auth(), Auth::LoopbackOnly);
    let spec = crate::model::ModelSpec::opaque("m", 4, 8);
    assert_eq!(good(accelerator(ACCELERATOR)).model.spec(), Some(spec));
}
