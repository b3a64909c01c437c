//! Whole pages, comparisons and rows of runs that never were.

mod common;
mod compare;
mod kinds;
mod page;
mod rows;
mod vendored;
