//! Requests against the router, over a store in memory.
