//! The conformance suite: each clause of the contract as a function that joins two endpoints and
//! panics where the fabric breaks the clause.
//!
//! A fabric implements [`Fabric`] and calls [`fabric_conformance!`], which makes one test of each
//! case:
//!
//! * `delivery`: writes arrive, in order, and wake a sleeping receiver.
//! * `refusals`: writes out of bounds or without a grant are refused.
//! * `parts`: writes of slots in parts.
//! * `queue`: the send queue and the retirement of its memory.
//! * `breaking`: the end of a connection.

pub mod breaking;
pub mod delivery;
pub mod parts;
pub mod queue;
pub mod refusals;
mod rig;

use std::time::Duration;

use fabric::{Endpoint, Link};

/// A fabric under test.
pub trait Fabric: Sync {
    /// Joins two endpoints.
    fn pair(&self, a: Endpoint, b: Endpoint) -> (Link, Link);

    /// Whether a refused write leaves the slot untouched. A NIC writes first, and the receiver
    /// detects the fault afterwards.
    fn looks_before_bytes_land(&self) -> bool {
        true
    }

    /// Why this machine cannot run the fabric, if so.
    fn absent(&self) -> Option<String> {
        None
    }

    /// Whether writes arrive in the order of posting.
    fn keeps_order(&self) -> bool {
        true
    }

    /// Whether slots may be written in parts.
    fn takes_parts(&self) -> bool {
        self.keeps_order()
    }

    /// Whether writes stay in the sender's queue until the peer's software reads. A NIC delivers
    /// all writes, since each write has its slot.
    fn fills_up_unread(&self) -> bool {
        true
    }

    /// Requests of the long exchange.
    fn exchanges(&self) -> usize {
        4000
    }

    /// Time limit for the next event. There is no limit for a whole case, which depends on the
    /// machine's speed.
    fn patience(&self) -> Duration {
        Duration::from_secs(20)
    }
}

/// Runs one case of a module, if this machine has the fabric and the fabric takes the module's
/// writes. Otherwise the case prints `skipped: REASON`, which `cargo xtask test` counts.
pub fn run(fabric: &dyn Fabric, module: &str, case: fn(&dyn Fabric)) {
    if let Some(why) = fabric.absent() {
        return println!("skipped: {why}");
    }
    if module == "parts" && !fabric.takes_parts() {
        return println!("skipped: this fabric takes no slots in parts");
    }
    case(fabric);
}

/// Makes one test of each case. The expression names the fabric as seen from a module inside the
/// caller's module. An attribute before the expression applies to each test:
/// `fabric_conformance!(#[ignore = "needs a device"] super::MyFabric)`.
macro_rules! fabric_conformance {
    (@cases $attribute:tt $fabric:expr; $($module:ident: $($case:ident)*;)*) => {
        mod conformance_suite {
            $($(fabric_conformance!(@case $attribute $fabric; $module $case);)*)*
        }
    };
    (@case [$(#[$attribute:meta])?] $fabric:expr; $module:ident $case:ident) => {
        #[test]
        $(#[$attribute])?
        fn $case() {
            use $crate::conformance::{self, $module};
            conformance::run(&$fabric, stringify!($module), $module::$case);
        }
    };
    (@suite $attribute:tt $fabric:expr) => {
        fabric_conformance!(@cases $attribute $fabric;
            breaking:
                a_dead_peer_breaks_the_connection_after_what_it_sent
                nothing_lands_after_a_connection_is_torn_down;
            delivery:
                bytes_arrive_whole_and_in_order
                control_messages_keep_their_place
                a_request_with_options_arrives_marked_and_whole
                a_sleeper_is_woken
                slots_are_used_again_and_again_in_both_directions;
            parts:
                parts_land_behind_one_another
                parts_of_any_size_and_mixture_arrive_as_sent
                a_part_past_its_slot_breaks_the_connection
                a_part_at_another_offset_breaks_the_connection
                an_empty_part_breaks_the_connection;
            queue:
                a_full_send_queue_is_an_answer_and_not_a_wait
                inline_memory_is_free_at_once
                retired_memory_is_free;
            refusals:
                a_post_outside_its_bounds_is_refused
                a_write_that_begins_inside_its_slot_breaks_the_connection
                a_write_outside_its_slot_breaks_the_connection
                a_write_without_a_grant_breaks_the_connection
                a_second_write_to_a_slot_breaks_the_connection
                a_write_with_a_wrong_use_count_breaks_the_connection;
        );
    };
    (#[$attribute:meta] $fabric:expr) => {
        fabric_conformance!(@suite [#[$attribute]] $fabric);
    };
    ($fabric:expr) => {
        fabric_conformance!(@suite [] $fabric);
    };
}
