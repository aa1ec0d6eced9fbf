//! What this node cannot or must not run, whatever was scheduled here: asked once for each pod, before anything of it
//! is made. Pure.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{Node, Pod, PodSpec, Taint};
use windlass_kit::{
    objects::{
        node_selector,
        requests::{Amounts, HostPort, host_ports, requests},
        resources::{self, Class},
        tolerations,
    },
    quantity::Quantity,
};

use super::{body, orders::Ended, pressure, spec};
use crate::Pressure;

/// An end before the beginning, in upstream's words.
fn refused(reason: impl Into<String>, why: impl std::fmt::Display) -> Ended {
    Ended { reason: reason.into(), message: format!("Pod was rejected: {why}"), grace: None, disruption: false }
}

fn failed(predicate: &str, why: &str) -> Option<Ended> {
    Some(refused(predicate, format_args!("Predicate {predicate} failed: {why}")))
}

/// What a pod holds of its node for as long as it is there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Claim {
    pub(crate) amounts: Amounts,
    pub(crate) ports: Vec<HostPort>,
    pub(crate) class: Class,
    pub(crate) priority: i32,
    /// Upstream's: of the node itself, or of a priority that the system keeps to itself.
    pub(crate) critical: bool,
}

impl Claim {
    pub(crate) fn of(pod: &Pod) -> Self {
        Self {
            amounts: requests(pod),
            ports: host_ports(pod),
            class: resources::class_of(pod),
            priority: pod.spec.as_ref().and_then(|s| s.priority).unwrap_or(0),
            critical: spec::is_critical(pod),
        }
    }
}

/// What becomes of a pod that is new to the node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Admission {
    TakenIn,
    Refused(Ended),
    /// There is room for it when these pods are down.
    After(Vec<String>),
}

/// The node as a pod finds it.
#[derive(Debug, Clone, Default)]
pub(crate) struct NodeView {
    pub(crate) name: String,
    /// `None` while the API has not told them: what asks for labels is let in then, since the scheduler looked.
    pub(crate) labels: Option<BTreeMap<String, String>>,
    pub(crate) taints: Vec<Taint>,
    pub(crate) allocatable: Amounts,
    pub(crate) max_pods: usize,
    pub(crate) pressure: Pressure,
    /// The machine is about to end.
    pub(crate) going_down: bool,
    /// The AppArmor profiles that the kernel has.
    pub(crate) profiles: BTreeSet<String>,
    /// Kernel settings beyond the safe ones that pods may have.
    pub(crate) unsafe_sysctls: Vec<String>,
}

impl NodeView {
    /// `node` as the API has it; what the machine itself tells counts until then.
    pub(crate) fn of(name: &str, node: Option<&Node>, machine: &BTreeMap<String, Quantity>, max_pods: usize) -> Self {
        let told = node.and_then(|n| n.status.as_ref()?.allocatable.as_ref()).filter(|all| !all.is_empty());
        let own = |resource: &str, read: fn(Quantity) -> i64| machine.get(resource).map_or(i64::MAX, |q| read(*q));
        let allocatable = match told {
            Some(_) => Amounts::of(told),
            None => Amounts {
                milli_cpu: own("cpu", Quantity::milli),
                memory: own("memory", Quantity::units),
                ephemeral: i64::MAX,
                ..Amounts::default()
            },
        };
        Self {
            name: name.to_owned(),
            labels: node.map(|n| n.metadata.labels.clone().unwrap_or_default()),
            taints: node.and_then(|n| n.spec.as_ref()?.taints.clone()).unwrap_or_default(),
            allocatable,
            max_pods,
            ..Self::default()
        }
    }
}

/// Settings of the kernel that are a namespace's own and harm nobody else; upstream's list.
const SAFE_SYSCTLS: [&str; 12] = [
    "kernel.shm_rmid_forced",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.tcp_syncookies",
    "net.ipv4.ping_group_range",
    "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_wmem",
];

/// Whether this node refuses a pod, beside what the `others` hold: upstream's order of questions.
pub(crate) fn refuse<'a>(pod: &Pod, node: &NodeView, others: impl Iterator<Item = &'a Claim> + Clone) -> Option<Ended> {
    let spec = pod.spec.as_ref()?;
    if node.going_down {
        return Some(refused("NodeShutdown", "The node is shutting down"));
    }
    pressure::refuse(pod, node.pressure)
        .or_else(|| sysctls(spec, &node.unsafe_sysctls))
        .or_else(|| predicates(pod, spec, node, others.clone()))
        .or_else(|| resources(pod, node, others))
        .or_else(|| unsupported(spec, node))
}

/// The beginnings of kernel settings that are a namespace's own; upstream's list.
const NAMESPACED: [&str; 5] = ["kernel.sem", "kernel.shm", "kernel.msg", "fs.mqueue.", "net."];

/// What is wrong with `allowedUnsafeSysctls`: what is no namespace's own would be the whole machine's.
#[must_use]
pub fn unsafe_sysctl_problems(patterns: &[String]) -> Vec<String> {
    let part = |p: &str| {
        !p.is_empty() && p.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'_')
    };
    let wrong = |pattern: &&String| {
        let name = pattern.replace('/', ".");
        let stem = name.strip_suffix('*').unwrap_or(&name);
        let whole = stem.strip_suffix('.').filter(|_| name.ends_with('*')).unwrap_or(stem);
        !whole.split('.').all(part) || !NAMESPACED.iter().any(|start| stem.starts_with(start))
    };
    let told = |pattern: &String| {
        format!(
            "allowedUnsafeSysctls {pattern:?} is no name, or pattern that ends in *, of kernel.sem, kernel.shm…, kernel.msg…, \
             fs.mqueue.… or net.…, which alone are a pod's own"
        )
    };
    patterns.iter().filter(wrong).map(told).collect()
}

/// Whether one of these patterns means a setting.
fn is_allowed(name: &str, patterns: &[String]) -> bool {
    patterns.iter().any(|pattern| {
        let pattern = pattern.replace('/', ".");
        pattern.strip_suffix('*').map_or(pattern == name, |start| name.starts_with(start))
    })
}

fn sysctls(spec: &PodSpec, allowed: &[String]) -> Option<Ended> {
    let forbidden = |why: String| Some(refused("SysctlForbidden", format_args!("forbidden sysctl: {why}")));
    for sysctl in spec.security_context.iter().flat_map(|c| c.sysctls.iter().flatten()) {
        // Both ways of writing a name are the API's.
        let name = sysctl.name.replace('/', ".");
        if spec::host_network(spec) && name.starts_with("net.") {
            return forbidden(format!("{name:?} not allowed with host net enabled"));
        }
        if spec.host_ipc == Some(true) && !name.starts_with("net.") {
            return forbidden(format!("{name:?} not allowed with host ipc enabled"));
        }
        if !SAFE_SYSCTLS.contains(&name.as_str()) && !is_allowed(&name, allowed) {
            return forbidden(format!("{name:?} not allowlisted"));
        }
    }
    None
}

fn predicates<'a>(
    pod: &Pod,
    spec: &PodSpec,
    node: &NodeView,
    mut others: impl Iterator<Item = &'a Claim>,
) -> Option<Ended> {
    if spec.node_name.as_deref().is_some_and(|name| !name.is_empty() && name != node.name) {
        return failed("NodeName", "node(s) didn't match the requested node name");
    }
    if !chosen(spec, node) {
        return failed("NodeAffinity", "node(s) didn't match Pod's node affinity/selector");
    }
    let ports = host_ports(pod);
    if others.any(|other| other.ports.iter().any(|taken| ports.iter().any(|port| port.clashes(taken)))) {
        return failed("NodePorts", "node(s) didn't have free ports for the requested pod ports");
    }
    let tolerated = spec.tolerations.as_deref().unwrap_or_default();
    if !spec::is_static(pod) && tolerations::untolerated(&node.taints, tolerated, &["NoExecute"]).is_some() {
        return failed("TaintToleration", "node(s) had untolerated taint(s)");
    }
    None
}

/// Whether the node is one of those that the pod's selector and required affinity mean.
fn chosen(spec: &PodSpec, node: &NodeView) -> bool {
    let Some(labels) = &node.labels else { return true };
    let affinity = spec.affinity.as_ref().and_then(|a| a.node_affinity.as_ref());
    let required = affinity.and_then(|a| a.required_during_scheduling_ignored_during_execution.as_ref());
    spec.node_selector.iter().flatten().all(|(key, value)| labels.get(key) == Some(value))
        && required.is_none_or(|selector| node_selector::matches(selector, &node.name, labels))
}

fn resources<'a>(pod: &Pod, node: &NodeView, others: impl Iterator<Item = &'a Claim> + Clone) -> Option<Ended> {
    let short = |name: &str, requested: i64, used: i64, capacity: i64| {
        let why = format!(
            "Node didn't have enough resource: {name}, requested: {requested}, used: {used}, capacity: {capacity}"
        );
        Some(refused(format!("OutOf{name}"), why))
    };
    let whole = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
    let count = others.clone().count();
    if count >= node.max_pods {
        return short("pods", 1, whole(count), whole(node.max_pods));
    }
    let mut used = Amounts::default();
    others.for_each(|claim| used.add(&claim.amounts));
    let (wanted, all) = (requests(pod), &node.allocatable);
    let named = wanted.other.iter().map(|(name, amount)| {
        let of = |amounts: &Amounts| amounts.other.get(name).copied().unwrap_or(0);
        (name.as_str(), *amount, of(&used), of(all))
    });
    let own = [
        ("cpu", wanted.milli_cpu, used.milli_cpu, all.milli_cpu),
        ("memory", wanted.memory, used.memory, all.memory),
        ("ephemeral-storage", wanted.ephemeral, used.ephemeral, all.ephemeral),
    ];
    let mut short_of = own.into_iter().chain(named);
    let lacking = short_of.find(|(_, wanted, used, all)| *wanted > 0 && *wanted > all.saturating_sub(*used));
    lacking.and_then(|(name, wanted, used, all)| short(name, wanted, used, all))
}

fn unsupported(spec: &PodSpec, node: &NodeView) -> Option<Ended> {
    let mut profiles = spec::all_containers(spec).filter_map(|(c, _)| body::local_app_armor(spec, c));
    if let Some(profile) = profiles.find(|profile| !node.profiles.contains(*profile)) {
        return Some(refused("AppArmor", format_args!("Cannot enforce AppArmor: profile {profile:?} is not loaded")));
    }
    if spec.os.as_ref().is_some_and(|os| os.name != "linux") {
        return Some(refused("PodOSNotSupported", "Failed to admit pod as the OS field doesn't match node OS"));
    }
    if spec.host_users == Some(false) {
        // Docker maps users for the whole daemon or not at all.
        return Some(refused(
            "PodFeatureUnsupported",
            "Docker Engine has no user namespaces for single pods (hostUsers: false)",
        ));
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unsafe_sysctls_that_the_node_allows() {
        let pod = |name: &str| -> Pod {
            let text = r#"{"spec":{"containers":[],"securityContext":{"sysctls":[{"name":"NAME","value":"1"}]}}}"#;
            serde_json::from_str(&text.replace("NAME", name)).unwrap()
        };
        let allowed = ["kernel.msg*".to_owned(), "net.core.somaxconn".to_owned()];
        for (name, taken) in [
            ("kernel.msgmax", true),
            ("kernel/msgmax", true),
            ("net.core.somaxconn", true),
            ("net.core.somaxconn2", false),
            ("kernel.sem", false),
        ] {
            let node = NodeView { max_pods: 1, unsafe_sysctls: allowed.to_vec(), ..NodeView::default() };
            let refused = refuse(&pod(name), &node, std::iter::empty());
            assert_eq!(refused.map(|r| r.reason), (!taken).then(|| "SysctlForbidden".to_owned()), "{name}");
        }
    }

    #[test]
    fn only_settings_of_a_namespace_can_be_allowed() {
        let problems = |pattern: &str| unsafe_sysctl_problems(&[pattern.to_owned()]).len();
        for good in ["kernel.msg*", "kernel.sem", "net.*", "net/ipv4/tcp_mem", "fs.mqueue.*", "net.ipv4.tcp_*"] {
            assert_eq!(problems(good), 0, "{good}");
        }
        for bad in ["", "*", "kernel.*", "vm.swappiness", "kernel.panic", "net.", "net..x", "net.*.x", "Net.x"] {
            assert_eq!(problems(bad), 1, "{bad}");
        }
    }

    fn pod(spec: &str) -> Pod {
        serde_json::from_str(&format!(r#"{{"spec":{spec}}}"#)).unwrap()
    }

    fn node() -> NodeView {
        NodeView {
            name: "n".into(),
            labels: Some(BTreeMap::from([("disk".to_owned(), "fast".to_owned())])),
            taints: Vec::new(),
            allocatable: Amounts { milli_cpu: 2000, memory: 1 << 30, ephemeral: 1 << 30, ..Amounts::default() },
            max_pods: 3,
            profiles: BTreeSet::from(["loaded".to_owned()]),
            ..NodeView::default()
        }
    }

    fn reason(spec: &str, others: &[Claim]) -> Option<String> {
        refuse(&pod(spec), &node(), others.iter()).map(|r| r.reason)
    }

    #[test]
    fn settings_of_the_kernel() {
        let sysctl = |name: &str, rest: &str| {
            format!(r#"{{"containers":[],{rest}"securityContext":{{"sysctls":[{{"name":"{name}","value":"1"}}]}}}}"#)
        };
        for (spec, refused) in [
            (r#"{"containers":[]}"#.to_owned(), false),
            (sysctl("net.ipv4.tcp_syncookies", ""), false),
            (sysctl("net/ipv4/tcp_syncookies", ""), false),
            (sysctl("kernel.msgmax", ""), true),
            (sysctl("net.ipv4.tcp_syncookies", r#""hostNetwork":true,"#), true),
            (sysctl("kernel.shm_rmid_forced", r#""hostIPC":true,"#), true),
        ] {
            assert_eq!(reason(&spec, &[]).as_deref(), refused.then_some("SysctlForbidden"), "{spec}");
        }
    }

    #[test]
    fn what_the_node_is_not() {
        for (spec, wanted) in [
            (r#"{"containers":[],"os":{"name":"windows"}}"#, Some("PodOSNotSupported")),
            (r#"{"containers":[],"hostUsers":false}"#, Some("PodFeatureUnsupported")),
            (r#"{"containers":[],"nodeName":"n"}"#, None),
            (r#"{"containers":[],"nodeName":"m"}"#, Some("NodeName")),
            (r#"{"containers":[],"nodeSelector":{"disk":"fast"}}"#, None),
            (r#"{"containers":[],"nodeSelector":{"disk":"slow"}}"#, Some("NodeAffinity")),
            (
                r#"{"containers":[],"affinity":{"nodeAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":
                    {"nodeSelectorTerms":[{"matchExpressions":[{"key":"disk","operator":"DoesNotExist"}]}]}}}}"#,
                Some("NodeAffinity"),
            ),
        ] {
            assert_eq!(reason(spec, &[]).as_deref(), wanted, "{spec}");
        }
        let profile = |name: &str| {
            let context = format!(r#"{{"appArmorProfile":{{"type":"Localhost","localhostProfile":"{name}"}}}}"#);
            reason(&format!(r#"{{"containers":[{{"name":"c","securityContext":{context}}}]}}"#), &[])
        };
        assert_eq!((profile("loaded"), profile("none").as_deref()), (None, Some("AppArmor")));
        let unknown = NodeView { labels: None, ..node() };
        assert_eq!(refuse(&pod(r#"{"containers":[],"nodeSelector":{"a":"b"}}"#), &unknown, [].iter()), None);
    }

    #[test]
    fn what_others_hold() {
        let container = |rest: &str| format!(r#"{{"containers":[{{"name":"c",{rest}}}]}}"#);
        let asks = |what: &str| container(&format!(r#""resources":{{"requests":{{{what}}}}}"#));
        let binds = |what: &str| container(&format!(r#""ports":[{{"containerPort":80,{what}}}]"#));
        let held = [
            Claim::of(&pod(&asks(r#""cpu":"1500m","memory":"1Mi""#))),
            Claim::of(&pod(&binds(r#""hostPort":80,"hostIP":"127.0.0.1""#))),
        ];
        for (spec, wanted) in [
            (asks(r#""cpu":"500m""#), None),
            (asks(r#""cpu":"501m""#), Some("OutOfcpu")),
            (asks(r#""memory":"1Gi""#), Some("OutOfmemory")),
            (asks(r#""ephemeral-storage":"2Gi""#), Some("OutOfephemeral-storage")),
            (asks(r#""example.com/thing":"1""#), Some("OutOfexample.com/thing")),
            (binds(r#""hostPort":80"#), Some("NodePorts")),
            (binds(r#""hostPort":80,"hostIP":"127.0.0.2""#), None),
            (binds(r#""hostPort":80,"protocol":"UDP""#), None),
        ] {
            assert_eq!(reason(&spec, &held).as_deref(), wanted, "{spec}");
        }
        let three = vec![Claim::of(&Pod::default()); 3];
        assert_eq!(reason(&asks(""), &three).as_deref(), Some("OutOfpods"));
        let refused = refuse(&pod(&asks(r#""cpu":"3""#)), &node(), held.iter()).unwrap();
        assert_eq!(
            refused.message,
            "Pod was rejected: Node didn't have enough resource: cpu, requested: 3000, used: 1500, capacity: 2000"
        );
    }

    #[test]
    fn taints_drive_away_all_but_static_pods() {
        let taint = Taint { key: "k".into(), effect: "NoExecute".into(), ..Taint::default() };
        let node = NodeView { taints: vec![taint], ..node() };
        let mut pod = pod(r#"{"containers":[]}"#);
        assert_eq!(refuse(&pod, &node, [].iter()).unwrap().reason, "TaintToleration");
        let source = BTreeMap::from([(spec::SOURCE.to_owned(), "file".to_owned())]);
        pod.metadata.annotations = Some(source);
        assert_eq!(refuse(&pod, &node, [].iter()), None);
    }
}
