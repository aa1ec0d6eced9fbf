//! What is mounted where, as the kernel tells this process.

use std::{
    ffi::OsString,
    fs, io,
    os::unix::ffi::OsStringExt as _,
    path::{Path, PathBuf},
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
    Ok(parse(&fs::read("/proc/self/mountinfo")?).filter(|m| m.at.starts_with(dir)).collect())
}

/// The mounts below `dir`.
///
/// # Errors
/// When the kernel's table cannot be read.
pub(crate) fn below(dir: &Path) -> io::Result<Vec<PathBuf>> {
    Ok(at_and_below(dir)?.into_iter().map(|m| m.at).filter(|at| at != dir).collect())
}

/// Whether something is mounted at exactly this path.
pub(crate) fn is_mounted(dir: &Path) -> bool {
    at_and_below(dir).is_ok_and(|all| all.iter().any(|m| m.at == dir))
}

/// Lines of proc(5)'s mountinfo: the fifth field is the place, the sixth its options.
fn parse(table: &[u8]) -> impl Iterator<Item = Mounted> {
    table.split(|b| *b == b'\n').filter_map(|line| {
        let mut fields = line.split(|b| *b == b' ');
        let at = PathBuf::from(OsString::from_vec(plain(fields.nth(4)?)));
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
        assert_eq!(parse(table).collect::<Vec<_>>(), [mounted("/a/b c", "rw,noatime"), mounted("/a\\", "ro")]);
        assert!(is_mounted(Path::new("/proc")) && !is_mounted(Path::new("/proc/self")));
        assert!(below(Path::new("/")).unwrap().contains(&PathBuf::from("/proc")));
    }
}
