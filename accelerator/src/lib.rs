//! The accelerator node.
