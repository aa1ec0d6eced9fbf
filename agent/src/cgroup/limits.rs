//! What requests and limits become in a cgroup: CPU shares, CPU quota, memory, and the cgroup's name. Pure; the
//! arithmetic is that of upstream's `pkg/kubelet/cm/helpers_linux.go`.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, ResourceRequirements};
use windlass_kit::{
    objects::resources::{Class, amount, limit, request},
    quantity::Quantity,
};

use crate::engine::inspect::Limits;

/// Upstream's `cpuCFSQuotaPeriod`, in microseconds.
pub(crate) const CPU_PERIOD: i64 = 100_000;

/// Bytes of huge pages by the kernel's name of their size, such as `2MB`; pages of other sizes may not be used.
pub(crate) type HugePages = BTreeMap<String, i64>;

/// CPU shares of cgroup v1, as Docker takes them too: 1024 for a core, between 2 and 262144.
pub(crate) fn milli_cpu_to_shares(milli: i64) -> i64 {
    (milli.saturating_mul(1024) / 1000).clamp(2, 262_144)
}

/// Microseconds of each [`CPU_PERIOD`], at least 1000.
pub(crate) fn milli_cpu_to_quota(milli: i64) -> i64 {
    (milli.saturating_mul(CPU_PERIOD) / 1000).max(1000)
}

/// runc's conversion of shares, 2 to 262144, to weights of cgroup v2, 1 to 10000: a quadratic function of their
/// logarithms, which makes the default of the one that of the other, and with it a core weigh what the system's other
/// slices do (`ConvertCPUSharesToCgroupV2Value` of opencontainers/cgroups).
pub(crate) fn shares_to_weight(shares: i64) -> i64 {
    if shares <= 2 {
        return 1;
    }
    if shares >= 262_144 {
        return 10_000;
    }
    let log = (shares as f64).log2();
    let exponent = (log * log + 125.0 * log) / 612.0 - 7.0 / 34.0;
    10f64.powf(exponent).ceil() as i64
}

/// The limits of one container's cgroup. A container without its own limit gets that of the pod, so that programs
/// that look for a limit find it.
pub(crate) fn container_limits(whole: Option<&ResourceRequirements>, container: &Container) -> Limits {
    let limit = |resource: &str| {
        let own = limit(container, resource).filter(|own| !own.is_zero());
        own.or_else(|| amount(whole.and_then(|r| r.limits.as_ref()), resource))
    };
    let cpu_limit = limit("cpu").map_or(0, Quantity::milli);
    Limits {
        memory: limit("memory").map_or(0, Quantity::units).max(0),
        cpu_shares: milli_cpu_to_shares(request(container, "cpu").map_or(0, Quantity::milli)),
        cpu_quota: if cpu_limit > 0 { milli_cpu_to_quota(cpu_limit) } else { 0 },
    }
}

/// The cgroup above the pods of a class, named as Docker's cgroup driver wants it; Guaranteed pods are in `kubepods`.
pub(crate) fn class_cgroup(class: Class, systemd: bool) -> String {
    let (start, between, end) = if systemd { ("", "-", ".slice") } else { ("/", "/", "") };
    let class = match class {
        Class::Guaranteed => return format!("{start}kubepods{end}"),
        Class::Burstable => "burstable",
        Class::BestEffort => "besteffort",
    };
    format!("{start}kubepods{between}{class}{end}")
}

/// The cgroup of a pod, named as Docker's cgroup driver wants it.
pub(crate) fn pod_cgroup(class: Class, uid: &str, systemd: bool) -> String {
    let class = class_cgroup(class, systemd);
    if systemd {
        return format!("{}-pod{}.slice", class.trim_end_matches(".slice"), uid.replace('-', "_"));
    }
    format!("{class}/pod{uid}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cgroups_by_class_and_driver() {
        assert_eq!(pod_cgroup(Class::Burstable, "a-b", false), "/kubepods/burstable/poda-b");
        assert_eq!(pod_cgroup(Class::Guaranteed, "a-b", false), "/kubepods/poda-b");
        assert_eq!(pod_cgroup(Class::BestEffort, "a-b", true), "kubepods-besteffort-poda_b.slice");
        assert_eq!(pod_cgroup(Class::Guaranteed, "a-b", true), "kubepods-poda_b.slice");
    }

    /// As runc 1.4 converts them.
    #[test]
    fn weights_of_shares() {
        for (shares, weight) in
            [(0, 1), (2, 1), (3, 2), (102, 17), (512, 59), (1024, 100), (2048, 174), (262_144, 10_000)]
        {
            assert_eq!(shares_to_weight(shares), weight, "{shares}");
        }
    }

    #[test]
    fn shares_and_quota() {
        let limits = |resources: &str| {
            let text = format!(r#"{{"name":"c","resources":{resources}}}"#);
            let limits = container_limits(None, &serde_json::from_str(&text).unwrap());
            (limits.cpu_shares, limits.cpu_quota)
        };
        assert_eq!(limits(r#"{"limits":{"cpu":"500m"},"requests":{"cpu":"250m","memory":"1Gi"}}"#), (256, 50_000));
        assert_eq!(limits("{}"), (2, 0));
        assert_eq!(limits(r#"{"limits":{"cpu":"1m"}}"#).1, 1000);
        let whole: ResourceRequirements =
            serde_json::from_str(r#"{"limits":{"cpu":"2","memory":"1Gi"},"requests":{"cpu":"1"}}"#).unwrap();
        let within = |resources: &str| {
            let text = format!(r#"{{"name":"c","resources":{resources}}}"#);
            container_limits(Some(&whole), &serde_json::from_str(&text).unwrap())
        };
        assert_eq!(within("{}"), Limits { memory: 1 << 30, cpu_shares: 2, cpu_quota: 200_000 });
        let own = within(r#"{"limits":{"memory":"8Mi"}}"#);
        assert_eq!((own.memory, own.cpu_quota), (8 << 20, 200_000));
    }
}
