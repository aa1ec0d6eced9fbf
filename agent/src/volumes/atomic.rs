//! Writes the files of a volume so that readers see all of a change or nothing: a new folder, and one
//! link that is turned to it.

use std::{
    fs, io,
    os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _, chown, symlink},
    path::Path,
};

use super::content::Payload;

const CURRENT: &str = "..data";

/// Makes `dir` show exactly `payload`; does nothing when it does already.
pub(super) fn write(dir: &Path, payload: &Payload, group: Option<i64>) -> io::Result<()> {
    if shows(dir, payload) {
        return Ok(());
    }
    let group = group.and_then(|g| u32::try_from(g).ok());
    let stamp = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |d| d.as_nanos());
    let name = format!("..{stamp}");
    let fresh = dir.join(&name);
    fs::create_dir(&fresh)?;
    fs::set_permissions(&fresh, fs::Permissions::from_mode(0o755))?;
    for (path, file) in payload {
        let target = fresh.join(path);
        if let Some(parent) = target.parent() {
            fs::create_dir_all(parent)?;
        }
        fs::OpenOptions::new().write(true).create_new(true).mode(file.mode).open(&target)?;
        fs::write(&target, &file.bytes)?;
        // A group that the pod asked for may read what its owner may.
        let mode = if group.is_some() { file.mode | (file.mode & 0o400) >> 3 } else { file.mode };
        fs::set_permissions(&target, fs::Permissions::from_mode(mode))?;
        if group.is_some() || file.owner.is_some() {
            chown(&target, file.owner, group)?;
        }
    }
    let old = fs::read_link(dir.join(CURRENT)).ok();
    let turned = dir.join("..data_tmp");
    let _ = fs::remove_file(&turned);
    symlink(&name, &turned)?;
    fs::rename(&turned, dir.join(CURRENT))?;
    for top in tops(payload) {
        let link = dir.join(&top);
        if fs::symlink_metadata(&link).is_err() {
            symlink(Path::new(CURRENT).join(&top), &link)?;
        }
    }
    let wanted = tops(payload);
    for entry in fs::read_dir(dir)?.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if !name.starts_with("..") && !wanted.contains(&name) {
            fs::remove_file(entry.path())?;
        }
    }
    if let Some(old) = old {
        let _ = fs::remove_dir_all(dir.join(old));
    }
    Ok(())
}

/// The first parts of the paths: what a reader sees in the volume.
fn tops(payload: &Payload) -> Vec<String> {
    let mut all: Vec<String> = payload.keys().filter_map(|p| p.split('/').next().map(str::to_owned)).collect();
    all.dedup();
    all
}

fn shows(dir: &Path, payload: &Payload) -> bool {
    let current = dir.join(CURRENT);
    current.is_dir()
        && count(&current) == payload.len()
        && payload.iter().all(|(path, file)| fs::read(current.join(path)).is_ok_and(|bytes| bytes == file.bytes))
}

fn count(dir: &Path) -> usize {
    fs::read_dir(dir)
        .into_iter()
        .flatten()
        .flatten()
        .map(|e| if e.path().is_dir() { count(&e.path()) } else { 1 })
        .sum()
}

#[cfg(test)]
mod tests {
    use super::{super::content::PayloadFile, *};

    fn payload(files: &[(&str, &str)]) -> Payload {
        files
            .iter()
            .map(|(p, t)| ((*p).to_owned(), PayloadFile { bytes: t.as_bytes().to_vec(), mode: 0o640, owner: None }))
            .collect()
    }

    #[test]
    fn a_change_is_seen_whole() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), &payload(&[("a", "1"), ("d/b", "2")]), None).unwrap();
        assert_eq!(fs::read_to_string(dir.path().join("a")).unwrap(), "1");
        assert_eq!(fs::read_to_string(dir.path().join("d/b")).unwrap(), "2");
        assert_eq!(fs::metadata(dir.path().join("a")).unwrap().permissions().mode() & 0o777, 0o640);
        let before = fs::read_link(dir.path().join(CURRENT)).unwrap();
        write(dir.path(), &payload(&[("a", "1"), ("d/b", "2")]), None).unwrap();
        assert_eq!(fs::read_link(dir.path().join(CURRENT)).unwrap(), before, "nothing changed, nothing is turned");
        write(dir.path(), &payload(&[("a", "3")]), None).unwrap();
        assert_eq!(fs::read_to_string(dir.path().join("a")).unwrap(), "3");
        assert!(!dir.path().join("d").exists());
        let kept = fs::read_dir(dir.path()).unwrap().count();
        assert_eq!(kept, 3, "the link, the current folder and one file");
    }
}
