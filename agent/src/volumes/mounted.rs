//! What is mounted where, as the kernel tells this process.

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
pub(crate) struct Mounted {
    pub(crate) at: PathBuf,
    /// Its own options, such as `nosuid`, separated by commas.
    pub(crate) options: String,
}

/// The mounts at `dir` and below it, in the kernel's order.
///
/// # Errors
/// When the kernel's table cannot be read.
pub(crate) fn at_and_below(dir: &Path) -> io::Result<Vec<Mounted>> {
    Ok(parse(&fs::read("/proc/self/mountinfo")?, dir).collect())
}

/// The mounts below `dir`.
///
/// # Errors
/// When the kernel's table cannot be read.
pub(crate) fn below(dir: &Path) -> io::Result<Vec<PathBuf>> {
    Ok(at_and_below(dir)?.into_iter().map(|m| m.at).filter(|at| at != dir).collect())
}

/// Whether something is mounted at exactly this path. The kernel's table would tell too, but it is long where there are
/// many pods.
pub(crate) fn is_mounted(dir: &Path) -> bool {
    // A network file system that is mounted there is not asked, for it may hang.
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT | AtFlags::STATX_DONT_SYNC;
    match statx(CWD, dir, flags, StatxFlags::empty()) {
        Ok(told) if told.stx_attributes_mask.contains(StatxAttributes::MOUNT_ROOT) => {
            told.stx_attributes.contains(StatxAttributes::MOUNT_ROOT)
        }
        // A kernel before 5.8, or one that has been told to refuse the call.
        Ok(_) | Err(Errno::NOSYS) => at_and_below(dir).is_ok_and(|all| all.iter().any(|m| m.at == dir)),
        Err(_) => false,
    }
}

/// Lines of proc(5)'s mountinfo at `dir` and below: the fifth field is the place, the sixth its options.
fn parse(table: &[u8], dir: &Path) -> impl Iterator<Item = Mounted> {
    let elsewhere = |place: &[u8]| !place.contains(&b'\\') && !place.starts_with(dir.as_os_str().as_bytes());
    table.split(|b| *b == b'\n').filter_map(move |line| {
        let mut fields = line.split(|b| *b == b' ');
        let place = fields.nth(4).filter(|place| !elsewhere(place))?;
        let at = PathBuf::from(OsString::from_vec(plain(place)));
        at.starts_with(dir).then_some(())?;
        Some(Mounted { at, options: String::from_utf8_lossy(fields.next()?).into_owned() })
    })
}

/// A field with the kernel's `\040` and its like written out.
fn plain(field: &[u8]) -> Vec<u8> {
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
        let mounted = |at: &str, options: &str| Mounted { at: at.into(), options: options.to_owned() };
        let below = |dir: &str| parse(table, Path::new(dir)).collect::<Vec<_>>();
        assert_eq!(below("/"), [mounted("/a/b c", "rw,noatime"), mounted("/a\\", "ro")]);
        assert_eq!((below("/a/b c"), below("/a/b")), (vec![mounted("/a/b c", "rw,noatime")], Vec::new()));
        assert!(is_mounted(Path::new("/proc")) && !is_mounted(Path::new("/proc/self")));
        assert!(!is_mounted(Path::new("/none")) && is_mounted(Path::new("/")));
        assert!(super::below(Path::new("/")).unwrap().contains(&PathBuf::from("/proc")));
    }
}
