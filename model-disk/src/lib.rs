//! For tests: a model of a disk beneath `windlass_kit::disk`, which is no kinder than the world. A failing sync leaves some of
//! what it was to write and forgets the rest; names become durable one without the other, and earlier than asked; sectors are
//! torn, and zeros stand where a file grew; the disk is full, or read-only for ever, at any call; a sync may take as long as a
//! test wants.
//!
//! [`Case`] is the loop over all of that: for each call of what is tested, for each fault, for each end.

#![allow(clippy::panic, reason = "a test library fails by panics")]

mod crashing;
mod fault;
mod inode;
mod platter;
mod state;
#[cfg(test)]
mod tests;
mod volume;

use std::path::{Path, PathBuf};

pub use crashing::Crashing;
pub use fault::{ALL, Fault};
pub use platter::Platter;

/// What is promised of that which was acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lasts {
    /// It survives a cut of the power.
    Power,
    /// It survives the end of the process; a cut of the power leaves the old or the new, whole.
    Process,
}

/// What is tested: one change on a disk.
#[expect(missing_debug_implementations, reason = "functions have none")]
pub struct Case<'a> {
    /// What it is, for messages.
    pub what: &'a str,
    /// Makes the state before it, all of which is durable.
    pub prepare: &'a dyn Fn(&Path),
    /// Makes the change, in a directory; it may be repeated after a restart.
    pub act: &'a dyn Fn(&Path) -> Result<(), String>,
    /// Looks as the next start does, and panics unless it finds the old state or the new one, whole; with `true` the new one.
    pub judge: &'a dyn Fn(&Path, bool, &str),
    /// How long the new one lasts.
    pub lasts: Lasts,
    /// What each error must say: what was tried, on what.
    pub says: &'a [&'a str],
}

/// How often a cut of the power is tried for each fault: each leaves something else.
const CUTS: u64 = 4;

impl Case<'_> {
    /// Runs it for each call and each fault, each with each end. Returns the number of pairs of calls and faults.
    ///
    /// # Panics
    /// When the test fails.
    #[must_use]
    pub fn run(&self) -> usize {
        let calls = {
            let (platter, dir) = self.fresh();
            let before = platter.calls();
            (self.act)(&dir).unwrap_or_else(|error| panic!("{}: fails without a fault: {error}", self.what));
            platter.calls() - before
        };
        assert!(calls > 0, "{}: nothing is written to the disk", self.what);
        let mut pairs = 0;
        for (at, fault) in (0..calls).flat_map(|at| ALL.map(|fault| (at, fault))) {
            let mut met = false;
            for seed in 0..=CUTS {
                met |= self.try_one(at, fault, seed);
            }
            pairs += usize::from(met);
        }
        pairs
    }

    fn fresh(&self) -> (Platter, PathBuf) {
        let platter = Platter::new();
        let dir = platter.root().join("data");
        windlass_kit::disk::make_dir(&dir, 0o700).unwrap_or_else(|error| panic!("{error}"));
        (self.prepare)(&dir);
        platter.settle();
        (platter, dir)
    }

    /// One fault, with an end of the process (0) or a cut of the power. Returns whether it has met anything.
    fn try_one(&self, at: usize, fault: Fault, seed: u64) -> bool {
        let (mut platter, dir) = self.fresh();
        platter.set_seed((at as u64) << 8 | seed);
        platter.fail(at, fault);
        let result = (self.act)(&dir);
        if !platter.has_met() {
            return false;
        }
        let end = if seed == 0 { "the process ends" } else { "the power is cut" };
        let what = format!("{}: {fault:?} at call {at}, and {end} ({seed})", self.what);
        let done = self.check_result(fault, &result, &what);
        if seed == 0 {
            platter.kill();
        } else {
            platter.cut_power();
        }
        let lasts = seed == 0 || self.lasts == Lasts::Power;
        (self.judge)(&dir, done && lasts, &what);
        // After a restart it succeeds, and lasts.
        (self.act)(&dir).unwrap_or_else(|error| panic!("{what}: it cannot be done again: {error}"));
        (self.judge)(&dir, true, &format!("{what}, and it was done again"));
        platter.cut_power();
        (self.judge)(&dir, self.lasts == Lasts::Power, &format!("{what}, it was done again, and the power was cut"));
        true
    }

    /// Whether it was acknowledged.
    fn check_result(&self, fault: Fault, result: &Result<(), String>, what: &str) -> bool {
        match result {
            Ok(()) => fault != Fault::Ends,
            Err(error) => {
                assert!(fault != Fault::Interrupted, "{what}: a signal is no failure: {error}");
                let says = fault == Fault::Ends || self.says.iter().all(|word| error.contains(word));
                assert!(says, "{what}: {error:?} does not say {:?}", self.says);
                false
            }
        }
    }

    /// The same on directories of the machine's own, where the process ends or a call fails. There are hundreds of them, and
    /// each syncs: they are in memory, where the machine has such a folder.
    ///
    /// # Panics
    /// When the test fails.
    #[must_use]
    pub fn run_on_real(&self) -> usize {
        let new = || {
            let new =
                tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a directory of its own");
            (self.prepare)(new.path());
            new
        };
        let calls = {
            let dir = new();
            let dir = dir.path();
            let crashing = Crashing::new(dir);
            (self.act)(dir).unwrap_or_else(|error| panic!("{}: fails without a fault: {error}", self.what));
            crashing.calls()
        };
        assert!(calls > 0, "{}: nothing is written to the disk", self.what);
        let mut pairs = 0;
        for (at, fault) in (0..calls).flat_map(|at| ALL.map(|fault| (at, fault))) {
            let dir = new();
            let dir = dir.path();
            let crashing = Crashing::new(dir);
            crashing.fail(at, fault);
            let result = (self.act)(dir);
            if !crashing.has_met() {
                continue;
            }
            pairs += 1;
            let what = format!("{}: {fault:?} at call {at}", self.what);
            let done = self.check_result(fault, &result, &what);
            crashing.mend();
            (self.judge)(dir, done, &what);
            (self.act)(dir).unwrap_or_else(|error| panic!("{what}: it cannot be done again: {error}"));
            (self.judge)(dir, true, &format!("{what}, and it was done again"));
        }
        pairs
    }
}
