//! Collectives on a thread that waits.
