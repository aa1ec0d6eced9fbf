//! The certificate files, laid out as the kubelet's certificate store: one per certificate, and a link to the current
//! one. A crash at any point leaves either the old or the new one in place.

use std::{
    io,
    path::{Path, PathBuf},
};

use windlass_kit::{
    atomic_file,
    disk::{self, Kind},
};

use super::{
    certified_key::{CertificateTemplate, CertifiedKey, Purpose},
    request::SigningRequest,
    self_signed,
};

/// How many certificates are kept, including the current one.
const KEPT_FILES: usize = 3;

/// The certificates of one purpose.
#[derive(Debug, Clone)]
pub(super) struct Store {
    dir: PathBuf,
    prefix: &'static str,
}

/// Removes all certificates and keys of a node in `dir`, when it leaves its cluster. Other files stay.
///
/// # Errors
/// I/O errors.
pub fn remove_all(dir: &Path) -> io::Result<()> {
    for purpose in [Purpose::Client, Purpose::Serving] {
        let store = Store::new(dir, purpose);
        for file in [store.updated_path(), store.current_path(), store.pending_path()] {
            atomic_file::remove(&file)?;
        }
        for file in store.dated()? {
            atomic_file::remove(&file)?;
        }
    }
    self_signed::remove_all(dir)
}

impl Store {
    pub(super) fn new(dir: &Path, purpose: Purpose) -> Self {
        let prefix = if purpose == Purpose::Client { "kubelet-client" } else { "kubelet-server" };
        Self { dir: dir.to_owned(), prefix }
    }

    pub(super) fn current_path(&self) -> PathBuf {
        self.dir.join(format!("{}-current.pem", self.prefix))
    }

    fn updated_path(&self) -> PathBuf {
        self.dir.join(format!("{}-updated.pem", self.prefix))
    }

    fn pending_path(&self) -> PathBuf {
        self.dir.join(format!("{}-pending.pem", self.prefix))
    }

    /// The current certificate; `None` before the first.
    ///
    /// # Errors
    /// When files cannot be read, or the link is a file.
    pub(super) fn current(&self) -> io::Result<Option<CertifiedKey>> {
        let (current, updated) = (self.current_path(), self.updated_path());
        let unreadable = |error: io::Error| {
            io::Error::new(error.kind(), format!("the certificate {} could not be read: {error}", current.display()))
        };
        let mut found = disk::kind(&current).map_err(unreadable)?;
        // Finishes an update that a crash interrupted before the rename.
        if found.is_none() && disk::kind(&updated).map_err(unreadable)?.is_some() {
            disk::rename(&updated, &current).map_err(unreadable)?;
            found = Some(Kind::Link);
        }
        match found {
            None => return Ok(None),
            Some(Kind::Link) => {}
            Some(Kind::File | Kind::Directory) => {
                let reason = format!("{} is a file and should be a link to one; move it away", current.display());
                return Err(io::Error::new(io::ErrorKind::AlreadyExists, reason));
            }
        }
        let Some(text) = atomic_file::read(&current).map_err(unreadable)? else { return Ok(None) };
        CertifiedKey::from_pem(&text)
            .map(Some)
            .map_err(|why| io::Error::new(io::ErrorKind::InvalidData, format!("{}: {why}", current.display())))
    }

    /// Saves a certificate as the current one. `stamp` is the time in its file name.
    ///
    /// # Errors
    /// I/O errors; then the current one is unchanged.
    pub(super) fn save(&self, pair: &CertifiedKey, stamp: &jiff::civil::DateTime) -> io::Result<()> {
        atomic_file::make_dir(&self.dir, 0o755)?;
        let file = self.dir.join(format!("{}-{}.pem", self.prefix, stamp.strftime("%Y-%m-%d-%H-%M-%S")));
        atomic_file::write_durable(&file, pair.text().as_bytes(), 0o600)?;
        disk::replace_link(&file, &self.current_path(), &self.updated_path())?;
        self.prune(&file);
        Ok(())
    }

    /// Removes all but the newest; failures are retried the next time.
    fn prune(&self, current: &Path) {
        let Ok(dated) = self.dated() else { return };
        let keep = dated.len().saturating_sub(KEPT_FILES);
        for old in dated.into_iter().take(keep).filter(|path| path != current) {
            let _ = disk::of(&old).remove(&old);
        }
    }

    /// Files of certificates, the oldest first.
    fn dated(&self) -> io::Result<Vec<PathBuf>> {
        match disk::entries(&self.dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            all => Ok(all?.into_iter().filter(|path| self.is_dated(path)).collect()),
        }
    }

    fn is_dated(&self, path: &Path) -> bool {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let stamp = name.strip_prefix(self.prefix).and_then(|rest| rest.strip_prefix('-'));
        stamp.and_then(|rest| rest.strip_suffix(".pem")).is_some_and(|stamp| {
            stamp.len() == "2026-01-31-23-59-59".len() && stamp.bytes().all(|b| b.is_ascii_digit() || b == b'-')
        })
    }

    /// The pending request, if it matches the template.
    pub(super) fn pending(&self, wanted: &CertificateTemplate) -> io::Result<Option<SigningRequest>> {
        Ok(atomic_file::read(&self.pending_path())?.and_then(|text| SigningRequest::parse_pending(&text, wanted)))
    }

    pub(super) fn save_pending(&self, request: &SigningRequest) -> io::Result<()> {
        atomic_file::make_dir(&self.dir, 0o755)?;
        atomic_file::write_durable(&self.pending_path(), request.text().as_bytes(), 0o600)
    }

    pub(super) fn remove_pending(&self) -> io::Result<()> {
        atomic_file::remove(&self.pending_path())
    }
}
