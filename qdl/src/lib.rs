//! The Query Dispatch Library.
