//! Random choices that a seed repeats.

/// The variable that repeats a run that chose at random.
const SEED: &str = "TEST_SEED";

/// The seed of this run: of `TEST_SEED`, else of the clock. It is printed, so that a failure can be had again.
///
/// # Panics
/// When `TEST_SEED` is no number.
#[must_use]
pub fn seed() -> u64 {
    let of_clock = || std::time::UNIX_EPOCH.elapsed().map_or(1, |since| u64::from(since.subsec_nanos()));
    let seed = std::env::var(SEED).ok().map_or_else(of_clock, |text| {
        text.parse().unwrap_or_else(|_| panic!("{SEED} is {text:?} and not a number, as a failed run has printed"))
    });
    println!("the seed is {seed}; {SEED}={seed} repeats it");
    seed
}

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

    /// Choices of a run's seed that are others than those of the same run for anything else.
    #[must_use]
    pub fn of(seed: u64, what: &str) -> Self {
        // FNV-1a.
        let mixed = what.bytes().fold(0xcbf2_9ce4_8422_2325 ^ seed, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
        Self::new(mixed)
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
