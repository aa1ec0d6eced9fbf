//! The machine's constants and the node's daemons.

use super::{cpu::TICK_NS, lines, number, pairs, words};

/// The fields of `/proc/PID/stat` and `statm` of a daemon.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Daemon {
    pub(crate) user_ns: u64,
    pub(crate) system_ns: u64,
    pub(crate) faults: u64,
    pub(crate) major_faults: u64,
    pub(crate) resident_pages: u64,
    /// After the kernel's start.
    pub(crate) started_ns: u64,
}

/// `/proc/PID/stat`. The command name in parentheses may contain anything, so fields count from the last parenthesis.
pub(crate) fn daemon(stat: &[u8]) -> Option<Daemon> {
    let close = stat.iter().rposition(|byte| *byte == b')')?;
    let mut fields = words(stat.get(close + 1..)?).map(|word| number(word).unwrap_or(0));
    // After the name: state is field 0, minflt 7, majflt 9, utime 11, stime 12, starttime 19, rss 21.
    let mut at = |skip| fields.nth(skip);
    let faults = at(7)?;
    let major_faults = at(1)?;
    let user = at(1)?;
    let system = at(0)?;
    let started = at(6)?;
    let resident_pages = at(1)?;
    Some(Daemon {
        user_ns: user.saturating_mul(TICK_NS),
        system_ns: system.saturating_mul(TICK_NS),
        faults,
        major_faults,
        resident_pages,
        started_ns: started.saturating_mul(TICK_NS),
    })
}

/// `btime` of `/proc/stat`: seconds since 1970.
pub(crate) fn boot_second(stat: &[u8]) -> Option<u64> {
    pairs(stat).find(|(key, _)| *key == b"btime").map(|(_, second)| second)
}

/// Processors counted in `/proc/cpuinfo`: logical, physical cores, packages.
pub(crate) fn processors(cpuinfo: &[u8]) -> (u64, u64, u64) {
    let (mut logical, mut package) = (0_u64, 0);
    let mut cores = std::collections::BTreeSet::new();
    let mut packages = std::collections::BTreeSet::new();
    for line in lines(cpuinfo) {
        let Some(colon) = line.iter().position(|byte| *byte == b':') else { continue };
        let (key, value) = line.split_at(colon);
        let value = value.get(1..).and_then(number).unwrap_or(0);
        match key.trim_ascii() {
            b"processor" => logical += 1,
            b"physical id" => {
                package = value;
                packages.insert(value);
            }
            b"core id" => {
                cores.insert((package, value));
            }
            _ => {}
        }
    }
    let count = |len: usize, fallback: u64| if len == 0 { fallback } else { len as u64 };
    (logical, count(cores.len(), logical), count(packages.len(), 1))
}

/// The processor's vendor, and its clock rate in kHz if listed.
pub(crate) fn processor(cpuinfo: &[u8]) -> (String, u64) {
    let field = |wanted: &[u8]| {
        lines(cpuinfo).find_map(|line| {
            let colon = line.iter().position(|byte| *byte == b':')?;
            let (key, value) = line.split_at(colon);
            let value = value.get(1..)?.trim_ascii();
            (key.trim_ascii() == wanted).then(|| String::from_utf8_lossy(value).into_owned())
        })
    };
    let vendor: Option<String> = field(b"vendor_id");
    let megahertz: Option<String> = field(b"cpu MHz");
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a clock in kHz, cut at 0")]
    let khz = megahertz.and_then(|mhz| mhz.parse::<f64>().ok()).map_or(0, |mhz| (mhz.max(0.0) * 1000.0) as u64);
    (vendor.unwrap_or_default(), khz)
}

/// `MemTotal` of a NUMA node's own `meminfo`: `Node 0 MemTotal: 123 kB`.
pub(crate) fn node_memory(meminfo: &[u8]) -> u64 {
    lines(meminfo)
        .find_map(|line| {
            let mut words = words(line).skip_while(|word| *word != b"MemTotal:");
            words.next()?;
            words.next().and_then(number)
        })
        .map_or(0, |kib| kib.saturating_mul(1024))
}

/// `PRETTY_NAME` of `os-release`, without its quotes.
pub(crate) fn distribution(os_release: &str) -> Option<String> {
    os_release.lines().find_map(|line| line.strip_prefix("PRETTY_NAME=")).map(|name| name.trim_matches('"').to_owned())
}

/// Soft limit of `Max open files` in `/proc/PID/limits`. None when unlimited or absent.
pub(crate) fn open_files(limits: &[u8]) -> Option<u64> {
    lines(limits)
        .find_map(|line| line.strip_prefix(b"Max open files"))
        .and_then(|rest| words(rest).next().and_then(number))
}
