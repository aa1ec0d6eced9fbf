//! The tree below `kubepods`: what pods and node make of each of its cgroups, of the pods' classes too. Pure; upstream's
//! `pkg/kubelet/cm/qos_container_manager_linux.go` and `helpers_linux.go`.

use std::collections::BTreeMap;

use windlass_kit::objects::resources::Class;

use super::limits::{CPU_PERIOD, HugePages, class_cgroup, milli_cpu_to_shares, shares_to_weight};
use crate::engine::inspect::Limits;

/// The wanted values of one cgroup; `None` for what is not ours to set there.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Values {
    /// As cgroup v1 counts them: 2 to 262144.
    pub(crate) cpu_shares: Option<i64>,
    /// Microseconds of each [`CPU_PERIOD`]; 0 is no limit.
    pub(crate) cpu_quota: Option<i64>,
    /// Bytes; 0 is no limit.
    pub(crate) memory: Option<i64>,
    /// Bytes of swap besides the memory; with cgroup v2 only.
    pub(crate) swap: Option<i64>,
    /// Processes and threads; `Some(None)` is no limit.
    pub(crate) pids: Option<Option<u32>>,
    /// Huge pages; sizes that are not named may not be used.
    pub(crate) pages: Option<HugePages>,
}

impl Values {
    /// CPU and memory.
    pub(crate) fn of(limits: &Limits) -> Self {
        Self {
            cpu_shares: Some(limits.cpu_shares),
            cpu_quota: Some(limits.cpu_quota),
            memory: Some(limits.memory),
            ..Self::default()
        }
    }

    /// These, with memory and CPU no smaller than `other` has them.
    fn or_larger(&self, other: &Self) -> Self {
        let limit = |own: Option<i64>, other: Option<i64>| match (own, other) {
            (Some(0), _) | (_, Some(0)) => Some(0),
            (own, other) => own.max(other),
        };
        Self {
            cpu_shares: self.cpu_shares.max(other.cpu_shares),
            cpu_quota: limit(self.cpu_quota, other.cpu_quota),
            memory: limit(self.memory, other.memory),
            ..self.clone()
        }
    }
}

/// A resource that is resized by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Resource {
    Memory,
    Cpu,
}

/// A pod with its cgroup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PodCgroup {
    /// The cgroup's name, as Docker is given it.
    pub(crate) name: String,
    pub(crate) class: Class,
    /// What the pod requests, in millicores.
    pub(crate) milli_cpu: i64,
    pub(crate) values: Values,
}

impl PodCgroup {
    /// The limits among its values.
    pub(crate) fn limits(&self) -> Option<Limits> {
        let Values { memory, cpu_shares, cpu_quota, .. } = self.values;
        Some(Limits { memory: memory?, cpu_shares: cpu_shares?, cpu_quota: cpu_quota? })
    }

    /// This one, with memory and CPU no smaller than `other` has them.
    pub(crate) fn grown(&self, other: &Self) -> Self {
        Self { values: self.values.or_larger(&other.values), ..self.clone() }
    }

    /// This one, with one resource as `other` has it: to take it over, or with `grow` no smaller than it is.
    pub(crate) fn with(&self, other: &Self, resource: Resource, grow: bool) -> Self {
        let from = if grow { other.values.or_larger(&self.values) } else { other.values.clone() };
        let mut out = Self { values: self.values.clone(), ..other.clone() };
        match resource {
            Resource::Memory => (out.values.memory, out.values.swap) = (from.memory, from.swap),
            Resource::Cpu => (out.values.cpu_shares, out.values.cpu_quota) = (from.cpu_shares, from.cpu_quota),
        }
        out
    }
}

/// The wanted values of the cgroups above the pods, by name: `kubepods` itself, where its limit is enforced, and the
/// classes Burstable, which weighs what its pods request, and BestEffort, which weighs nothing. Either of Docker's
/// cgroup drivers may have made them, so both names are there; what does not exist is skipped.
pub(crate) fn above_pods<'a>(
    pods: impl Iterator<Item = &'a PodCgroup>,
    node: Option<&Values>,
) -> BTreeMap<String, Values> {
    let burstable = pods.filter(|pod| pod.class == Class::Burstable).map(|pod| pod.milli_cpu);
    let burstable = milli_cpu_to_shares(burstable.fold(0, i64::saturating_add));
    let shares = |shares: i64| Values { cpu_shares: Some(shares), ..Values::default() };
    let mut all = BTreeMap::new();
    for systemd in [false, true] {
        if let Some(node) = node {
            all.insert(class_cgroup(Class::Guaranteed, systemd), node.clone());
        }
        all.insert(class_cgroup(Class::Burstable, systemd), shares(burstable));
        all.insert(class_cgroup(Class::BestEffort, systemd), shares(milli_cpu_to_shares(0)));
    }
    all
}

/// The files of a cgroup that take its values, but for huge pages: in the single hierarchy of cgroup v2, or in one of
/// v1, which has the name of its `controllers`.
pub(crate) fn files(controllers: &str, v2: bool, values: &Values) -> Vec<(&'static str, String)> {
    let or = |value: i64, none: &str| if value > 0 { value.to_string() } else { none.to_owned() };
    let pids = values.pids.map(|max| max.map_or_else(|| "max".to_owned(), |max| max.to_string()));
    let all = if v2 {
        [
            ("cpu.weight", values.cpu_shares.map(|shares| shares_to_weight(shares).to_string())),
            ("cpu.max", values.cpu_quota.map(|quota| format!("{} {CPU_PERIOD}", or(quota, "max")))),
            ("memory.max", values.memory.map(|bytes| or(bytes, "max"))),
            ("memory.swap.max", values.swap.map(|bytes| bytes.to_string())),
            ("pids.max", pids),
        ]
    } else {
        let named = |controller: &str| controllers.split(',').any(|name| name == controller);
        let (cpu, memory) = (named("cpu"), named("memory"));
        [
            ("cpu.shares", values.cpu_shares.filter(|_| cpu).map(|shares| shares.to_string())),
            ("cpu.cfs_quota_us", values.cpu_quota.filter(|_| cpu).map(|quota| or(quota, "-1"))),
            ("memory.limit_in_bytes", values.memory.filter(|_| memory).map(|bytes| or(bytes, "-1"))),
            // Swap cannot be limited by itself there, only together with memory, which Docker does for containers.
            ("memory.swap.max", None),
            ("pids.max", pids.filter(|_| named("pids"))),
        ]
    };
    all.into_iter().filter_map(|(file, value)| Some((file, value?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(class: Class, milli_cpu: i64) -> PodCgroup {
        PodCgroup { name: String::new(), class, milli_cpu, values: Values::default() }
    }

    /// Every file of the tree above pods, with its value.
    fn table(pods: &[PodCgroup], node: Option<&Values>, controllers: &str, v2: bool) -> Vec<String> {
        let all = above_pods(pods.iter(), node);
        let files = |(name, values): (String, Values)| {
            files(controllers, v2, &values).into_iter().map(move |(file, value)| format!("{name} {file} {value}"))
        };
        all.into_iter().filter(|(name, _)| name.starts_with('/')).flat_map(files).collect()
    }

    #[test]
    fn classes_weigh_what_their_pods_request() {
        let pods = [
            pod(Class::Guaranteed, 500),
            pod(Class::Burstable, 1000),
            pod(Class::Burstable, 7000),
            pod(Class::BestEffort, 0),
        ];
        let node = Values { cpu_shares: Some(8192), memory: Some(4 << 30), ..Values::default() };
        assert_eq!(
            table(&pods, Some(&node), "", true),
            [
                "/kubepods cpu.weight 532",
                "/kubepods memory.max 4294967296",
                "/kubepods/besteffort cpu.weight 1",
                "/kubepods/burstable cpu.weight 532",
            ]
        );
        assert_eq!(
            table(&pods, Some(&node), "cpu,cpuacct", false),
            ["/kubepods cpu.shares 8192", "/kubepods/besteffort cpu.shares 2", "/kubepods/burstable cpu.shares 8192"]
        );
        assert_eq!(table(&pods, Some(&node), "memory", false), ["/kubepods memory.limit_in_bytes 4294967296"]);
        // Without pods, and without a limit of all pods.
        let empty = ["/kubepods/besteffort cpu.shares 2", "/kubepods/burstable cpu.shares 2"];
        assert_eq!(table(&[], None, "cpu", false), empty);
        let names: Vec<String> = above_pods([].iter(), Some(&node)).into_keys().collect();
        assert_eq!(
            names,
            [
                "/kubepods",
                "/kubepods/besteffort",
                "/kubepods/burstable",
                "kubepods-besteffort.slice",
                "kubepods-burstable.slice",
                "kubepods.slice"
            ]
        );
    }

    #[test]
    fn values_in_the_words_of_each_version() {
        let limits = Limits { memory: 1 << 20, cpu_shares: 512, cpu_quota: 0 };
        let values = Values { swap: Some(0), pids: Some(Some(100)), ..Values::of(&limits) };
        let said = |controllers: &str, v2: bool| -> Vec<String> {
            files(controllers, v2, &values).into_iter().map(|(file, value)| format!("{file} {value}")).collect()
        };
        assert_eq!(said("cpu,cpuacct", false), ["cpu.shares 512", "cpu.cfs_quota_us -1"]);
        assert_eq!(said("memory", false), ["memory.limit_in_bytes 1048576"]);
        assert_eq!(said("pids", false), ["pids.max 100"]);
        assert!(said("blkio", false).is_empty());
        assert_eq!(
            said("unified", true),
            ["cpu.weight 59", "cpu.max max 100000", "memory.max 1048576", "memory.swap.max 0", "pids.max 100"]
        );
        assert!(files("unified", true, &Values::default()).is_empty(), "what is not ours");
    }

    #[test]
    fn a_resize_grows_a_pod_first_and_shrinks_it_last() {
        let with = |memory: i64, quota: i64| PodCgroup {
            values: Values::of(&Limits { memory, cpu_shares: quota / 100, cpu_quota: quota }),
            ..pod(Class::Burstable, quota / 100)
        };
        let (is, wanted) = (with(64, 20_000), with(32, 50_000));
        let shown = |pod: &PodCgroup| (pod.values.memory, pod.values.cpu_quota);
        assert_eq!(shown(&is.with(&wanted, Resource::Memory, true)), (Some(64), Some(20_000)));
        assert_eq!(shown(&is.with(&wanted, Resource::Memory, false)), (Some(32), Some(20_000)));
        assert_eq!(shown(&is.with(&wanted, Resource::Cpu, true)), (Some(64), Some(50_000)));
        assert_eq!(shown(&is.with(&with(0, 0), Resource::Memory, true)), (Some(0), Some(20_000)), "no limit is most");
        assert_eq!(shown(&with(0, 0).with(&is, Resource::Memory, true)), (Some(0), Some(0)));
    }
}
