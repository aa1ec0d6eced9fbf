//! What a disk does to a call, and from then on.

use std::io;

/// What happens at a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// It fails, once.
    Error,
    /// It and all that follow fail, until the disk is mended.
    Broken,
    /// The file system is read-only from here on, as ext4 makes it after an error.
    ReadOnly,
    /// Nothing is left of the space, for this call.
    NoSpaceOnce,
    /// Nothing is left of the space, until the disk is mended: a removal makes none, since others take it.
    NoSpace,
    /// A signal interrupts it; where it is repeated, the disk takes a part at a time.
    Interrupted,
    /// It succeeds, and the process ends: no further call has an effect.
    Ends,
}

/// All of them.
pub const ALL: [Fault; 7] =
    [Fault::Error, Fault::Broken, Fault::ReadOnly, Fault::NoSpaceOnce, Fault::NoSpace, Fault::Interrupted, Fault::Ends];

/// What a call needs of the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Needs {
    /// That it can be read.
    Look,
    /// That it can be changed.
    Change,
    /// That there is space: for names, for bytes, and at a sync for what was promised before.
    Space,
    /// That, for bytes, of which it may take a part.
    Bytes,
}

/// Which call meets which fault.
#[derive(Debug, Clone, Default)]
pub(crate) struct Plan {
    calls: usize,
    /// The first call that meets it, and the first that does not.
    fault: Option<(usize, usize, Fault)>,
    /// The fault has met a call.
    met: bool,
}

/// The outcome of a call that does not fail at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Goes {
    Well,
    /// It takes a part of the bytes.
    Short,
}

impl Plan {
    pub(crate) fn calls(&self) -> usize {
        self.calls
    }

    pub(crate) fn has_met(&self) -> bool {
        self.met
    }

    /// The process has ended at a call.
    pub(crate) fn has_ended(&self) -> bool {
        self.met && self.fault.is_some_and(|(_, _, fault)| fault == Fault::Ends)
    }

    /// Has a call meet a fault, counted from now on.
    pub(crate) fn set(&mut self, at: usize, fault: Fault) {
        let last = match fault {
            Fault::Error | Fault::NoSpaceOnce => 1,
            Fault::Interrupted => 3,
            _ => usize::MAX,
        };
        let first = self.calls.saturating_add(at);
        (self.fault, self.met) = (Some((first, first.saturating_add(last), fault)), false);
    }

    /// All calls of a range fail.
    pub(crate) fn set_range(&mut self, calls: std::ops::Range<usize>) {
        let of = |at: usize| self.calls.saturating_add(at);
        (self.fault, self.met) = (Some((of(calls.start), of(calls.end), Fault::Broken)), false);
    }

    pub(crate) fn mend(&mut self) {
        self.fault = None;
    }

    /// Counts a call.
    pub(crate) fn call(&mut self, needs: Needs) -> io::Result<Goes> {
        let now = self.calls;
        self.calls += 1;
        let Some((first, _, fault)) = self.fault.filter(|(first, end, _)| (*first..*end).contains(&now)) else {
            return Ok(Goes::Well);
        };
        let (is_first, takes_space) = (now == first, matches!(needs, Needs::Space | Needs::Bytes));
        let error = match fault {
            Fault::Error | Fault::Broken => io::Error::other("the disk has failed"),
            Fault::ReadOnly if needs == Needs::Look => return Ok(Goes::Well),
            Fault::ReadOnly => io::ErrorKind::ReadOnlyFilesystem.into(),
            Fault::NoSpaceOnce | Fault::NoSpace if takes_space => io::ErrorKind::StorageFull.into(),
            Fault::Interrupted if needs == Needs::Bytes && is_first => io::ErrorKind::Interrupted.into(),
            Fault::Interrupted if needs == Needs::Bytes => {
                self.met = true;
                return Ok(Goes::Short);
            }
            Fault::NoSpaceOnce | Fault::NoSpace | Fault::Interrupted => return Ok(Goes::Well),
            Fault::Ends if is_first => {
                self.met = true;
                return Ok(Goes::Well);
            }
            Fault::Ends => io::Error::other("the process has ended"),
        };
        self.met = true;
        Err(error)
    }
}
