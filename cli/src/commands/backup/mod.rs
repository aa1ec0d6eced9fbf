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
        fs::rename(&new.0, file)
    };
    written().with_context(|| format!("failed to write {}", file.display()))?;
    Ok(revision)
}

/// Restores an archive into a data directory without a cluster.
fn read_archive(file: &Path, data_dir: &Path) -> anyhow::Result<()> {
    let open = || File::open(file).with_context(|| format!("failed to read {}", file.display()));
    let pki = data_dir.join(PKI);
    anyhow::ensure!(
        !pki.exists() && !windlass_control::is_data_dir(data_dir),
        "{} has a cluster already: stop it (windlass down) and move the directory away first, and its storage, the data of volumes, back afterwards; nothing was changed",
        data_dir.display()
    );
    fs::DirBuilder::new().recursive(true).mode(0o700).create(data_dir)?;
    let copy = Temporary(data_dir.join("store.new"));
    let mut has_store = false;
    for entry in tar::Archive::new(open()?).entries()? {
        let mut entry = entry.with_context(|| format!("{} is no whole archive", file.display()))?;
        let path = entry.path()?.into_owned();
        if path == Path::new(STORE) {
            let mut out = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&copy.0)?;
            io::copy(&mut entry, &mut out).with_context(|| format!("{} is no whole archive", file.display()))?;
            has_store = true;
        } else {
            anyhow::ensure!(path.starts_with(PKI), "{} has {path:?} and is no backup of windlass", file.display());
            // Refuses paths that lead out of the directory.
            entry.set_preserve_permissions(true);
            anyhow::ensure!(entry.unpack_in(data_dir)?, "{} has {path:?}, which leads out of it", file.display());
        }
    }
    anyhow::ensure!(has_store, "{} is no backup of windlass", file.display());
    Ok(restore_store(data_dir, &copy.0)?)
}
