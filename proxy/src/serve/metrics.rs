//! The metrics page, with the names of kube-proxy's metrics.

use std::{collections::BTreeMap, sync::atomic::Ordering};

use windlass_kit::{
    build_info, process_metrics,
    prometheus::{Kind, Text},
    rest_client,
};

use super::{
    Status,
    status::{FamilyStatus, PolicyStatus},
};
use crate::{model::Family, rules::PerPolicy};

#[allow(clippy::cast_precision_loss)]
const fn float(n: u64) -> f64 {
    n as f64
}

fn seconds(at: Option<jiff::Timestamp>) -> f64 {
    at.map_or(0.0, |t| t.as_duration().as_secs_f64())
}

type Getter<T> = fn(&FamilyStatus) -> T;
type HistogramOf = for<'a> fn(&'a FamilyStatus) -> &'a super::status::Histogram;

const HISTOGRAMS: [(&str, &str, HistogramOf); 5] = [
    (
        "kubeproxy_network_programming_duration_seconds",
        "Time from a change of endpoints to rules in the kernel",
        FamilyStatus::programming,
    ),
    ("kubeproxy_sync_proxy_rules_duration_seconds", "Time to write rules", FamilyStatus::all),
    ("kubeproxy_sync_full_proxy_rules_duration_seconds", "Time to write all rules", FamilyStatus::full),
    ("kubeproxy_sync_partial_proxy_rules_duration_seconds", "Time to write changed rules", FamilyStatus::partial),
    (
        "kubeproxy_conntrack_reconciler_sync_duration_seconds",
        "Time to forget stale UDP connections",
        FamilyStatus::conntrack,
    ),
];

const VALUES: [(&str, &str, Kind, Getter<f64>); 8] = [
    ("kubeproxy_sync_proxy_rules_last_timestamp_seconds", "When rules were last in order", Kind::Gauge, |f| {
        seconds(f.last_updated)
    }),
    ("kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds", "When a change last came in", Kind::Gauge, |f| {
        seconds(f.last_queued)
    }),
    ("kubeproxy_sync_proxy_rules_iptables_restore_failures_total", "Restores that failed", Kind::Counter, |f| {
        float(f.failures)
    }),
    (
        "kubeproxy_sync_proxy_rules_iptables_partial_restore_failures_total",
        "Restores of changed rules that failed",
        Kind::Counter,
        |f| float(f.partial_failures),
    ),
    (
        "kubeproxy_conntrack_reconciler_deleted_entries_total",
        "Stale UDP connections that were forgotten",
        Kind::Counter,
        |f| float(f.deleted_conntrack_entries),
    ),
    (
        "windlass_proxy_repairs_total",
        "Times that others had changed our rules and they were written again",
        Kind::Counter,
        |f| float(f.repairs),
    ),
    (
        "windlass_proxy_refused_service_ports",
        "Service ports whose rules the kernel refuses; connections to them are refused",
        Kind::Gauge,
        |f| float(f.refused_ports),
    ),
    (
        "windlass_proxy_undeletable_chains",
        "Chains that no service needs and that cannot be deleted, since something else leads to them",
        Kind::Gauge,
        |f| float(f.undeletable),
    ),
];

/// Name, help, kind, and how the value is read.
type PolicyValue = (&'static str, &'static str, Kind, fn(&PolicyStatus) -> u64);

const POLICY_VALUES: [PolicyValue; 6] = [
    (
        "windlass_network_policy_in_force",
        "Whether the rules of NetworkPolicies are in the kernel; 0: pods that start wait for them",
        Kind::Gauge,
        |p| u64::from(p.in_force),
    ),
    ("windlass_network_policy_sync_failures_total", "Writes of the rules that failed", Kind::Counter, |p| p.failures),
    (
        "windlass_network_policy_repairs_total",
        "Times that others had changed chains or IP sets of NetworkPolicies and they were written again",
        Kind::Counter,
        |p| p.repairs,
    ),
    ("windlass_network_policy_chains", "Chains of NetworkPolicies", Kind::Gauge, |p| p.chains as u64),
    ("windlass_network_policy_ip_sets", "IP sets of NetworkPolicies", Kind::Gauge, |p| p.sets as u64),
    ("windlass_network_policy_ip_set_entries", "Entries of all these IP sets", Kind::Gauge, |p| p.entries as u64),
];

/// The part of a node that enforces NetworkPolicies.
fn policies(page: &mut Text, families: &BTreeMap<Family, PolicyStatus>) {
    if families.is_empty() {
        return;
    }
    let name = "windlass_network_policy_sync_duration_seconds";
    page.family(name, "Time to compare and write the rules of NetworkPolicies", Kind::Histogram);
    for (family, status) in families {
        let h = &status.syncs;
        page.histogram(name, &[("ip_family", family.name())], &h.cumulative(), h.sum, h.count);
    }
    for (name, help, kind, get) in POLICY_VALUES {
        page.family(name, help, kind);
        for (family, status) in families {
            page.sample(name, &[("ip_family", family.name())], float(get(status)));
        }
    }
}

/// Renders the page; `packets` are the counts of the two nfacct counters, where the kernel has them.
pub(super) fn page(status: &Status, packets: [Option<u64>; 2]) -> String {
    let mut page = Text::new();
    {
        let state = status.lock();
        let families: Vec<(Family, &FamilyStatus)> = state.families.iter().map(|(f, s)| (*f, s)).collect();
        for (name, help, get) in HISTOGRAMS {
            page.family(name, help, Kind::Histogram);
            for (family, status) in &families {
                let h = get(status);
                page.histogram(name, &[("ip_family", family.name())], &h.cumulative(), h.sum, h.count);
            }
        }
        for (name, help, kind, get) in VALUES {
            page.family(name, help, kind);
            for (family, status) in &families {
                page.sample(name, &[("ip_family", family.name())], get(status));
            }
        }
        policies(&mut page, &state.policies);
        let total = "kubeproxy_sync_proxy_rules_iptables_total";
        page.family(total, "Rules in the kernel", Kind::Gauge);
        for (family, status) in &families {
            let label = family.name();
            page.sample(total, &[("table", "filter"), ("ip_family", label)], float(status.rules.filter));
            page.sample(total, &[("table", "nat"), ("ip_family", label)], float(status.rules.nat));
        }
        let last = "kubeproxy_sync_proxy_rules_iptables_last";
        page.family(last, "Rules of the last write", Kind::Gauge);
        for (family, status) in &families {
            let label = family.name();
            page.sample(last, &[("table", "filter"), ("ip_family", label)], float(status.last_lines.filter));
            page.sample(last, &[("table", "nat"), ("ip_family", label)], float(status.last_lines.nat));
        }
        let local = "kubeproxy_sync_proxy_rules_no_local_endpoints_total";
        page.family(local, "Service ports with policy Local and no endpoint on this node", Kind::Gauge);
        for (family, status) in &families {
            let PerPolicy { internal, external } = status.without_local;
            for (policy, count) in [("internal", internal), ("external", external)] {
                page.sample(local, &[("traffic_policy", policy), ("ip_family", family.name())], float(count as u64));
            }
        }
        for (name, help, kind, value) in [
            ("endpoint_changes_total", "EndpointSlice changes", Kind::Counter, state.endpoint_changes),
            (
                "endpoint_changes_pending",
                "EndpointSlice changes not yet written",
                Kind::Gauge,
                state.endpoint_changes_pending,
            ),
            ("service_changes_total", "Service changes", Kind::Counter, state.service_changes),
            ("service_changes_pending", "Service changes not yet written", Kind::Gauge, state.service_changes_pending),
        ] {
            let name = format!("kubeproxy_sync_proxy_rules_{name}");
            page.family(&name, help, kind);
            page.sample(&name, &[], float(value));
        }
    }
    let counters = [
        (
            "kubeproxy_iptables_ct_state_invalid_dropped_packets_total",
            "Packets dropped because connection tracking finds them invalid",
        ),
        ("kubeproxy_iptables_localhost_nodeports_accepted_packets_total", "Connections to node ports at 127.0.0.1"),
    ];
    for ((name, help), packets) in counters.into_iter().zip(packets) {
        if let Some(packets) = packets {
            page.family(name, help, Kind::Counter);
            page.sample(name, &[], float(packets));
        }
    }
    for (name, counts) in [("healthz", &status.healthz), ("livez", &status.livez)] {
        let full = format!("kubeproxy_proxy_{name}_total");
        page.family(&full, "Answers by status code", Kind::Counter);
        for (code, count) in ["200", "503"].into_iter().zip(counts) {
            page.sample(&full, &[("code", code)], float(count.load(Ordering::Relaxed)));
        }
    }
    build_info::write(&mut page);
    rest_client::write(&mut page);
    process_metrics::write(&mut page);
    page.finish()
}
