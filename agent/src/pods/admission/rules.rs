//! Which pods the node rejects, whatever was scheduled here: evaluated once per pod, before anything of it is created.
//! Pure.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Node, Pod, PodSpec, Taint};
use windlass_kit::{
    objects::{
        node_selector,
        requests::{Amounts, host_ports, requests},
        resource_names::is_extended,
        tolerations,
    },
    quantity::Quantity,
};

use super::{pressure, rejected, reservations::Reservation, sysctls};
use crate::{
    Pressure,
    pods::{
        container::security::{has_unnamed_app_armor, needs_app_armor},
        lifecycle::{kill::KillReason, reasons, spec},
    },
};

fn failed(predicate: &str, why: &str) -> Option<KillReason> {
    Some(rejected(predicate, format_args!("Predicate {predicate} failed: {why}")))
}

/// The node as admission sees it.
#[derive(Debug, Clone, Default)]
pub(crate) struct NodeView {
    pub(crate) name: String,
    /// `None` while the node's object is unknown: node affinity is not checked then, since the scheduler did.
    pub(crate) labels: Option<BTreeMap<String, String>>,
    pub(crate) taints: Vec<Taint>,
    pub(crate) allocatable: Amounts,
    pub(crate) max_pods: usize,
    pub(crate) pressure: Pressure,
    /// The machine is about to shut down.
    pub(crate) shutting_down: bool,
    /// The kernel confines processes by AppArmor.
    pub(crate) app_armor: bool,
    /// `allowedUnsafeSysctls` of the configuration.
    pub(crate) unsafe_sysctls: Vec<String>,
}

impl NodeView {
    /// The view of `node` as the API has it; until it does, `machine` says what is allocatable.
    pub(crate) fn of(name: &str, node: Option<&Node>, machine: &BTreeMap<String, Quantity>, max_pods: usize) -> Self {
        let reported = node.and_then(|n| n.status.as_ref()?.allocatable.as_ref()).filter(|all| !all.is_empty());
        let own = |resource: &str, read: fn(Quantity) -> i64| machine.get(resource).map_or(i64::MAX, |q| read(*q));
        let allocatable = match reported {
            Some(_) => Amounts::of(reported),
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

/// Why the node rejects a pod, if it does, besides the `others`; in upstream's order of checks. A critical pod lacks
/// room only if it lacks nothing else: no pod is preempted for one that is rejected anyway.
pub(crate) fn reject<'a>(
    pod: &Pod,
    node: &NodeView,
    others: impl Iterator<Item = &'a Reservation> + Clone,
) -> Option<KillReason> {
    let spec = pod.spec.as_ref()?;
    if node.shutting_down {
        return Some(rejected("NodeShutdown", "The node is shutting down"));
    }
    let first = pressure::reject(pod, node.pressure)
        .or_else(|| sysctls::reject(spec, &node.unsafe_sysctls))
        .or_else(|| operating_system(spec));
    let others_hold = others.clone();
    let room = || resources(pod, node, others_hold);
    let rest = || predicates(pod, spec, node, others).or_else(|| unsupported(pod, spec, node));
    if spec::is_critical(pod) { first.or_else(rest).or_else(room) } else { first.or_else(room).or_else(rest) }
}

fn predicates<'a>(
    pod: &Pod,
    spec: &PodSpec,
    node: &NodeView,
    mut others: impl Iterator<Item = &'a Reservation>,
) -> Option<KillReason> {
    if !matches_affinity(spec, node) {
        return failed("NodeAffinity", "node(s) didn't match Pod's node affinity/selector");
    }
    if spec.node_name.as_deref().is_some_and(|name| !name.is_empty() && name != node.name) {
        return failed("NodeName", "node(s) didn't match the requested node name");
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

/// Whether the pod's node selector and required node affinity match the node.
fn matches_affinity(spec: &PodSpec, node: &NodeView) -> bool {
    node.labels.as_ref().is_none_or(|labels| node_selector::pod_matches(spec, &node.name, labels))
}

fn resources<'a>(
    pod: &Pod,
    node: &NodeView,
    others: impl Iterator<Item = &'a Reservation> + Clone,
) -> Option<KillReason> {
    let short = |name: &str, requested: i64, used: i64, capacity: i64| {
        let why = format!(
            "Node didn't have enough resource: {name}, requested: {requested}, used: {used}, capacity: {capacity}"
        );
        Some(rejected(format!("{}{name}", reasons::OUT_OF), why))
    };
    let whole = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
    let count = others.clone().count();
    if count >= node.max_pods {
        return short("pods", 1, whole(count), whole(node.max_pods));
    }
    let mut used = Amounts::default();
    others.for_each(|reservation| used.add(&reservation.amounts));
    let (wanted, all) = (requests(pod), &node.allocatable);
    // An extended resource that the node does not have is the cluster's: a scheduler extender accounts for it.
    let known = |name: &str| all.other.contains_key(name) || !is_extended(name);
    let named = wanted.other.iter().filter(|(name, _)| known(name)).map(|(name, amount)| {
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

/// Whether the node confines the pod's containers as they ask. Which profiles are loaded is not asked: a container
/// whose profile is not fails to start, and is tried again until something on the node has loaded it.
fn app_armor(pod: &Pod, spec: &PodSpec, node: &NodeView) -> Option<KillReason> {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    // What runs already is not asked again.
    if phase.is_some_and(|phase| phase != "Pending") || !needs_app_armor(pod, spec) {
        return None;
    }
    let why = if !node.app_armor {
        "AppArmor is not enabled on the host"
    } else if spec::all_containers(spec).any(|(c, _)| has_unnamed_app_armor(pod, spec, c)) {
        "invalid empty AppArmor profile name"
    } else {
        return None;
    };
    Some(rejected("AppArmor", format_args!("Cannot enforce AppArmor: {why}")))
}

fn operating_system(spec: &PodSpec) -> Option<KillReason> {
    let other = spec.os.as_ref().is_some_and(|os| os.name != "linux");
    other.then(|| rejected("PodOSNotSupported", "Failed to admit pod as the OS field doesn't match node OS"))
}

fn unsupported(pod: &Pod, spec: &PodSpec, node: &NodeView) -> Option<KillReason> {
    if let Some(reason) = app_armor(pod, spec, node) {
        return Some(reason);
    }
    if spec.host_users == Some(false) {
        // Docker remaps users for the whole daemon or not at all.
        return Some(rejected(
            "PodFeatureUnsupported",
            "Docker Engine has no user namespaces for single pods (hostUsers: false)",
        ));
    }
    None
}

#[cfg(test)]
mod tests {
    use serde_json::Value;
    use windlass_fixtures::facts::{json_of, rows, value_of};

    use super::*;

    static UPSTREAM: &str = include_str!("../../../../facts/node_predicates.tsv");

    /// Cases that are decided otherwise here, and why; docs/decisions.md has them.
    static OTHERWISE: &[(&str, &str)] =
        &[("node affinity failure on cached node, but not the fresh one", "the node is read by its watch alone")];

    /// A pod of upstream's tests, with what the API would not take it without.
    fn upstreams(pod: &Value) -> Pod {
        let mut pod = pod.clone();
        let spec = pod.as_object_mut().unwrap().entry("spec").or_insert_with(|| serde_json::json!({}));
        spec.as_object_mut().unwrap().entry("containers").or_insert_with(|| serde_json::json!([]));
        value_of(&pod.to_string())
    }

    #[test]
    fn pods_fit_as_upstreams_tests_say() {
        let mut seen = 0;
        for row in rows(UPSTREAM) {
            let [_, case, pod, others, node, _, reasons] = *row else { panic!("{row:?}") };
            seen += 1;
            if OTHERWISE.iter().any(|(other, _)| *other == case) {
                continue;
            }
            let (node, reasons) = (value_of::<Node>(node), json_of(reasons));
            let others: Vec<Reservation> =
                json_of(others).as_array().unwrap().iter().map(|pod| Reservation::of(&upstreams(pod))).collect();
            let name = node.metadata.name.clone().unwrap();
            let mut view = NodeView::of(&name, Some(&node), &BTreeMap::new(), 32);
            view.app_armor = true;
            let found = reject(&upstreams(&json_of(pod)), &view, others.iter());
            // The first of upstream's is what the pod's status says.
            let expected = reasons.get(0).map(|first| match first.as_array().unwrap().as_slice() {
                [name, wanted, used, all] => {
                    let name = name.as_str().unwrap();
                    let why = format!("{name}, requested: {wanted}, used: {used}, capacity: {all}");
                    (format!("OutOf{name}"), why)
                }
                [predicate] => {
                    let predicate = predicate.as_str().unwrap();
                    (predicate.to_owned(), format!("Predicate {predicate} failed: "))
                }
                _ => panic!("{first}"),
            });
            assert_eq!(
                found.as_ref().map(|found| &found.reason),
                expected.as_ref().map(|(reason, _)| reason),
                "{case}"
            );
            assert!(found.is_none_or(|found| found.message.contains(&expected.unwrap().1)), "{case}");
        }
        assert!(seen > 12, "{seen}");
    }

    /// What lacks more than room says so, if others would be ended to make some.
    #[test]
    fn nobody_makes_room_for_a_pod_that_is_rejected_all_the_same() {
        let large = r#""resources":{"requests":{"cpu":"90"}}"#;
        for (spec, wanted) in [
            (format!(r#"{{"containers":[{{"name":"c",{large}}}],"hostUsers":false"#), "PodFeatureUnsupported"),
            (format!(r#"{{"containers":[{{"name":"c",{large}}}],"nodeName":"m""#), "NodeName"),
        ] {
            for (priority, wanted) in [(0, "OutOfcpu"), (2_000_000_000, wanted)] {
                let spec = format!(r#"{spec},"priority":{priority}}}"#);
                assert_eq!(reason(&spec, &[]).as_deref(), Some(wanted), "{spec}");
            }
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
            allocatable: Amounts {
                milli_cpu: 2000,
                memory: 1 << 30,
                ephemeral: 1 << 30,
                other: [("example.com/thing".to_owned(), 0)].into(),
            },
            max_pods: 3,
            app_armor: true,
            ..NodeView::default()
        }
    }

    fn reason(spec: &str, others: &[Reservation]) -> Option<String> {
        reject(&pod(spec), &node(), others.iter()).map(|r| r.reason)
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
        let unknown = NodeView { labels: None, ..node() };
        assert_eq!(reject(&pod(r#"{"containers":[],"nodeSelector":{"a":"b"}}"#), &unknown, [].iter()), None);
    }

    #[test]
    fn nothing_runs_unconfined_that_asks_for_app_armor() {
        let without = NodeView { app_armor: false, ..node() };
        let confined = |profile: &str| format!(r#""securityContext":{{"appArmorProfile":{profile}}}"#);
        let of_container = |profile: &str| pod(&format!(r#"{{"containers":[{{"name":"c",{}}}]}}"#, confined(profile)));
        let of_pod = |profile: &str| pod(&format!(r#"{{"containers":[{{"name":"c"}}],{}}}"#, confined(profile)));
        let local = r#"{"type":"Localhost","localhostProfile":"mine"}"#;
        for (profile, refused) in
            [(r#"{"type":"RuntimeDefault"}"#, true), (local, true), (r#"{"type":"Unconfined"}"#, false)]
        {
            for mut pod in [of_container(profile), of_pod(profile)] {
                let said = reject(&pod, &without, [].iter()).map(|r| (r.reason, r.message));
                let message = "Pod was rejected: Cannot enforce AppArmor: AppArmor is not enabled on the host";
                assert_eq!(said, refused.then(|| ("AppArmor".to_owned(), message.to_owned())), "{profile}");
                assert_eq!(reject(&pod, &node(), [].iter()), None, "{profile}: whichever profiles are loaded");
                pod.status.get_or_insert_default().phase = Some("Running".to_owned());
                assert_eq!(reject(&pod, &without, [].iter()), None, "{profile}: it runs already");
            }
        }
        let unnamed = of_container(r#"{"type":"Localhost"}"#);
        assert_eq!(reject(&unnamed, &node(), [].iter()).unwrap().reason, "AppArmor");
        // Of a static pod, whose annotations no API server converts to fields.
        for (value, refused) in [("localhost/mine", true), ("unconfined", false)] {
            let mut pod = pod(r#"{"containers":[{"name":"c"}]}"#);
            let key = "container.apparmor.security.beta.kubernetes.io/c".to_owned();
            pod.metadata.annotations = Some(BTreeMap::from([(key, value.to_owned())]));
            assert_eq!(reject(&pod, &without, [].iter()).is_some(), refused, "{value}");
        }
    }

    #[test]
    fn what_others_hold() {
        let container = |rest: &str| format!(r#"{{"containers":[{{"name":"c",{rest}}}]}}"#);
        let asks = |what: &str| container(&format!(r#""resources":{{"requests":{{{what}}}}}"#));
        let binds = |what: &str| container(&format!(r#""ports":[{{"containerPort":80,{what}}}]"#));
        let held = [
            Reservation::of(&pod(&asks(r#""cpu":"1500m","memory":"1Mi""#))),
            Reservation::of(&pod(&binds(r#""hostPort":80,"hostIP":"127.0.0.1""#))),
        ];
        for (spec, wanted) in [
            (asks(r#""cpu":"500m""#), None),
            (asks(r#""cpu":"501m""#), Some("OutOfcpu")),
            (asks(r#""memory":"1Gi""#), Some("OutOfmemory")),
            (asks(r#""ephemeral-storage":"2Gi""#), Some("OutOfephemeral-storage")),
            (asks(r#""example.com/thing":"1""#), Some("OutOfexample.com/thing")),
            (asks(r#""example.com/of-the-cluster":"1""#), None),
            (asks(r#""hugepages-1Gi":"1Gi""#), Some("OutOfhugepages-1Gi")),
            (binds(r#""hostPort":80"#), Some("NodePorts")),
            (binds(r#""hostPort":80,"hostIP":"127.0.0.2""#), None),
            (binds(r#""hostPort":80,"protocol":"UDP""#), None),
        ] {
            assert_eq!(reason(&spec, &held).as_deref(), wanted, "{spec}");
        }
        let three = vec![Reservation::of(&Pod::default()); 3];
        assert_eq!(reason(&asks(""), &three).as_deref(), Some("OutOfpods"));
        let refused = reject(&pod(&asks(r#""cpu":"3""#)), &node(), held.iter()).unwrap();
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
        assert_eq!(reject(&pod, &node, [].iter()).unwrap().reason, "TaintToleration");
        let source = BTreeMap::from([(spec::CONFIG_SOURCE_ANNOTATION.to_owned(), "file".to_owned())]);
        pod.metadata.annotations = Some(source);
        assert_eq!(reject(&pod, &node, [].iter()), None);
    }
}
