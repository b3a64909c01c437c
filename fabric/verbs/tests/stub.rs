//! Runs the shared cases on the in-process provider: it fulfils the same contract as real devices.
#![allow(clippy::expect_used, clippy::unwrap_used)]

#[macro_use]
#[path = "soft_roce/cases.rs"]
mod cases;
#[macro_use]
#[path = "soft_roce/rig.rs"]
mod rig;

#[path = "soft_roce/control.rs"]
mod control;
#[path = "soft_roce/data.rs"]
mod data;
#[path = "soft_roce/failure.rs"]
mod failure;

use std::sync::Arc;

use verbs::{Verbs, stub};

fn devices() -> (Arc<Verbs>, String, String) {
    (stub::verbs(), "stub0".to_owned(), "stub1".to_owned())
}

common_cases!();
