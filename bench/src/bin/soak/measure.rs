//! Counts a node's resources from outside (memory, descriptors, mounts, …), and checks that they do not grow.

use std::{fs, time::Duration};

use windlass_tests::{Testbed, resident_megabytes};

/// Counts of resources that must not leak.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Resources {
    pub(crate) counts: Vec<(&'static str, u64, u64)>,
}

fn lines(testbed: &Testbed, line: &str) -> u64 {
    testbed.try_sh(line).map_or(0, |text| text.lines().filter(|l| !l.trim().is_empty()).count() as u64)
}

fn entries(path: &str) -> u64 {
    fs::read_dir(path).map_or(0, |entries| entries.flatten().count() as u64)
}

/// Names, counts, and the accepted growth: pools of threads and connections vary.
pub(crate) fn count_resources(testbed: &Testbed, pid: u32) -> Resources {
    let dir = testbed.dir().display();
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let below = format!(" {dir}/");
    let tracked = testbed.try_sh("cat /proc/sys/net/netfilter/nf_conntrack_count").unwrap_or_default();
    Resources {
        counts: vec![
            ("descriptors", entries(&format!("/proc/{pid}/fd")), 24),
            ("threads", entries(&format!("/proc/{pid}/task")), 20),
            ("interfaces", lines(testbed, "ip -o link"), 0),
            ("addresses", lines(testbed, "ip -o address"), 0),
            ("kept addresses", lines(testbed, &format!("find {dir}/data/network -type f 2>/dev/null")), 0),
            ("routes", lines(testbed, "ip route; ip -6 route"), 0),
            ("rules", lines(testbed, "iptables-save | grep -v '^[#:]'; ip6tables-save | grep -v '^[#:]'"), 0),
            ("mounts", mounts.lines().filter(|l| l.contains(&below)).count() as u64, 0),
            ("containers that run", lines(testbed, &format!("docker -H unix://{dir}/docker.sock ps -q")), 0),
            // Each long-lived container and sandbox may keep its predecessor.
            ("containers", lines(testbed, &format!("docker -H unix://{dir}/docker.sock ps -aq")), 4),
            ("folders of pods", entries(&format!("{dir}/data/pods")), 0),
            ("folders of logs", entries(&format!("{dir}/log/pods")), 0),
            ("tracked connections", tracked.trim().parse().unwrap_or(0), 200),
        ],
    }
}

impl Resources {
    /// The counts that have grown.
    pub(crate) fn leaked(&self, before: &Self) -> Vec<String> {
        let pairs = self.counts.iter().zip(&before.counts);
        pairs
            .filter(|((_, now, more), (_, then, _))| *now > then + more)
            .map(|((name, now, _), (_, then, _))| format!("{name}: {then} became {now}"))
            .collect()
    }
}

/// Memory of one process over time.
#[derive(Debug, Default)]
pub(crate) struct Memory(Vec<(f64, f64)>);

impl Memory {
    pub(crate) fn sample(&mut self, at: Duration, pid: u32) {
        if let Ok(megabytes) = resident_megabytes(pid) {
            self.0.push((at.as_secs_f64() / 60.0, megabytes));
        }
    }

    /// Megabytes per minute by least squares without the first fifth, in which pools fill, and the measured minutes.
    pub(crate) fn slope(&self) -> Option<(f64, f64)> {
        let samples = &self.0[self.0.len() / 5..];
        let count = samples.len() as f64;
        let (first, last) = (samples.first()?.0, samples.last()?.0);
        let mean = |of: fn(&(f64, f64)) -> f64| samples.iter().map(of).sum::<f64>() / count;
        let (x, y) = (mean(|s| s.0), mean(|s| s.1));
        let spread: f64 = samples.iter().map(|s| (s.0 - x).powi(2)).sum();
        let together: f64 = samples.iter().map(|s| (s.0 - x) * (s.1 - y)).sum();
        (samples.len() >= 8 && spread > 0.0).then_some((together / spread, last - first))
    }
}
