//! Sysctls that services need: `route_localnet`, and the limits and timeouts of connection tracking. A pure function
//! decides what to write; the previous values are recorded for clean-up.
//!
//! Unlike kube-proxy, no value is lowered unless the configuration requires an exact one: another program may need it.
//! A sysctl that cannot be written is a warning: in containers they are often read-only.

use std::{collections::BTreeMap, time::Duration};

use serde::{Deserialize, Serialize};

use crate::apply::{Error, Runner};

/// A timeout of connection tracking, written in whole seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Timeout {
    /// Leave the kernel's value.
    #[default]
    Keep,
    /// This or longer.
    AtLeast(Duration),
    /// Exactly this.
    Exactly(Duration),
}

/// Settings of connection tracking. Defaults are those of kube-proxy's `conntrack` configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conntrack {
    /// `maxPerCore`: connections for each processor; 0 leaves the kernel's limit.
    pub max_per_core: u32,
    /// The limit is never below this.
    pub min: u32,
    /// Of established TCP connections without traffic.
    pub tcp_established: Timeout,
    /// Of TCP connections in CLOSE_WAIT.
    pub tcp_close_wait: Timeout,
    /// Of UDP without an answer.
    pub udp: Timeout,
    /// Of UDP with answers.
    pub udp_stream: Timeout,
    /// Accept TCP packets outside the window.
    pub tcp_be_liberal: bool,
}

impl Default for Conntrack {
    fn default() -> Self {
        Self {
            max_per_core: 32768,
            min: 131_072,
            tcp_established: Timeout::AtLeast(Duration::from_hours(24)),
            tcp_close_wait: Timeout::AtLeast(Duration::from_hours(1)),
            udp: Timeout::Keep,
            udp_stream: Timeout::Keep,
            tcp_be_liberal: false,
        }
    }
}

const ROUTE_LOCALNET: &str = "/proc/sys/net/ipv4/conf/all/route_localnet";
const NF_CONNTRACK_MAX: &str = "/proc/sys/net/netfilter/nf_conntrack_max";
const CONNTRACK_HASHSIZE: &str = "/sys/module/nf_conntrack/parameters/hashsize";
const TCP_TIMEOUT_ESTABLISHED: &str = "/proc/sys/net/netfilter/nf_conntrack_tcp_timeout_established";
const TCP_TIMEOUT_CLOSE_WAIT: &str = "/proc/sys/net/netfilter/nf_conntrack_tcp_timeout_close_wait";
const UDP_TIMEOUT: &str = "/proc/sys/net/netfilter/nf_conntrack_udp_timeout";
const UDP_TIMEOUT_STREAM: &str = "/proc/sys/net/netfilter/nf_conntrack_udp_timeout_stream";
const TCP_BE_LIBERAL: &str = "/proc/sys/net/netfilter/nf_conntrack_tcp_be_liberal";
/// The upper bound of the limit scaled by processors (pkg/proxy/conntrack/sysctls.go).
const MAX_SCALED_LIMIT: u32 = 1 << 20;

/// The desired value of a sysctl.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wanted {
    AtLeast(u64),
    Exactly(u64),
}

impl Wanted {
    /// The value to write where the present one is `now`, if any.
    fn value_to_write(self, now: u64) -> Option<u64> {
        match self {
            Self::AtLeast(value) => (now < value).then_some(value),
            Self::Exactly(value) => (now != value).then_some(value),
        }
    }
}

/// The desired values of all sysctls of connection tracking. Pure.
fn wanted(settings: &Conntrack, cores: u32) -> Vec<(&'static str, Wanted)> {
    let mut out = Vec::new();
    if settings.max_per_core > 0 {
        let scaled = settings.max_per_core.saturating_mul(cores).min(MAX_SCALED_LIMIT);
        let max = u64::from(scaled.max(settings.min));
        // Buckets first: a large limit over few buckets makes every lookup slow.
        out.extend([(CONNTRACK_HASHSIZE, Wanted::AtLeast(max / 4)), (NF_CONNTRACK_MAX, Wanted::AtLeast(max))]);
    }
    for (path, timeout) in [
        (TCP_TIMEOUT_ESTABLISHED, settings.tcp_established),
        (TCP_TIMEOUT_CLOSE_WAIT, settings.tcp_close_wait),
        (UDP_TIMEOUT, settings.udp),
        (UDP_TIMEOUT_STREAM, settings.udp_stream),
    ] {
        match timeout {
            Timeout::Keep => {}
            Timeout::AtLeast(time) => out.push((path, Wanted::AtLeast(time.as_secs()))),
            Timeout::Exactly(time) => out.push((path, Wanted::Exactly(time.as_secs()))),
        }
    }
    if settings.tcp_be_liberal {
        out.push((TCP_BE_LIBERAL, Wanted::Exactly(1)));
    }
    out
}

/// The sysctls that the proxy changed: the value before and ours, by path.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ChangedSysctls(BTreeMap<String, (String, String)>);

impl ChangedSysctls {
    fn note(&mut self, path: &str, before: &str, ours: &str) {
        let entry = self.0.entry(path.to_owned()).or_insert_with(|| (before.to_owned(), String::new()));
        ours.clone_into(&mut entry.1);
    }
}

fn read(runner: &Runner, path: &str) -> Result<String, Error> {
    let text = runner.read(path).map_err(|e| refused(path, "", &e))?;
    Ok(text.trim().to_owned())
}

fn write(runner: &Runner, path: &str, value: &str) -> Result<(), Error> {
    if runner.in_own_netns() {
        return std::fs::write(path, value).map_err(|e| refused(path, value, &e.to_string()));
    }
    runner.run("tee", &[path], value).map(drop)
}

/// The name for `sysctl`, where the path is one.
fn name(path: &str) -> String {
    path.strip_prefix("/proc/sys/").map_or_else(|| path.to_owned(), |rest| rest.replace('/', "."))
}

fn refused(path: &str, value: &str, problem: &str) -> Error {
    Error::Sysctl { setting: name(path), value: value.to_owned(), problem: problem.to_owned() }
}

/// Whether `nf_conntrack_tcp_be_liberal` is set in this process's network namespace.
pub(crate) fn tcp_is_liberal() -> bool {
    std::fs::read_to_string(TCP_BE_LIBERAL).is_ok_and(|text| text.trim() != "0")
}

/// Sets `route_localnet`, for node ports at 127.0.0.1. `record` is called before anything changes.
pub(crate) fn route_localnet(
    runner: &Runner,
    changed: &mut ChangedSysctls,
    record: &dyn Fn(&ChangedSysctls) -> Result<(), Error>,
) -> Result<(), Error> {
    let now = read(runner, ROUTE_LOCALNET)?;
    if now == "1" {
        return Ok(());
    }
    changed.note(ROUTE_LOCALNET, &now, "1");
    record(changed)?;
    write(runner, ROUTE_LOCALNET, "1")
}

/// Writes the sysctls of connection tracking; one that cannot be written is logged.
pub(crate) fn conntrack(
    runner: &Runner,
    settings: &Conntrack,
    changed: &mut ChangedSysctls,
    record: &dyn Fn(&ChangedSysctls) -> Result<(), Error>,
) -> Result<(), Error> {
    let cores = std::thread::available_parallelism().map_or(1, |n| u32::try_from(n.get()).unwrap_or(u32::MAX));
    for (path, wanted) in wanted(settings, cores) {
        let Some((before, value)) =
            read(runner, path).ok().and_then(|now| Some((now.clone(), wanted.value_to_write(now.parse().ok()?)?)))
        else {
            continue;
        };
        let value = value.to_string();
        let mut next = changed.clone();
        next.note(path, &before, &value);
        record(&next)?;
        match write(runner, path, &value) {
            Ok(()) => {
                tracing::info!(setting = name(path), before, now = value, "set sysctl of connection tracking");
                *changed = next;
            }
            Err(error) => {
                record(changed)?;
                tracing::warn!(%error, before, "failed to set sysctl of connection tracking; keeping its value");
            }
        }
    }
    Ok(())
}

/// Restores the previous values, where nobody has changed ours since.
pub(crate) fn restore(runner: &Runner, changed: &ChangedSysctls) -> Vec<Error> {
    let mut errors = Vec::new();
    for (path, (before, ours)) in &changed.0 {
        if read(runner, path).is_ok_and(|now| now == *ours) {
            errors.extend(write(runner, path, before).err());
        }
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(list: &[(&'static str, Wanted)], path: &str) -> Option<Wanted> {
        list.iter().find(|(p, _)| *p == path).map(|(_, w)| *w)
    }

    #[test]
    fn the_limit_grows_with_processors_between_two_bounds() {
        let settings = Conntrack::default();
        for (cores, max) in [(1, 131_072), (4, 131_072), (8, 262_144), (64, 1 << 20)] {
            let list = wanted(&settings, cores);
            assert_eq!(of(&list, NF_CONNTRACK_MAX), Some(Wanted::AtLeast(max)), "{cores} cores");
            assert_eq!(of(&list, CONNTRACK_HASHSIZE), Some(Wanted::AtLeast(max / 4)));
        }
        let none = Conntrack { max_per_core: 0, ..settings };
        assert_eq!(of(&wanted(&none, 64), NF_CONNTRACK_MAX), None);
    }

    #[test]
    fn what_suffices_is_never_lowered_and_what_is_exact_is_exact() {
        assert_eq!(Wanted::AtLeast(86_400).value_to_write(432_000), None);
        assert_eq!(Wanted::AtLeast(3600).value_to_write(60), Some(3600));
        assert_eq!(Wanted::Exactly(3600).value_to_write(432_000), Some(3600));
        assert_eq!(Wanted::Exactly(1).value_to_write(1), None);
        let settings = Conntrack { udp: Timeout::Exactly(Duration::from_secs(5)), ..Conntrack::default() };
        assert_eq!(of(&wanted(&settings, 1), UDP_TIMEOUT), Some(Wanted::Exactly(5)));
        assert_eq!(of(&wanted(&settings, 1), UDP_TIMEOUT_STREAM), None);
        assert_eq!(of(&wanted(&settings, 1), TCP_BE_LIBERAL), None);
    }

    #[test]
    fn the_first_value_before_is_the_one_that_is_kept() {
        let mut changed = ChangedSysctls::default();
        changed.note("/p", "1", "5");
        changed.note("/p", "5", "9");
        assert_eq!(changed.0["/p"], ("1".to_owned(), "9".to_owned()));
    }
}
