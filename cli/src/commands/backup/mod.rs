//! `windlass backup` and `windlass restore`: the objects and the certificates of a cluster of one's own, as one archive. A
//! backup is made alongside the running node, which does not stop for it; it has all objects at one revision.

#[cfg(test)]
mod tests;

use std::{
    collections::BTreeSet,
    fs::File,
    io::{self, Read, Write as _},
    path::{Component, Path, PathBuf},
    process::ExitCode,
};

use anyhow::Context as _;
use windlass_control::{
    RESTORE_DIR, copy_store, finish_restore, has_store, is_data_dir, remove_unmarked_store, restore_store,
};
use windlass_kit::{
    atomic_file,
    disk::{self, Open, Sequential},
};

use super::{require_root, say};
use crate::config::Settings;

#[derive(Debug, clap::Args)]
pub(crate) struct BackupArgs {
    /// The archive, which must not exist: it has all secrets of the cluster
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

#[derive(Debug, clap::Args)]
pub(crate) struct RestoreArgs {
    /// An archive of `windlass backup`
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

/// The copy of the store, in the archive.
const STORE: &str = "store.log";
/// The certificates and keys, in the archive and in the data directory.
const PKI: &str = "pki";

pub(super) fn backup(args: &BackupArgs, settings: &Settings) -> anyhow::Result<ExitCode> {
    require_root("windlass backup")?;
    let revision = write_archive(&settings.data_dir, &args.file)?;
    say(format!(
        "{} has all objects at revision {revision}, and the certificates; keep it secret",
        args.file.display()
    ));
    Ok(ExitCode::SUCCESS)
}

pub(super) fn restore(args: &RestoreArgs, settings: &Settings) -> anyhow::Result<ExitCode> {
    require_root("windlass restore")?;
    read_archive(&args.file, &settings.data_dir)?;
    say(format!("{} is restored; windlass up goes on from there", settings.data_dir.display()));
    Ok(ExitCode::SUCCESS)
}

/// A file that is removed at the end.
struct Temporary(PathBuf);

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = disk::of(&self.0).remove(&self.0);
    }
}

fn beside(path: &Path, suffix: &str) -> Temporary {
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    Temporary(path.with_file_name(format!(".{name}.{suffix}")))
}

/// Writes the archive as a whole or not at all. Returns the revision.
fn write_archive(data_dir: &Path, file: &Path) -> anyhow::Result<u64> {
    let is_there = disk::kind(file).with_context(|| format!("failed to look for {}", file.display()))?.is_some();
    anyhow::ensure!(!is_there, "{} is there already: name another file", file.display());
    let (copy, new) = (beside(file, "store"), beside(file, "new"));
    for left in [&copy.0, &new.0] {
        atomic_file::remove(left).with_context(|| format!("failed to remove {}", left.display()))?;
    }
    let revision = copy_store(data_dir, &copy.0)?;
    let written = || -> io::Result<()> {
        let mut archive = tar::Builder::new(Sequential::new(disk::open(&new.0, Open::New(0o600))?));
        archive.append_path_with_name(&copy.0, STORE)?;
        append_tree(&mut archive, &data_dir.join(PKI), Path::new(PKI))?;
        archive.into_inner()?.file.sync()?;
        // A reported success must survive a power failure, and after a reported failure the file must not exist.
        disk::rename(&new.0, file).inspect_err(|_| drop(disk::of(file).remove(file)))
    };
    written().with_context(|| format!("failed to write {}", file.display()))?;
    Ok(revision)
}

/// Appends a directory with the files and directories in it, by their names. Anything else, such as links, is refused:
/// a cluster restored elsewhere would lack the targets.
fn append_tree(archive: &mut tar::Builder<Sequential>, dir: &Path, name: &Path) -> io::Result<()> {
    let failed = |path: &Path, error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
    archive.append_dir(name, dir)?;
    let mut names = disk::of(dir).names(dir).map_err(|error| failed(dir, error))?;
    names.sort();
    for entry in names {
        let (path, name) = (dir.join(&entry), name.join(&entry));
        let kind = match path.symlink_metadata() {
            Ok(found) => found.file_type(),
            // A file that was only there until it took the place of another.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(failed(&path, error)),
        };
        if kind.is_dir() {
            append_tree(archive, &path, &name)?;
        } else if kind.is_file() {
            let mut file = match File::open(&path) {
                Ok(file) => file,
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(failed(&path, error)),
            };
            archive.append_file(&name, &mut file)?;
        } else {
            let why =
                "neither a file nor a directory, and what it leads to would not be in a backup: put that in its place";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{} is {why}", path.display())));
        }
    }
    Ok(())
}

/// Restores an archive into a data directory without a cluster, as a whole or not at all: after an attempt that failed, or was cut
/// off, the next one begins again.
fn read_archive(file: &Path, data_dir: &Path) -> anyhow::Result<()> {
    let (pki, unpacked) = (data_dir.join(PKI), data_dir.join(RESTORE_DIR));
    let failed = || format!("failed to read {}", data_dir.display());
    if disk::kind(&unpacked).with_context(failed)?.is_some() {
        undo(data_dir)?;
    }
    let is_free = disk::kind(&pki).with_context(failed)?.is_none() && !is_data_dir(data_dir) && !has_store(data_dir);
    anyhow::ensure!(
        is_free,
        "{} has a cluster already: stop it (windlass down) and move the directory away first, and its storage, the data of volumes, back afterwards; nothing was changed",
        data_dir.display()
    );
    disk::make_dir(data_dir, 0o700).with_context(|| format!("failed to make {}", data_dir.display()))?;
    let put = unpack(file, &unpacked).and_then(|()| {
        if disk::kind(&unpacked.join(PKI)).with_context(failed)?.is_some() {
            disk::rename(&unpacked.join(PKI), &pki)
                .with_context(|| format!("failed to put {} in its place", pki.display()))?;
        }
        // Its last step makes a cluster of the directory.
        Ok(restore_store(data_dir, &unpacked.join(STORE))?)
    });
    if let Err(error) = put {
        // What is left is undone by the next attempt.
        let _ = undo(data_dir);
        return Err(error);
    }
    remove_all(&unpacked)
}

/// Undoes an incomplete restore: removes what it put into a directory that is no data directory yet. After a complete
/// one, only its leftovers are removed. The directory it unpacks into is removed last, so that the next attempt sees
/// it.
fn undo(data_dir: &Path) -> anyhow::Result<()> {
    if is_data_dir(data_dir) {
        return Ok(finish_restore(data_dir)?);
    }
    // First, for it looks for the mark once more.
    remove_unmarked_store(data_dir)?;
    remove_all(&data_dir.join(PKI))?;
    disk::of(data_dir).sync_dir(data_dir).with_context(|| format!("failed to write {}", data_dir.display()))?;
    remove_all(&data_dir.join(RESTORE_DIR))
}

fn remove_all(dir: &Path) -> anyhow::Result<()> {
    disk::remove_tree(dir).with_context(|| format!("failed to remove {}, which a restore has left", dir.display()))
}

/// Unpacks an archive into a new directory, which is used only once it is complete and durable.
fn unpack(file: &Path, into: &Path) -> anyhow::Result<()> {
    let archive = File::open(file).with_context(|| format!("failed to read {}", file.display()))?;
    let no_archive = || format!("{} is no whole archive", file.display());
    let make = |dir: &Path, mode| {
        disk::make_dir(dir, mode).with_context(|| format!("failed to make {}", dir.display()))?;
        anyhow::Ok(dir.to_owned())
    };
    let mut made = BTreeSet::from([make(into, 0o700)?]);
    let mut has_store = false;
    for entry in tar::Archive::new(archive).entries()? {
        let mut entry = entry.with_context(no_archive)?;
        let path = entry.path()?.into_owned();
        let (kind, mode) = (entry.header().entry_type(), entry.header().mode().with_context(no_archive)? & 0o777);
        if path == Path::new(STORE) {
            write_new(&into.join(STORE), 0o600, &mut entry, &no_archive)?;
            has_store = true;
            continue;
        }
        anyhow::ensure!(path.starts_with(PKI), "{} has {path:?} and is no backup of windlass", file.display());
        let is_inside = path.components().all(|part| matches!(part, Component::Normal(_)));
        anyhow::ensure!(is_inside, "{} has {path:?}, which leads out of it", file.display());
        let to = into.join(&path);
        if kind.is_dir() {
            made.insert(make(&to, mode)?);
            continue;
        }
        anyhow::ensure!(kind.is_file(), "{} has {path:?}, which is neither file nor directory", file.display());
        made.insert(make(to.parent().unwrap_or(into), 0o700)?);
        write_new(&to, mode, &mut entry, &no_archive)?;
    }
    anyhow::ensure!(has_store, "{} is no backup of windlass", file.display());
    made.iter()
        .try_for_each(|dir| disk::of(dir).sync_dir(dir).with_context(|| format!("failed to write {}", dir.display())))
}

/// Writes a new file of an archive, and has it on the disk.
fn write_new(path: &Path, mode: u32, from: &mut impl Read, no_archive: &dyn Fn() -> String) -> anyhow::Result<()> {
    let failed = || format!("failed to write {}", path.display());
    let mut to = Sequential::new(disk::open(path, Open::New(mode)).with_context(failed)?);
    let mut chunk = vec![0; 1 << 16];
    loop {
        let count = from.read(&mut chunk).with_context(no_archive)?;
        if count == 0 {
            return to.file.sync().with_context(failed);
        }
        to.write_all(&chunk[..count]).with_context(failed)?;
    }
}
