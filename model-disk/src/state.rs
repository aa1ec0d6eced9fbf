//! All of a disk at one moment: as the kernel shows it, and as a cut of the power leaves it.

use std::{
    collections::BTreeMap,
    io,
    path::{Component, Path, PathBuf},
};

use crate::{
    fault::{Goes, Needs, Plan},
    inode::{Chance, Content, Inode, NameChange, Names},
};

const ROOT: usize = 0;
/// Links that a path may lead through.
const MAX_LINKS: usize = 8;

#[derive(Debug, Clone)]
pub(crate) struct State {
    pub(crate) inodes: Vec<Inode>,
    pub(crate) changes: Vec<NameChange>,
    pub(crate) plan: Plan,
    pub(crate) failing_writes: usize,
    pub(crate) failing_syncs: usize,
    pub(crate) free: Option<u64>,
    pub(crate) chance: Chance,
}

impl State {
    /// An empty disk.
    pub(crate) fn new() -> Self {
        Self {
            inodes: vec![Inode::Directory(Names::default())],
            changes: Vec::new(),
            plan: Plan::default(),
            failing_writes: 0,
            failing_syncs: 0,
            free: None,
            chance: Chance(0),
        }
    }

    /// All that was written becomes durable.
    pub(crate) fn settle(&mut self) {
        self.changes.clear();
        for inode in &mut self.inodes {
            match inode {
                Inode::File(content, _) => content.sync(),
                Inode::Directory(names) => names.kept = names.shown.clone(),
                Inode::Link(_) => {}
            }
        }
    }

    pub(crate) fn tree(&self) -> BTreeMap<String, Vec<u8>> {
        let mut all = BTreeMap::new();
        self.collect(ROOT, "", &mut all);
        all
    }

    fn collect(&self, inode: usize, path: &str, all: &mut BTreeMap<String, Vec<u8>>) {
        match &self.inodes[inode] {
            Inode::File(content, _) => drop(all.insert(path.to_owned(), content.shown.clone())),
            Inode::Link(target) => drop(all.insert(path.to_owned(), target.display().to_string().into_bytes())),
            Inode::Directory(names) if names.shown.is_empty() => drop(all.insert(format!("{path}/"), Vec::new())),
            Inode::Directory(names) => {
                for (name, inode) in &names.shown {
                    let inner = if path.is_empty() { name.clone() } else { format!("{path}/{name}") };
                    self.collect(*inode, &inner, all);
                }
            }
        }
    }

    pub(crate) fn cut_power(&mut self) {
        for change in std::mem::take(&mut self.changes) {
            match change {
                NameChange::Move { from, to, inode } => match self.chance.below(3) {
                    0 => {}
                    1 => drop(self.kept(to.0).insert(to.1, inode)),
                    _ => {
                        self.kept(to.0).insert(to.1, inode);
                        self.kept(from.0).remove(&from.1);
                    }
                },
                change => {
                    if self.chance.coin() {
                        self.keep(change);
                    }
                }
            }
        }
        for inode in &mut self.inodes {
            match inode {
                Inode::File(content, _) => content.cut_power(&mut self.chance),
                Inode::Directory(names) => names.shown = names.kept.clone(),
                Inode::Link(_) => {}
            }
        }
    }

    fn kept(&mut self, dir: usize) -> &mut BTreeMap<String, usize> {
        match &mut self.inodes[dir] {
            Inode::Directory(names) => &mut names.kept,
            other => unreachable!("{other:?} is no directory"),
        }
    }

    fn keep(&mut self, change: NameChange) {
        match change {
            NameChange::Set { dir, name, inode } => drop(self.kept(dir).insert(name, inode)),
            NameChange::Unset { dir, name } => drop(self.kept(dir).remove(&name)),
            NameChange::Move { from, to, inode } => {
                self.kept(to.0).insert(to.1, inode);
                self.kept(from.0).remove(&from.1);
            }
        }
    }

    pub(crate) fn sync_dir(&mut self, dir: usize) {
        for change in std::mem::take(&mut self.changes) {
            match change {
                // The end of the old name is in another directory.
                NameChange::Move { from, to, inode } if to.0 == dir && from.0 != dir => {
                    self.kept(dir).insert(to.1, inode);
                    self.changes.push(NameChange::Unset { dir: from.0, name: from.1 });
                }
                NameChange::Move { from, to, inode } if from.0 == dir => {
                    self.keep(NameChange::Move { from, to, inode });
                }
                NameChange::Set { dir: of, .. } | NameChange::Unset { dir: of, .. } if of == dir => self.keep(change),
                other => self.changes.push(other),
            }
        }
    }

    pub(crate) fn names(&mut self, dir: usize) -> io::Result<&mut BTreeMap<String, usize>> {
        match &mut self.inodes[dir] {
            Inode::Directory(names) => Ok(&mut names.shown),
            _ => Err(io::ErrorKind::NotADirectory.into()),
        }
    }

    pub(crate) fn find(&mut self, root: &Path, path: &Path, follow: bool) -> io::Result<usize> {
        let (mut path, mut links) = (path.to_owned(), 0);
        'again: loop {
            let below = path.strip_prefix(root).map_err(|_| io::ErrorKind::NotFound)?.to_owned();
            let parts: Vec<Component<'_>> = below.components().collect();
            let (mut inode, mut at) = (ROOT, root.to_owned());
            for (number, part) in parts.iter().enumerate() {
                let name = part.as_os_str().to_string_lossy().into_owned();
                inode = self.names(inode)?.get(&name).copied().ok_or(io::ErrorKind::NotFound)?;
                let is_last = number + 1 == parts.len();
                if let Inode::Link(target) = &self.inodes[inode]
                    && (follow || !is_last)
                {
                    links += 1;
                    if links > MAX_LINKS {
                        return Err(io::Error::other("too many links"));
                    }
                    path = at.join(target).join(parts[number + 1..].iter().collect::<PathBuf>());
                    continue 'again;
                }
                at.push(name);
            }
            return Ok(inode);
        }
    }

    pub(crate) fn parent(&mut self, root: &Path, path: &Path) -> io::Result<(usize, String)> {
        let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?.to_string_lossy().into_owned();
        let dir = self.find(root, path.parent().ok_or(io::ErrorKind::InvalidInput)?, true)?;
        self.names(dir)?;
        Ok((dir, name))
    }

    pub(crate) fn make(&mut self, root: &Path, path: &Path, inode: Inode) -> io::Result<usize> {
        let (dir, name) = self.parent(root, path)?;
        if self.names(dir)?.contains_key(&name) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        self.inodes.push(inode);
        let inode = self.inodes.len() - 1;
        self.names(dir)?.insert(name.clone(), inode);
        self.changes.push(NameChange::Set { dir, name, inode });
        Ok(inode)
    }

    pub(crate) fn unset(&mut self, root: &Path, path: &Path) -> io::Result<()> {
        let (dir, name) = self.parent(root, path)?;
        self.names(dir)?.remove(&name);
        self.changes.push(NameChange::Unset { dir, name });
        Ok(())
    }

    pub(crate) fn content(&mut self, inode: usize) -> &mut Content {
        match &mut self.inodes[inode] {
            Inode::File(content, _) => content,
            other => unreachable!("{other:?} was opened"),
        }
    }

    pub(crate) fn write(&mut self, inode: usize, at: Option<u64>, bytes: &[u8]) -> io::Result<usize> {
        let mut goes = self.plan.call(Needs::Bytes);
        if self.failing_writes > 0 {
            self.failing_writes -= 1;
            goes = Err(io::ErrorKind::StorageFull.into());
        }
        // A write that fails may have written a part, unless a signal has come before it.
        let count = match &goes {
            Ok(Goes::Well) => bytes.len(),
            Ok(Goes::Short) => bytes.len().div_ceil(2),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => 0,
            Err(error) if error.kind() == io::ErrorKind::ReadOnlyFilesystem => 0,
            Err(_) if self.plan.has_ended() => 0,
            Err(_) => bytes.len() / 2,
        };
        let content = self.content(inode);
        let at = at.map_or(content.shown.len(), |at| usize::try_from(at).unwrap_or(usize::MAX));
        content.write(at, &bytes[..count]);
        goes.map(|_| count)
    }
}
