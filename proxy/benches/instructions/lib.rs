//! Nothing of its own: see `benches`.
