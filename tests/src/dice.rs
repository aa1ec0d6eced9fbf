//! Random choices that a seed repeats.

/// A small random generator (Marsaglia's xorshift).
#[derive(Debug)]
pub struct Dice(u64);

impl Dice {
    /// The same choices for the same seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        // From 0 it would not move.
        Self(seed.max(1))
    }

    /// A number below `sides`.
    pub fn below(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % sides.max(1)
    }

    /// One of the places of a list of this length.
    pub fn index(&mut self, length: usize) -> usize {
        usize::try_from(self.below(length as u64)).unwrap_or(0)
    }
}
