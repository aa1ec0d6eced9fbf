//! Block I/O: `blkio.*` of v1, `io.stat` of v2, `/proc/diskstats`.

use super::{lines, number, words};
use crate::model::{BlockDevice, Disk};

fn device(text: &[u8]) -> Option<(u32, u32)> {
    let colon = text.iter().position(|byte| *byte == b':')?;
    let (major, minor) = text.split_at(colon);
    Some((number(major)?.try_into().ok()?, number(minor.get(1..)?)?.try_into().ok()?))
}

fn slot(devices: &mut Vec<BlockDevice>, (major, minor): (u32, u32)) -> Option<&mut BlockDevice> {
    let at = match devices.binary_search_by_key(&(major, minor), |d| (d.major, d.minor)) {
        Ok(at) => at,
        Err(at) => {
            devices.insert(at, BlockDevice { major, minor, ..BlockDevice::default() });
            at
        }
    };
    devices.get_mut(at)
}

/// What a v1 file counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum V1 {
    /// `…io_service_bytes…`
    Bytes,
    /// `…io_serviced…`
    Requests,
}

/// Rows `major:minor Operation value` of v1. Rows of one device and operation add up.
pub(crate) fn v1(text: &[u8], what: V1, devices: &mut Vec<BlockDevice>) {
    for line in lines(text) {
        let mut words = words(line);
        let (Some(number_pair), Some(operation), Some(value)) =
            (words.next().and_then(device), words.next(), words.next().and_then(number))
        else {
            continue;
        };
        let read = match operation {
            b"Read" => true,
            b"Write" => false,
            _ => continue,
        };
        let Some(found) = slot(devices, number_pair) else { continue };
        let field = match (what, read) {
            (V1::Bytes, true) => &mut found.read_bytes,
            (V1::Bytes, false) => &mut found.write_bytes,
            (V1::Requests, true) => &mut found.reads,
            (V1::Requests, false) => &mut found.writes,
        };
        *field = field.saturating_add(value);
    }
}

/// Rows `major:minor key=value …` of v2.
pub(crate) fn v2(text: &[u8], devices: &mut Vec<BlockDevice>) {
    for line in lines(text) {
        let mut words = words(line);
        let Some(found) = words.next().and_then(device).and_then(|number_pair| slot(devices, number_pair)) else {
            continue;
        };
        for word in words {
            let Some(equals) = word.iter().position(|byte| *byte == b'=') else { continue };
            let (key, value) = word.split_at(equals);
            let Some(value) = value.get(1..).and_then(number) else { continue };
            match key {
                b"rbytes" => found.read_bytes = value,
                b"wbytes" => found.write_bytes = value,
                b"rios" => found.reads = value,
                b"wios" => found.writes = value,
                _ => {}
            }
        }
    }
}

/// Rows of `/proc/diskstats`, of every kind of device but loops, memory and optical drives.
pub(crate) fn disks(text: &[u8]) -> impl Iterator<Item = Disk> {
    lines(text).filter_map(|line| {
        let mut words = words(line);
        let (major, minor) = (words.next().and_then(number)?, words.next().and_then(number)?);
        let name = std::str::from_utf8(words.next()?).ok()?;
        if ["loop", "ram", "zram", "sr", "fd"]
            .iter()
            .any(|prefix| name.strip_prefix(prefix).is_some_and(|rest| rest.bytes().all(|byte| byte.is_ascii_digit())))
        {
            return None;
        }
        let mut next = || words.next().and_then(number);
        Some(Disk {
            major: major.try_into().ok()?,
            minor: minor.try_into().ok()?,
            name: format!("/dev/{name}"),
            reads: next()?,
            reads_merged: next()?,
            sectors_read: next()?,
            read_ms: next()?,
            writes: next()?,
            writes_merged: next()?,
            sectors_written: next()?,
            write_ms: next()?,
            in_progress: next()?,
            io_ms: next()?,
            weighted_ms: next()?,
        })
    })
}
