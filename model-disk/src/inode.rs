//! A file of which the kernel keeps what the disk does not have yet, and directories of which the same holds.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
};

/// What a disk writes as a whole.
const SECTOR: usize = 512;

/// A pseudo-random generator with a fixed seed, so that every run is the same.
#[derive(Debug, Clone)]
pub(crate) struct Chance(pub(crate) u64);

impl Chance {
    pub(crate) fn below(&mut self, count: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % count
    }

    pub(crate) fn coin(&mut self) -> bool {
        self.below(2) == 0
    }
}

/// The content of a file.
#[derive(Debug, Clone, Default)]
pub(crate) struct Content {
    /// As readers see it.
    pub(crate) shown: Vec<u8>,
    /// As it is after the power was cut.
    pub(crate) kept: Vec<u8>,
    /// Sectors that the kernel still has to write.
    unwritten: BTreeSet<usize>,
    /// The shortest that it was since the last sync.
    cut_to: Option<usize>,
}

impl Content {
    /// One that is on the disk.
    pub(crate) fn durable(bytes: Vec<u8>) -> Self {
        Self { kept: bytes.clone(), shown: bytes, ..Self::default() }
    }

    pub(crate) fn write(&mut self, at: usize, bytes: &[u8]) {
        let (before, end) = (self.shown.len(), at + bytes.len());
        if bytes.is_empty() {
            return;
        }
        self.shown.resize(before.max(end), 0);
        self.shown[at..end].copy_from_slice(bytes);
        self.unwritten.extend(at / SECTOR..end.div_ceil(SECTOR));
    }

    pub(crate) fn truncate(&mut self, length: usize) {
        if length < self.shown.len() {
            self.cut_to = Some(self.cut_to.unwrap_or(length).min(length));
        }
        self.shown.resize(length, 0);
        self.unwritten.retain(|sector| sector * SECTOR < length);
    }

    fn write_sector(&mut self, sector: usize) {
        let (start, end) = (sector * SECTOR, (sector * SECTOR + SECTOR).min(self.shown.len()));
        if start < end {
            self.kept.resize(self.kept.len().max(end), 0);
            self.kept[start..end].copy_from_slice(&self.shown[start..end]);
        }
    }

    pub(crate) fn sync(&mut self) {
        self.cut_to = None;
        self.kept.truncate(self.shown.len());
        for sector in std::mem::take(&mut self.unwritten) {
            self.write_sector(sector);
        }
        self.kept.resize(self.shown.len(), 0);
    }

    /// As in ext4 and xfs: some of the sectors have reached the disk, the failure is reported once, and all of them
    /// count as written from then on. The length is known to be unwritten.
    pub(crate) fn fail_to_sync(&mut self, chance: &mut Chance) {
        for sector in std::mem::take(&mut self.unwritten) {
            if chance.coin() {
                self.write_sector(sector);
            }
        }
    }

    /// The power is cut: the kernel has written some sectors by itself, the new length or not; where it has written the length
    /// alone there are zeros.
    pub(crate) fn cut_power(&mut self, chance: &mut Chance) {
        let unwritten = std::mem::take(&mut self.unwritten);
        match self.cut_to.take() {
            Some(length) if chance.coin() => {
                self.kept.truncate(length);
                unwritten.into_iter().filter(|_| chance.coin()).for_each(|sector| self.write_sector(sector));
            }
            // What is behind the end that was cut is in other places of the disk.
            Some(length) => {
                let before = unwritten.into_iter().filter(|sector| (sector + 1) * SECTOR <= length);
                before.filter(|_| chance.coin()).for_each(|sector| self.write_sector(sector));
            }
            None => unwritten.into_iter().filter(|_| chance.coin()).for_each(|sector| self.write_sector(sector)),
        }
        if self.kept.len() < self.shown.len() && chance.coin() {
            self.kept.resize(self.shown.len(), 0);
        }
        self.shown = self.kept.clone();
    }
}

/// A directory: which name leads to which inode.
#[derive(Debug, Clone, Default)]
pub(crate) struct Names {
    pub(crate) shown: BTreeMap<String, usize>,
    /// Those that a cut of the power leaves.
    pub(crate) kept: BTreeMap<String, usize>,
}

#[derive(Debug, Clone)]
pub(crate) enum Inode {
    File(Content, u32),
    Directory(Names),
    Link(PathBuf),
}

/// A change of names that is not durable yet.
#[derive(Debug, Clone)]
pub(crate) enum NameChange {
    Set {
        dir: usize,
        name: String,
        inode: usize,
    },
    Unset {
        dir: usize,
        name: String,
    },
    /// The new name may become durable without the end of the old one, and not the other way round.
    Move {
        from: (usize, String),
        to: (usize, String),
        inode: usize,
    },
}
