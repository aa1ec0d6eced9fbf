//! `windlass backup` and `windlass restore`: the objects and the certificates of a cluster of one's own, as one archive. A
//! backup is made beside the running node, which does not stop for it; it has all objects at one revision.

#[cfg(test)]
mod tests;

use std::{
    fs::{self, File, OpenOptions},
    io,
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::Context as _;
use windlass_control::{copy_store, restore_store};
use windlass_kit::atomic_file;

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
        let _ = fs::remove_file(&self.0);
    }
}

fn beside(path: &Path, suffix: &str) -> Temporary {
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    Temporary(path.with_file_name(format!(".{name}.{suffix}")))
}

/// Writes the archive as a whole or not at all. Returns the revision.
fn write_archive(data_dir: &Path, file: &Path) -> anyhow::Result<u64> {
    anyhow::ensure!(!file.exists(), "{} is there already: name another file", file.display());
    let (copy, new) = (beside(file, "store"), beside(file, "new"));
    for left in [&copy.0, &new.0] {
        if let Err(error) = fs::remove_file(left)
            && error.kind() != io::ErrorKind::NotFound
        {
            return Err(error).with_context(|| format!("failed to remove {}", left.display()));
        }
    }
    let revision = copy_store(data_dir, &copy.0)?;
    let written = || -> io::Result<()> {
        let out = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new.0)?;
        let mut archive = tar::Builder::new(out);
        archive.append_path_with_name(&copy.0, STORE)?;
        archive.append_dir_all(PKI, data_dir.join(PKI))?;
        archive.into_inner()?.sync_all()?;
        fs::rename(&new.0, file)?;
        // What is said to be done must outlive a cut of the power.
        atomic_file::sync_parent(file)
    };
    written().with_context(|| format!("failed to write {}", file.display()))?;
    Ok(revision)
}

/// Where an archive is unpacked in the data directory, before anything of it takes its place.
const UNPACKED: &str = ".restore";

/// Restores an archive into a data directory without a cluster, as a whole or not at all: after an attempt that failed the next
/// one begins anew.
fn read_archive(file: &Path, data_dir: &Path) -> anyhow::Result<()> {
    let (pki, unpacked) = (data_dir.join(PKI), data_dir.join(UNPACKED));
    if unpacked.is_dir() && !windlass_control::is_data_dir(data_dir) {
        // The process has ended within a restore. What that has put in place has no cluster yet.
        if !unpacked.join(PKI).exists() {
            remove_all(&pki)?;
        }
        remove_all(&unpacked)?;
    }
    anyhow::ensure!(
        !pki.exists() && !windlass_control::is_data_dir(data_dir),
        "{} has a cluster already: stop it (windlass down) and move the directory away first, and its storage, the data of volumes, back afterwards; nothing was changed",
        data_dir.display()
    );
    fs::DirBuilder::new().recursive(true).mode(0o700).create(data_dir)?;
    let restored = unpack(file, &unpacked).and_then(|()| {
        let failed = || format!("failed to put {} in its place", pki.display());
        let has_keys = unpacked.join(PKI).is_dir();
        if has_keys {
            fs::rename(unpacked.join(PKI), &pki).with_context(failed)?;
            atomic_file::sync_parent(&pki).with_context(failed)?;
        }
        // Its last step makes a cluster of the directory.
        restore_store(data_dir, &unpacked.join(STORE)).inspect_err(|_| {
            let _ = has_keys.then(|| fs::remove_dir_all(&pki));
        })?;
        atomic_file::sync_parent(&unpacked).with_context(failed)
    });
    let removed = remove_all(&unpacked);
    restored.and(removed)
}

fn remove_all(dir: &Path) -> anyhow::Result<()> {
    match fs::remove_dir_all(dir) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("failed to remove {}, which a restore has left", dir.display()))
        }
        _ => Ok(()),
    }
}

/// Unpacks an archive into a new directory, of whose content nothing is used unless all of it is there.
fn unpack(file: &Path, into: &Path) -> anyhow::Result<()> {
    let archive = File::open(file).with_context(|| format!("failed to read {}", file.display()))?;
    fs::DirBuilder::new().mode(0o700).create(into)?;
    let mut has_store = false;
    for entry in tar::Archive::new(archive).entries()? {
        let mut entry = entry.with_context(|| format!("{} is no whole archive", file.display()))?;
        let path = entry.path()?.into_owned();
        if path == Path::new(STORE) {
            let mut out = OpenOptions::new().write(true).create_new(true).mode(0o600).open(into.join(STORE))?;
            io::copy(&mut entry, &mut out).with_context(|| format!("{} is no whole archive", file.display()))?;
            has_store = true;
        } else {
            anyhow::ensure!(path.starts_with(PKI), "{} has {path:?} and is no backup of windlass", file.display());
            // Refuses paths that lead out of the directory.
            entry.set_preserve_permissions(true);
            anyhow::ensure!(entry.unpack_in(into)?, "{} has {path:?}, which leads out of it", file.display());
        }
    }
    anyhow::ensure!(has_store, "{} is no backup of windlass", file.display());
    Ok(())
}
