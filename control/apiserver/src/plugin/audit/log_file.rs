//! A file of lines that is replaced by a new one when it is large, as lumberjack, which upstream uses, does.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
    time::Duration,
};

use jiff::{SignedDuration, Timestamp};

/// Only the owner reads who did what.
const MODE: u32 = 0o600;

/// Which of the older files are kept, as lumberjack's `MaxBackups` and `MaxAge`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Retention {
    pub(super) max_backups: usize,
    /// By the times in their names; 0 for any age.
    pub(super) max_age_days: u32,
}

/// The file and the older ones next to it.
#[derive(Debug)]
pub(super) struct LogFile {
    path: PathBuf,
    /// Where lines go, whatever its name is by now: it is given up only for the next one.
    file: File,
    bytes: u64,
    max_bytes: u64,
    retention: Retention,
    /// The last write ended within a line.
    torn: bool,
    /// Why the file was not rotated when it was due; reported once.
    problem: Option<String>,
}

impl LogFile {
    /// Opens the file to append to it; its directory must exist. Older files that are not kept are removed.
    pub(super) fn open(path: &Path, max_bytes: u64, retention: Retention) -> io::Result<Self> {
        let file = append_to(path)?;
        let bytes = file.metadata()?.len();
        let opened = Self { path: path.to_owned(), file, bytes, max_bytes, retention, torn: false, problem: None };
        if let Err(error) = opened.remove_old_backups(Timestamp::now()) {
            // Events are worth more than room: those that are due are removed at the next rotation.
            tracing::warn!(%error, path = %path.display(), "failed to remove old files of the audit log");
        }
        Ok(opened)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Appends a line, after a rotation if the file would be too large with it. A rotation that fails is tried again
    /// with the next line, and loses none.
    pub(super) fn append(&mut self, line: &[u8]) -> io::Result<()> {
        self.append_with(line, append_to)
    }

    /// [`append`](Self::append), with the function that opens the next file.
    pub(super) fn append_with(&mut self, line: &[u8], open: impl Fn(&Path) -> io::Result<File>) -> io::Result<()> {
        let more = u64::try_from(line.len()).unwrap_or(u64::MAX);
        if self.bytes > 0 && self.bytes.saturating_add(more) > self.max_bytes {
            self.rotate(open);
        }
        if self.torn {
            self.file.write_all(b"\n")?;
            self.torn = false;
        }
        // How much of a line that fails was written is not known.
        self.file.write_all(line).inspect_err(|_| self.torn = true)?;
        self.bytes = self.bytes.saturating_add(more);
        Ok(())
    }

    fn rotate(&mut self, open: impl Fn(&Path) -> io::Result<File>) {
        let replaced = self.replace(open);
        let problem =
            replaced.and_then(|()| self.remove_old_backups(Timestamp::now())).err().map(|error| error.to_string());
        if let Some(problem) = problem.as_ref().filter(|now| self.problem.as_ref() != Some(now)) {
            tracing::warn!(
                problem,
                path = %self.path.display(),
                "failed to replace the audit log, which is as large as it may be; it grows on, retrying with each event"
            );
        }
        self.problem = problem;
    }

    /// Moves the file away, if it is still there, and opens a new one; if that fails it gets its name back.
    fn replace(&mut self, open: impl Fn(&Path) -> io::Result<File>) -> io::Result<()> {
        if let Some(dir) = self.path.parent() {
            fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
        }
        let backup = self.free_backup_path(Timestamp::now());
        let moved = match fs::rename(&self.path, &backup) {
            Ok(()) => true,
            // Somebody else has moved it away.
            Err(error) if error.kind() == io::ErrorKind::NotFound => false,
            Err(error) => return Err(error),
        };
        match open(&self.path) {
            Ok(next) => {
                (self.file, self.bytes, self.torn) = (next, 0, false);
                Ok(())
            }
            Err(error) => {
                if moved {
                    let _ = fs::rename(&backup, &self.path);
                }
                Err(error)
            }
        }
    }

    fn remove_old_backups(&self, now: Timestamp) -> io::Result<()> {
        let backups = self.backups()?;
        let oldest = self.retention.oldest(now).map(|at| self.backup_path(at));
        // Names of one length, of which only the time differs: they order as their times do.
        let outdated =
            backups.iter().take_while(|backup| oldest.as_ref().is_some_and(|oldest| backup < &oldest)).count();
        let old = &backups[..outdated.max(backups.len().saturating_sub(self.retention.max_backups))];
        // One that cannot be removed keeps none of the others.
        old.iter().map(fs::remove_file).fold(Ok(()), io::Result::and)
    }

    /// A name that no older file has: two rotations may come within a millisecond.
    fn free_backup_path(&self, mut at: Timestamp) -> PathBuf {
        loop {
            let path = self.backup_path(at);
            if !path.exists() {
                return path;
            }
            at += Duration::from_millis(1);
        }
    }

    /// Such as `audit-2026-01-02T03-04-05.678.log` next to `audit.log`.
    fn backup_path(&self, at: Timestamp) -> PathBuf {
        let (stem, extension) = self.stem_and_extension();
        let at = at.strftime("%Y-%m-%dT%H-%M-%S%.3f");
        self.path.with_file_name(format!("{stem}-{at}{extension}"))
    }

    fn stem_and_extension(&self) -> (String, String) {
        let text = |part: Option<&std::ffi::OsStr>| part.map(|p| p.to_string_lossy().into_owned()).unwrap_or_default();
        let extension = text(self.path.extension());
        let extension = if extension.is_empty() { extension } else { format!(".{extension}") };
        (text(self.path.file_stem()), extension)
    }

    /// The older files, the oldest first: their names order as their times do.
    fn backups(&self) -> io::Result<Vec<PathBuf>> {
        let (stem, extension) = self.stem_and_extension();
        let dir = self.path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let mut found = Vec::new();
        for entry in fs::read_dir(dir)? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let time = name.strip_prefix(&format!("{stem}-")).and_then(|rest| rest.strip_suffix(&extension));
            if time.is_some_and(is_time) {
                found.push(entry.path());
            }
        }
        found.sort_unstable();
        Ok(found)
    }
}

impl Retention {
    /// The time before which a file is too old; `None` if none is, also since no time is that old. Pure.
    fn oldest(self, now: Timestamp) -> Option<Timestamp> {
        let age = SignedDuration::from_hours(24 * i64::from(self.max_age_days));
        (!age.is_zero()).then(|| now.checked_sub(age).ok()).flatten()
    }
}

/// Whether a part of a name is a time as [`LogFile::backup_path`] writes it. Pure.
fn is_time(text: &str) -> bool {
    const SHAPE: &str = "0000-00-00T00-00-00.000";
    text.len() == SHAPE.len()
        && text.bytes().zip(SHAPE.bytes()).all(|(b, shape)| if shape == b'0' { b.is_ascii_digit() } else { b == shape })
}

fn append_to(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new().append(true).create(true).mode(MODE).open(path)?;
    // One that was there may be readable by others.
    let mode = file.metadata()?.permissions().mode() & 0o7777;
    if mode & !MODE != 0 && file.metadata()?.is_file() {
        file.set_permissions(fs::Permissions::from_mode(mode & MODE))?;
    }
    Ok(file)
}
