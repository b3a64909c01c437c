//! The highest rate at which runs are VALID, and the knobs for it.
//!
//! Whether one run is VALID is a coin whose chance falls with the rate, so no single run says where
//! the limit is. This searches by what LoadGen measured against its limits, and lets a sequential
//! test have the last word. `docs/tune.md` says what it believes and why.
//!
//! Nothing here runs anything, reads a file or looks at a clock: what runs is a [`System`], what a
//! trial cost is in its [`Record`]. So a session that was broken off goes on from its records
//! ([`Replay`]), and the whole of it is tested against systems of known truth ([`pretended`]).
//!
//! | module | what it is for |
//! | --- | --- |
//! | [`system`] | run this setting, give me a record |
//! | [`sprt`] | whether trials at one rate certify or refute it |
//! | [`fit`] | margins against rates: the monotone curve, and where it meets the limit |
//! | [`drift`] | whether margins have moved since the session began |
//! | [`highest`] | a bracket and a bisection, fed with verdicts |
//! | [`search`] | the highest rate |
//! | [`knobs`] | settings compared in pairs |
//! | [`session`] | a search, knobs, the search again, one full run |
//! | [`page`] | what came of it, for people |
//! | [`random`] | numbers from a seed |
//! | [`pretended`], [`others`] | systems of known truth, and the plain searches beside ours |

pub mod drift;
pub mod fit;
pub mod highest;
pub mod knobs;
pub mod others;
pub mod page;
pub mod pretended;
pub mod random;
pub mod search;
pub mod session;
pub mod sprt;
pub mod system;

pub use session::{Plan, Session};

pub use system::{Halt, Limit, Record, Replay, Setting, System, Tell, Trial, Why};
