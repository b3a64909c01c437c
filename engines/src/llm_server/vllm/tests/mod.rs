//! Tests of the engine against scripted cores, which `core.py` plays as processes of their own.

mod answers;
mod ends;
mod rig;
mod starts;
