//! libibverbs, found at run time.
