//! The shared library as programs in C and Python use it: over its header, in processes of their
//! own, and in this process for what a debugger of another language cannot show.

mod face;
mod header;
mod programs;
mod python;
