//! Sysctls that services need: `route_localnet`, and the limits and timeouts of connection tracking. A pure function
//! decides what to write; the previous values are recorded for clean-up.
//!
//! Unlike kube-proxy, no value is lowered unless the configuration requires an exact one, or it is the kernel's own
//! default rather than someone's choice: another program may need it. A sysctl that cannot be read or written is a
//! warning: in containers they are often read-only, and those of nf_conntrack do not exist until the module is loaded.
//! They are desired state, and compared again as rules are.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    time::Duration,
};

use serde::{Deserialize, Serialize};

use crate::apply::{Error, Runner};

/// A timeout of connection tracking, written in whole seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Timeout {
    /// Leave the kernel's value.
    #[default]
    Keep,
    /// This or longer; the kernel's own default counts as not set.
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

const CPUS_ONLINE: &str = "/sys/devices/system/cpu/online";
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

/// Five days, the kernel's timeout for established connections without traffic. Upstream sets one day to lower it
/// (pkg/proxy/apis/config/v1alpha1/defaults.go).
const KERNEL_TCP_TIMEOUT_ESTABLISHED: u64 = 432_000;

/// The desired value of a sysctl.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wanted {
    AtLeast(u64),
    /// The same, but that the second value, which is the kernel's default, is lowered.
    AtLeastUnless(u64, u64),
    Exactly(u64),
}

impl Wanted {
    /// The value to write where the present one is `now`, if any.
    fn value_to_write(self, now: u64) -> Option<u64> {
        match self {
            Self::AtLeast(value) => (now < value).then_some(value),
            Self::AtLeastUnless(value, default) => {
                (now < value || now == default).then_some(value).filter(|_| now != value)
            }
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
            Timeout::AtLeast(time) if path == TCP_TIMEOUT_ESTABLISHED => {
                out.push((path, Wanted::AtLeastUnless(time.as_secs(), KERNEL_TCP_TIMEOUT_ESTABLISHED)));
            }
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

/// The processors of the machine, as /sys lists them: those that we may use are fewer under a limit of our container,
/// while the table of connections is the machine's (upstream: pkg/proxy/conntrack/sysctls.go, `detectNumCPU`).
fn machine_cores(present: io::Result<String>) -> u32 {
    let range = |part: &str| -> Option<u32> {
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        Some(to.parse::<u32>().ok()?.checked_sub(from.parse().ok()?)? + 1)
    };
    let listed = present.ok().and_then(|text| text.trim().split(',').map(range).sum::<Option<u32>>());
    let own = || std::thread::available_parallelism().map_or(1, |n| u32::try_from(n.get()).unwrap_or(u32::MAX));
    listed.filter(|cores| *cores > 0).unwrap_or_else(own)
}

/// Which sysctls could not be read or written: each is reported once.
#[derive(Debug, Default)]
pub(crate) struct Told(BTreeSet<&'static str>);

/// Writes the sysctls of connection tracking that are not as wanted; one that cannot be read or written is reported
/// once and retried with the next call.
pub(crate) fn conntrack(
    runner: &Runner,
    settings: &Conntrack,
    changed: &mut ChangedSysctls,
    told: &mut Told,
    record: &dyn Fn(&ChangedSysctls) -> Result<(), Error>,
) -> Result<(), Error> {
    let cores = machine_cores(std::fs::read_to_string(CPUS_ONLINE));
    for (path, wanted) in wanted(settings, cores) {
        let now = read(runner, path).and_then(|now| match now.parse::<u64>() {
            Ok(number) => Ok((now, number)),
            Err(_) => Err(refused(path, "", &format!("{now:?} is no number"))),
        });
        let (before, value) = match now {
            Err(error) => {
                if told.0.insert(path) {
                    tracing::warn!(%error, "failed to read a sysctl of connection tracking, which has the kernel's value; trying again, as the module nf_conntrack may be loaded later");
                }
                continue;
            }
            Ok((before, now)) => match wanted.value_to_write(now) {
                Some(value) => (before, value),
                None => {
                    told.0.remove(path);
                    continue;
                }
            },
        };
        let value = value.to_string();
        let mut next = changed.clone();
        next.note(path, &before, &value);
        record(&next)?;
        match write(runner, path, &value) {
            Ok(()) => {
                tracing::info!(setting = name(path), before, now = value, "set sysctl of connection tracking");
                told.0.remove(path);
                *changed = next;
            }
            Err(error) => {
                record(changed)?;
                if told.0.insert(path) {
                    tracing::warn!(%error, before, "failed to set sysctl of connection tracking; keeping its value");
                }
            }
        }
    }
    Ok(())
}

/// Restores the previous values of those that still have ours.
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
    fn the_kernels_five_days_are_lowered_and_what_somebody_chose_is_not() {
        let established = of(&wanted(&Conntrack::default(), 1), TCP_TIMEOUT_ESTABLISHED).unwrap();
        for (now, write) in
            [(432_000, Some(86_400)), (86_400, None), (3600, Some(86_400)), (100_000, None), (864_000, None)]
        {
            assert_eq!(established.value_to_write(now), write, "{now}");
        }
        let close_wait = of(&wanted(&Conntrack::default(), 1), TCP_TIMEOUT_CLOSE_WAIT).unwrap();
        assert_eq!((close_wait.value_to_write(60), close_wait.value_to_write(432_000)), (Some(3600), None));
    }

    #[test]
    fn the_processors_are_those_of_the_machine() {
        for (text, cores) in [("0-63\n", 64), ("0\n", 1), ("0-3,8-11\n", 8), ("0,2,4\n", 3)] {
            assert_eq!(machine_cores(Ok(text.to_owned())), cores, "{text}");
        }
        let own = u32::try_from(std::thread::available_parallelism().unwrap().get()).unwrap();
        for unreadable in ["", "x", "5-2"] {
            assert_eq!(machine_cores(Ok(unreadable.to_owned())), own, "{unreadable}");
        }
        assert_eq!(machine_cores(Err(io::ErrorKind::NotFound.into())), own);
    }

    /// A runner whose sysctls are files of the directory; those of which there is one with the ending `refused` cannot be written.
    fn runner_in(dir: &std::path::Path) -> Runner {
        let script = format!(
            "f={}/$(basename $2); case $1 in cat) cat $f;; tee) if [ -e $f.refused ]; then exit 1; fi; tee $f;; esac",
            dir.display()
        );
        Runner::new(vec!["sh".into(), "-c".into(), script, "sh".into()])
    }

    /// As in a container: a read-only sysctl keeps its value and is reported once; clean-up has nothing to restore.
    #[test]
    fn what_is_refused_keeps_its_value_and_is_not_given_back() {
        let dir = tempfile::tempdir().unwrap();
        let runner = runner_in(dir.path());
        let file = |name: &str| dir.path().join(name);
        let read = |name: &str| std::fs::read_to_string(file(name)).unwrap();
        std::fs::write(file("nf_conntrack_tcp_be_liberal"), "0").unwrap();
        std::fs::write(file("nf_conntrack_tcp_be_liberal.refused"), "").unwrap();
        std::fs::write(file("nf_conntrack_tcp_timeout_established"), "432000").unwrap();
        let settings = Conntrack { tcp_be_liberal: true, max_per_core: 0, ..Conntrack::default() };
        let (mut changed, mut told) = (ChangedSysctls::default(), Told::default());
        // What clean-up would find after a crash at any time.
        let recorded = std::cell::RefCell::new(ChangedSysctls::default());
        let keep = |now: &ChangedSysctls| {
            recorded.replace(now.clone());
            Ok(())
        };
        for _ in 0..2 {
            conntrack(&runner, &settings, &mut changed, &mut told, &keep).unwrap();
            assert_eq!(read("nf_conntrack_tcp_be_liberal"), "0");
            assert_eq!(recorded.borrow().0, changed.0);
            assert_eq!(changed.0.len(), 1, "{changed:?}");
            assert!(told.0.iter().any(|path| path.ends_with("be_liberal")), "{told:?}");
        }
        // Somebody has chosen another value since: it is theirs.
        std::fs::write(file("nf_conntrack_tcp_timeout_established"), "7200").unwrap();
        assert_eq!(restore(&runner, &changed).len(), 0);
        assert_eq!(read("nf_conntrack_tcp_timeout_established"), "7200");
    }

    #[test]
    fn a_refused_restoration_is_told_and_holds_up_no_other() {
        let dir = tempfile::tempdir().unwrap();
        let runner = runner_in(dir.path());
        let mut changed = ChangedSysctls::default();
        for name in ["a", "b"] {
            std::fs::write(dir.path().join(name), "5").unwrap();
            changed.note(&format!("/proc/sys/{name}"), "1", "5");
        }
        std::fs::write(dir.path().join("a.refused"), "").unwrap();
        assert_eq!(restore(&runner, &changed).len(), 1);
        let read = |name: &str| std::fs::read_to_string(dir.path().join(name)).unwrap();
        assert_eq!((read("a").as_str(), read("b").as_str()), ("5", "1"));
    }

    /// A sysctl that is missing at start is reported once, and set when it appears.
    #[test]
    fn a_sysctl_that_appears_later_is_set_then() {
        let dir = tempfile::tempdir().unwrap();
        // There is nothing at first.
        let runner = runner_in(dir.path());
        let settings = Conntrack { tcp_be_liberal: true, max_per_core: 0, ..Conntrack::default() };
        let (mut changed, mut told) = (ChangedSysctls::default(), Told::default());
        let keep = |_: &ChangedSysctls| Ok(());
        conntrack(&runner, &settings, &mut changed, &mut told, &keep).unwrap();
        assert_eq!((told.0.len(), changed.0.len()), (3, 0));
        let file = |name: &str| dir.path().join(name);
        std::fs::write(file("nf_conntrack_tcp_be_liberal"), "0\n").unwrap();
        std::fs::write(file("nf_conntrack_tcp_timeout_established"), "432000\n").unwrap();
        conntrack(&runner, &settings, &mut changed, &mut told, &keep).unwrap();
        assert_eq!((told.0.len(), changed.0.len()), (1, 2));
        let read = |name: &str| std::fs::read_to_string(file(name)).unwrap();
        assert_eq!(read("nf_conntrack_tcp_be_liberal"), "1");
        assert_eq!(read("nf_conntrack_tcp_timeout_established"), "86400");
        assert_eq!(restore(&runner, &changed).len(), 0);
        assert_eq!(read("nf_conntrack_tcp_timeout_established"), "432000");
    }

    #[test]
    fn the_first_value_before_is_the_one_that_is_kept() {
        let mut changed = ChangedSysctls::default();
        changed.note("/p", "1", "5");
        changed.note("/p", "5", "9");
        assert_eq!(changed.0["/p"], ("1".to_owned(), "9".to_owned()));
    }
}
