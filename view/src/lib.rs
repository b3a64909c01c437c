//! Screens and pages as data: numbers with units, labelled facts, tables and charts.
//!
//! | module | purpose |
//! | --- | --- |
//! | `numbers` | numbers with units, wrapped lines |
//! | `facts` | labelled facts, as text and as JSON ([`Page`]) |
//! | [`model`] | sections, tables and their cells |
//! | [`chart`] | charts as data |
//! | [`terminal`] | a model as text |
//! | [`node`] | the figures of a node, that the reports of both programs have |

pub mod chart;
mod facts;
pub mod model;
pub mod node;
mod numbers;
pub mod terminal;

pub use facts::{Page, RED, YELLOW, memory};
pub use numbers::{
    WIDTH, accuracy, bit_rate, bytes, counted, cut, date, grouped, percent, rate, short, three,
    time_us, wrap,
};
