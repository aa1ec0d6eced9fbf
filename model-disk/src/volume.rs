//! The file system of a disk, as the kit calls it.

use std::{
    ffi::OsString,
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use parking_lot::{Condvar, Mutex};
use windlass_kit::disk::{FileSystem, Kind, Open, OpenFile};

use crate::{
    fault::Needs,
    inode::{Content, Inode, NameChange, Names},
    state::State,
};

pub(crate) type Shared = Arc<Mutex<State>>;
/// Syncs of files wait while it is closed; how many do.
pub(crate) type Gate = Arc<(Mutex<(bool, usize)>, Condvar)>;

/// What is mounted: one run of the machine.
#[derive(Debug)]
pub(crate) struct Volume {
    pub(crate) root: PathBuf,
    pub(crate) state: Shared,
    pub(crate) gate: Gate,
}

/// An open file of it.
#[derive(Debug)]
struct Handle {
    state: Shared,
    gate: Gate,
    inode: usize,
}

impl FileSystem for Volume {
    fn open(&self, path: &Path, how: Open) -> io::Result<Box<dyn OpenFile>> {
        let mut state = self.state.lock();
        let found = state.find(&self.root, path, true);
        let makes = matches!(how, Open::New(_)) || (matches!(how, Open::Empty(_) | Open::Append(_)) && found.is_err());
        state.plan.call(if makes {
            Needs::Space
        } else if how == Open::Read {
            Needs::Look
        } else {
            Needs::Change
        })?;
        let inode = match (how, found) {
            (Open::New(_), Ok(_)) => return Err(io::ErrorKind::AlreadyExists.into()),
            (Open::New(mode) | Open::Empty(mode) | Open::Append(mode), Err(error))
                if error.kind() == io::ErrorKind::NotFound =>
            {
                state.make(&self.root, path, Inode::File(Content::default(), mode))?
            }
            (_, found) => found?,
        };
        match &mut state.inodes[inode] {
            Inode::File(content, _) if matches!(how, Open::Empty(_)) => content.truncate(0),
            Inode::File(..) => {}
            _ => return Err(io::ErrorKind::IsADirectory.into()),
        }
        Ok(Box::new(Handle { state: Arc::clone(&self.state), gate: Arc::clone(&self.gate), inode }))
    }

    fn names(&self, dir: &Path) -> io::Result<Vec<OsString>> {
        let mut state = self.state.lock();
        state.plan.call(Needs::Look)?;
        let dir = state.find(&self.root, dir, true)?;
        Ok(state.names(dir)?.keys().map(OsString::from).collect())
    }

    fn kind(&self, path: &Path) -> io::Result<Kind> {
        let mut state = self.state.lock();
        state.plan.call(Needs::Look)?;
        let inode = state.find(&self.root, path, false)?;
        Ok(match &state.inodes[inode] {
            Inode::File(..) => Kind::File,
            Inode::Directory(_) => Kind::Directory,
            Inode::Link(_) => Kind::Link,
        })
    }

    fn make_dir(&self, path: &Path, _: u32) -> io::Result<()> {
        let mut state = self.state.lock();
        state.plan.call(Needs::Space)?;
        state.make(&self.root, path, Inode::Directory(Names::default())).map(drop)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut state = self.state.lock();
        state.plan.call(Needs::Space)?;
        let (from, to) = (state.parent(&self.root, from)?, state.parent(&self.root, to)?);
        let inode = state.names(from.0)?.get(&from.1).copied().ok_or(io::ErrorKind::NotFound)?;
        let replaced = state.names(to.0)?.get(&to.1).copied();
        if let Some(replaced) = replaced {
            match (&state.inodes[inode], &state.inodes[replaced]) {
                (Inode::Directory(_), Inode::Directory(names)) if !names.shown.is_empty() => {
                    return Err(io::ErrorKind::DirectoryNotEmpty.into());
                }
                (Inode::Directory(_), Inode::Directory(_)) => {}
                (Inode::Directory(_), _) => return Err(io::ErrorKind::NotADirectory.into()),
                (_, Inode::Directory(_)) => return Err(io::ErrorKind::IsADirectory.into()),
                _ => {}
            }
        }
        state.names(from.0)?.remove(&from.1);
        state.names(to.0)?.insert(to.1.clone(), inode);
        state.changes.push(NameChange::Move { from, to, inode });
        Ok(())
    }

    fn symlink(&self, target: &Path, link: &Path) -> io::Result<()> {
        let mut state = self.state.lock();
        state.plan.call(Needs::Space)?;
        state.make(&self.root, link, Inode::Link(target.to_owned())).map(drop)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let mut state = self.state.lock();
        state.plan.call(Needs::Change)?;
        let inode = state.find(&self.root, path, false)?;
        if matches!(state.inodes[inode], Inode::Directory(_)) {
            return Err(io::ErrorKind::IsADirectory.into());
        }
        state.unset(&self.root, path)
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        let mut state = self.state.lock();
        state.plan.call(Needs::Change)?;
        let inode = state.find(&self.root, path, false)?;
        if !state.names(inode)?.is_empty() {
            return Err(io::ErrorKind::DirectoryNotEmpty.into());
        }
        state.unset(&self.root, path)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        let mut state = self.state.lock();
        state.plan.call(Needs::Change)?;
        let dir = state.find(&self.root, dir, true)?;
        state.names(dir)?;
        state.sync_dir(dir);
        Ok(())
    }
}

impl OpenFile for Handle {
    fn length(&self) -> io::Result<u64> {
        let mut state = self.state.lock();
        state.plan.call(Needs::Look)?;
        Ok(state.content(self.inode).shown.len() as u64)
    }

    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> io::Result<usize> {
        let mut state = self.state.lock();
        state.plan.call(Needs::Look)?;
        let shown = &state.content(self.inode).shown;
        let rest = shown.get(usize::try_from(offset).unwrap_or(usize::MAX)..).unwrap_or_default();
        let count = rest.len().min(bytes.len());
        bytes[..count].copy_from_slice(&rest[..count]);
        Ok(count)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<usize> {
        self.state.lock().write(self.inode, Some(offset), bytes)
    }

    fn append(&self, bytes: &[u8]) -> io::Result<usize> {
        self.state.lock().write(self.inode, None, bytes)
    }

    fn truncate(&self, length: u64) -> io::Result<()> {
        let mut state = self.state.lock();
        state.plan.call(Needs::Change)?;
        state.content(self.inode).truncate(usize::try_from(length).unwrap_or(usize::MAX));
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        let mut held = self.gate.0.lock();
        held.1 += 1;
        self.gate.1.wait_while(&mut held, |held| held.0);
        held.1 -= 1;
        drop(held);
        let mut state = self.state.lock();
        let failing = state.failing_syncs > 0;
        state.failing_syncs -= usize::from(failing);
        let goes = state.plan.call(Needs::Space);
        let failed = if failing { Err(io::Error::other("the sync has failed")) } else { Ok(()) };
        let (result, mut chance) = (goes.and(failed), state.chance.clone());
        let has_ended = state.plan.has_ended();
        match result {
            Ok(()) => state.content(self.inode).sync(),
            Err(_) if has_ended => {}
            Err(_) => state.content(self.inode).fail_to_sync(&mut chance),
        }
        state.chance = chance;
        result
    }

    fn restrict(&self, mode: u32) -> io::Result<()> {
        let mut state = self.state.lock();
        state.plan.call(Needs::Change)?;
        if let Inode::File(_, is) = &mut state.inodes[self.inode] {
            *is &= mode;
        }
        Ok(())
    }
}
