//! Reads the mount table, /proc/self/mountinfo.

use std::{
    ffi::OsString,
    fs, io,
    os::unix::ffi::{OsStrExt as _, OsStringExt as _},
    path::{Path, PathBuf},
};

use rustix::{
    fs::{AtFlags, CWD, StatxAttributes, StatxFlags, statx},
    io::Errno,
};

/// One mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mount {
    pub(crate) at: PathBuf,
    /// Its own options, such as `nosuid`, separated by commas.
    pub(crate) options: String,
}

/// The mounts at `dir` and below it, in the kernel's order.
///
/// # Errors
/// When the mount table cannot be read.
pub(crate) fn mounts_at(dir: &Path) -> io::Result<Vec<Mount>> {
    Ok(parse(&fs::read("/proc/self/mountinfo")?, dir).collect())
}

/// The mounts below `dir`.
///
/// # Errors
/// When the mount table cannot be read.
pub(crate) fn mounts_below(dir: &Path) -> io::Result<Vec<PathBuf>> {
    Ok(mounts_at(dir)?.into_iter().map(|m| m.at).filter(|at| at != dir).collect())
}

/// Whether this path is a mount point. By statx, since the mount table is long on nodes with many pods.
pub(crate) fn is_mounted(dir: &Path) -> bool {
    // Does not query a network file system there, which may hang.
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT | AtFlags::STATX_DONT_SYNC;
    match statx(CWD, dir, flags, StatxFlags::empty()) {
        Ok(stat) if stat.stx_attributes_mask.contains(StatxAttributes::MOUNT_ROOT) => {
            stat.stx_attributes.contains(StatxAttributes::MOUNT_ROOT)
        }
        // A kernel before 5.8, or a seccomp filter.
        Ok(_) | Err(Errno::NOSYS) => mounts_at(dir).is_ok_and(|all| all.iter().any(|m| m.at == dir)),
        Err(_) => false,
    }
}

/// Parses mountinfo (proc(5)) for mounts at `dir` and below: the fifth field is the mount point, the sixth its options.
fn parse(table: &[u8], dir: &Path) -> impl Iterator<Item = Mount> {
    let unrelated =
        |mount_point: &[u8]| !mount_point.contains(&b'\\') && !mount_point.starts_with(dir.as_os_str().as_bytes());
    table.split(|b| *b == b'\n').filter_map(move |line| {
        let mut fields = line.split(|b| *b == b' ');
        let mount_point = fields.nth(4).filter(|mount_point| !unrelated(mount_point))?;
        let at = PathBuf::from(OsString::from_vec(unescape(mount_point)));
        at.starts_with(dir).then_some(())?;
        Some(Mount { at, options: String::from_utf8_lossy(fields.next()?).into_owned() })
    })
}

/// Unescapes a field: the kernel writes `\040` for a space.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, after)) = rest.split_first() {
        let digits = after.get(..3).filter(|_| *first == b'\\').and_then(|d| std::str::from_utf8(d).ok());
        match digits.and_then(|d| u8::from_str_radix(d, 8).ok()) {
            Some(byte) => {
                out.push(byte);
                rest = &after[3..];
            }
            None => {
                out.push(*first);
                rest = after;
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_and_options() {
        let table =
            b"36 35 98:0 /mnt1 /a/b\\040c rw,noatime master:1 - ext3 /dev/root rw\n37 35 0:5 / /a\\134 ro - t n rw\n";
        let mounted = |at: &str, options: &str| Mount { at: at.into(), options: options.to_owned() };
        let below = |dir: &str| parse(table, Path::new(dir)).collect::<Vec<_>>();
        assert_eq!(below("/"), [mounted("/a/b c", "rw,noatime"), mounted("/a\\", "ro")]);
        assert_eq!((below("/a/b c"), below("/a/b")), (vec![mounted("/a/b c", "rw,noatime")], Vec::new()));
        assert!(is_mounted(Path::new("/proc")) && !is_mounted(Path::new("/proc/self")));
        assert!(!is_mounted(Path::new("/none")) && is_mounted(Path::new("/")));
        assert!(super::mounts_below(Path::new("/")).unwrap().contains(&PathBuf::from("/proc")));
    }
}
