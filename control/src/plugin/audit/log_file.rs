//! A file of lines that is replaced by a new one when it is large, as lumberjack, which upstream uses, does.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
};

use jiff::Timestamp;

/// Only the owner reads who did what.
const MODE: u32 = 0o600;

/// The file and the older ones beside it.
#[derive(Debug)]
pub(super) struct LogFile {
    path: PathBuf,
    file: File,
    bytes: u64,
    max_bytes: u64,
    max_backups: usize,
}

impl LogFile {
    /// Opens the file to append to it; its directory must exist.
    pub(super) fn open(path: &Path, max_bytes: u64, max_backups: usize) -> io::Result<Self> {
        let file = append_to(path)?;
        let bytes = file.metadata()?.len();
        Ok(Self { path: path.to_owned(), file, bytes, max_bytes, max_backups })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Appends a line, after a rotation if the file would be too large with it.
    pub(super) fn append(&mut self, line: &[u8]) -> io::Result<()> {
        let more = u64::try_from(line.len()).unwrap_or(u64::MAX);
        if self.bytes > 0 && self.bytes.saturating_add(more) > self.max_bytes {
            self.rotate()?;
        }
        self.file.write_all(line)?;
        self.bytes += more;
        Ok(())
    }

    fn rotate(&mut self) -> io::Result<()> {
        fs::rename(&self.path, self.backup_path(Timestamp::now()))?;
        self.file = append_to(&self.path)?;
        self.bytes = 0;
        let backups = self.backups()?;
        for old in &backups[..backups.len().saturating_sub(self.max_backups)] {
            fs::remove_file(old)?;
        }
        Ok(())
    }

    /// Such as `audit-2026-01-02T03-04-05.678.log` beside `audit.log`.
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
