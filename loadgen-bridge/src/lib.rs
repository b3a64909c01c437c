//! MLCommons LoadGen behind a C shim.
