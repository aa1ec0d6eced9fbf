use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::{
    api::{
        core::v1::{ContainerPort, PodCondition, PodIP, Service, ServicePort, ServiceSpec},
        discovery::v1::EndpointSlice,
    },
    apimachinery::pkg::{apis::meta::v1::Time, util::intstr::IntOrString},
};

use super::{legacy, model, slices};
use crate::runtime::cached_pod::{CachedContainer, CachedPod, CachedPodSpec, CachedPodStatus};

fn labels() -> BTreeMap<String, String> {
    BTreeMap::from([("app".to_owned(), "web".to_owned())])
}

fn service() -> Service {
    let mut service = Service::default();
    service.metadata.name = Some("web".into());
    service.metadata.namespace = Some("default".into());
    service.metadata.uid = Some("svc-uid".into());
    service.metadata.labels = Some(BTreeMap::from([("team".to_owned(), "blue".to_owned())]));
    service.spec = Some(ServiceSpec {
        selector: Some(labels()),
        cluster_ip: Some("10.96.0.7".into()),
        ports: Some(vec![ServicePort {
            name: Some("http".into()),
            port: 80,
            target_port: Some(IntOrString::String("www".into())),
            ..ServicePort::default()
        }]),
        ..ServiceSpec::default()
    });
    service
}

fn pod(name: &str, ip: &str, ready: bool, www: i32) -> CachedPod {
    let mut pod = CachedPod::default();
    pod.metadata.name = Some(name.into());
    pod.metadata.namespace = Some("default".into());
    pod.metadata.uid = Some(format!("uid-{name}"));
    pod.metadata.labels = Some(labels());
    let port = ContainerPort { name: Some("www".into()), container_port: www, ..ContainerPort::default() };
    pod.spec = Some(CachedPodSpec {
        node_name: Some("n1".into()),
        containers: vec![CachedContainer { ports: Some(vec![port]), ..CachedContainer::default() }],
        ..CachedPodSpec::default()
    });
    pod.status = Some(CachedPodStatus {
        phase: Some("Running".into()),
        pod_ips: (!ip.is_empty()).then(|| vec![PodIP { ip: ip.into() }]),
        conditions: Some(vec![PodCondition {
            type_: "Ready".into(),
            status: if ready { "True" } else { "False" }.into(),
            ..PodCondition::default()
        }]),
        ..CachedPodStatus::default()
    });
    pod
}

fn many(count: usize) -> Vec<Arc<CachedPod>> {
    (0..count)
        .map(|i| Arc::new(pod(&format!("p{i:04}"), &format!("10.244.{}.{}", i / 250, i % 250 + 1), true, 8080)))
        .collect()
}

fn groups(service: &Service, pods: &[Arc<CachedPod>]) -> model::Groups {
    model::desired(service, pods, |_| None)
}

/// Applies a plan as the API would.
fn apply(existing: &[Arc<EndpointSlice>], plan: slices::Plan, serial: &mut u32) -> Vec<Arc<EndpointSlice>> {
    let gone: Vec<_> = plan.delete.iter().map(|s| s.metadata.name.clone()).collect();
    let mut by_name: BTreeMap<_, _> =
        existing.iter().map(|s| (s.metadata.name.clone(), Arc::clone(s))).filter(|(n, _)| !gone.contains(n)).collect();
    for slice in plan.update {
        by_name.insert(slice.metadata.name.clone(), Arc::new(slice));
    }
    for mut slice in plan.create {
        *serial += 1;
        slice.metadata.name = Some(format!("web-{serial:05}"));
        by_name.insert(slice.metadata.name.clone(), Arc::new(slice));
    }
    by_name.into_values().collect()
}

fn sizes(slices: &[Arc<EndpointSlice>]) -> Vec<usize> {
    let mut sizes: Vec<usize> = slices.iter().map(|s| s.endpoints.as_ref().map_or(0, Vec::len)).collect();
    sizes.sort_unstable();
    sizes
}

#[test]
fn conditions_follow_the_pod() {
    let terminating = |mut pod: CachedPod| {
        pod.metadata.deletion_timestamp = Some(Time(jiff::Timestamp::UNIX_EPOCH));
        pod
    };
    // pod, publishNotReadyAddresses → ready, serving, terminating
    for (pod, publish, expected) in [
        (pod("a", "10.0.0.1", true, 1), false, (true, true, false)),
        (pod("a", "10.0.0.1", false, 1), false, (false, false, false)),
        (pod("a", "10.0.0.1", false, 1), true, (true, false, false)),
        (terminating(pod("a", "10.0.0.1", true, 1)), false, (false, true, true)),
        (terminating(pod("a", "10.0.0.1", false, 1)), false, (false, false, true)),
        (terminating(pod("a", "10.0.0.1", true, 1)), true, (true, true, true)),
    ] {
        let mut service = service();
        service.spec.as_mut().unwrap().publish_not_ready_addresses = Some(publish);
        let groups = groups(&service, &[Arc::new(pod)]);
        let conditions = groups.values().next().unwrap()[0].conditions.clone().unwrap();
        assert_eq!((conditions.ready, conditions.serving, conditions.terminating), {
            let (a, b, c) = expected;
            (Some(a), Some(b), Some(c))
        });
    }
}

#[test]
fn only_pods_that_can_serve_are_endpoints() {
    let mut failed = pod("failed", "10.0.0.2", false, 1);
    failed.status.as_mut().unwrap().phase = Some("Failed".into());
    let mut other = pod("other", "10.0.0.3", true, 1);
    other.metadata.labels = None;
    let pods = [pod("no-ip", "", true, 1), failed, other, pod("v6", "fd00::1", true, 1)].map(Arc::new);
    assert!(groups(&service(), &pods).is_empty());
}

#[test]
fn named_ports_are_resolved_per_pod() {
    let mut unnamed = pod("c", "10.0.0.3", true, 7);
    unnamed.spec.as_mut().unwrap().containers[0].ports = None;
    let pods = [pod("a", "10.0.0.1", true, 8080), pod("b", "10.0.0.2", true, 9090), unnamed].map(Arc::new);
    let groups = groups(&service(), &pods);
    let ports: Vec<Vec<i32>> = groups.keys().map(|(_, ports)| ports.iter().map(|p| p.port).collect()).collect();
    assert_eq!(ports, [vec![], vec![8080], vec![9090]]);
}

#[test]
fn dual_stack_makes_a_slice_per_family() {
    let mut service = service();
    service.spec.as_mut().unwrap().ip_families = Some(vec!["IPv4".into(), "IPv6".into()]);
    let mut pod = pod("a", "10.0.0.1", true, 80);
    pod.status.as_mut().unwrap().pod_ips.as_mut().unwrap().push(PodIP { ip: "fd00::1".into() });
    let plan = slices::reconcile(&service, groups(&service, &[Arc::new(pod)]), &[]);
    let types: Vec<&str> = plan.create.iter().map(|s| s.address_type.as_str()).collect();
    assert_eq!(types, ["IPv4", "IPv6"]);
}

#[test]
fn slices_are_packed_and_unchanged_ones_are_not_written() {
    let (service, mut serial) = (service(), 0);
    let mut state = apply(&[], slices::reconcile(&service, groups(&service, &[]), &[]), &mut serial);
    assert_eq!(sizes(&state), [0], "a placeholder");
    assert_eq!(state[0].metadata.generate_name.as_deref(), Some("web-"));

    let pods = many(250);
    state = apply(&state, slices::reconcile(&service, groups(&service, &pods), &state), &mut serial);
    assert_eq!(sizes(&state), [50, 100, 100]);
    assert!(slices::reconcile(&service, groups(&service, &pods), &state).is_empty(), "no write without change");

    // One more pod is added to a slice with room; nothing else is written.
    let plan = slices::reconcile(&service, groups(&service, &many(251)), &state);
    assert_eq!((plan.create.len(), plan.update.len(), plan.delete.len()), (0, 1, 0));
    state = apply(&state, plan, &mut serial);
    assert_eq!(sizes(&state), [51, 100, 100]);

    // One pod less touches one slice.
    let plan = slices::reconcile(&service, groups(&service, &many(251)[1..]), &state);
    assert_eq!((plan.create.len(), plan.update.len(), plan.delete.len()), (0, 1, 0));

    // All gone: one empty slice is left.
    state = apply(&state, slices::reconcile(&service, groups(&service, &[]), &state), &mut serial);
    assert_eq!(sizes(&state), [0]);
}

#[test]
fn labels_are_copied_and_headless_is_marked() {
    let mut service = service();
    let plan = slices::reconcile(&service, groups(&service, &many(1)), &[]);
    let labels = plan.create[0].metadata.labels.clone().unwrap();
    assert_eq!(labels["team"], "blue");
    assert_eq!(labels[slices::SERVICE_NAME], "web");
    assert_eq!(labels[slices::MANAGED_BY], slices::MANAGER);
    let state = apply(&[], plan, &mut 0);

    service.spec.as_mut().unwrap().cluster_ip = Some("None".into());
    let plan = slices::reconcile(&service, groups(&service, &many(1)), &state);
    assert_eq!(plan.update[0].metadata.labels.as_ref().unwrap()[slices::HEADLESS], "");
}

#[test]
fn endpoints_object_mirrors_readiness_and_is_not_rewritten() {
    let service = service();
    let mut going = pod("c", "10.0.0.3", true, 80);
    going.metadata.deletion_timestamp = Some(Time(jiff::Timestamp::UNIX_EPOCH));
    let pods = [pod("a", "10.0.0.2", true, 80), pod("b", "10.0.0.1", false, 80), going].map(Arc::new);
    let groups = groups(&service, &pods);
    let object = legacy::reconcile(&service, &groups, None).unwrap();
    let subsets = object.subsets.clone().unwrap();
    assert_eq!(subsets.len(), 1);
    assert_eq!(subsets[0].addresses.as_ref().unwrap()[0].ip, "10.0.0.2");
    assert_eq!(subsets[0].not_ready_addresses.as_ref().unwrap().len(), 1);
    assert_eq!(subsets[0].ports.as_ref().unwrap()[0].port, 80);
    assert!(legacy::reconcile(&service, &groups, Some(&object)).is_none());
}

#[test]
fn endpoints_object_is_cut_at_a_thousand() {
    let service = service();
    let object = legacy::reconcile(&service, &groups(&service, &many(1_200)), None).unwrap();
    assert_eq!(object.subsets.unwrap()[0].addresses.as_ref().unwrap().len(), legacy::MAX_ADDRESSES);
    assert_eq!(object.metadata.annotations.unwrap()["endpoints.kubernetes.io/over-capacity"], "truncated");
}

#[test]
fn irrelevant_pod_changes_enqueue_nothing() {
    let old = pod("a", "10.0.0.1", true, 80);
    let mut new = old.clone();
    new.metadata.resource_version = Some("9".into());
    assert!(!model::matters(Some(&old), Some(&new)));
    assert!(model::matters(Some(&old), Some(&pod("a", "10.0.0.1", false, 80))));
    assert!(!model::matters(None, Some(&pod("a", "", false, 80))));
}

#[test]
fn hints_follow_the_traffic_distribution() {
    let pods = [Arc::new(pod("a", "10.0.0.1", true, 1))];
    let hints = |distribution: Option<&str>, zone: Option<&str>| {
        let mut service = service();
        service.spec.as_mut().unwrap().traffic_distribution = distribution.map(str::to_owned);
        let groups = model::desired(&service, &pods, |_| zone.map(str::to_owned));
        serde_json::json!(groups.values().next().unwrap()[0].hints)
    };
    let (zones, nodes) = (serde_json::json!([{"name": "z"}]), serde_json::json!([{"name": "n1"}]));
    for (distribution, zone, expected) in [
        (None, Some("z"), serde_json::json!(null)),
        (Some("Other"), Some("z"), serde_json::json!(null)),
        (Some("PreferClose"), Some("z"), serde_json::json!({"forZones": zones})),
        (Some("PreferSameZone"), Some("z"), serde_json::json!({"forZones": zones})),
        (Some("PreferSameZone"), None, serde_json::json!(null)),
        (Some("PreferSameNode"), Some("z"), serde_json::json!({"forZones": zones, "forNodes": nodes})),
        (Some("PreferSameNode"), None, serde_json::json!({"forNodes": nodes})),
    ] {
        assert_eq!(hints(distribution, zone), expected, "{distribution:?} in {zone:?}");
    }
}

#[test]
fn slices_are_rewritten_and_keep_their_names() {
    let service = service();
    let state = apply(&[], slices::reconcile(&service, groups(&service, &many(3)), &[]), &mut 0);
    let name = state[0].metadata.name.clone();
    // Other pods, another port, none at all, and some again.
    let other: Vec<_> = many(6).split_off(3);
    let moved = vec![Arc::new(pod("m", "10.0.0.9", true, 9090))];
    let mut state = state;
    for pods in [other, moved, Vec::new(), many(2)] {
        let plan = slices::reconcile(&service, groups(&service, &pods), &state);
        assert_eq!((plan.create.len(), plan.update.len(), plan.delete.len()), (0, 1, 0), "{} pods", pods.len());
        state = apply(&state, plan, &mut 1);
        assert_eq!((state.len(), &state[0].metadata.name), (1, &name));
        assert_eq!(sizes(&state), [pods.len()]);
    }
    // What is left of a service of the same name is not this one's.
    let mut again = service.clone();
    again.metadata.uid = Some("another".into());
    let plan = slices::reconcile(&again, groups(&again, &many(2)), &state);
    assert_eq!((plan.create.len(), plan.update.len(), plan.delete.len()), (1, 0, 1));
}

#[test]
fn what_a_plan_comes_to_is_counted() {
    let service = service();
    let plan = slices::reconcile(&service, groups(&service, &many(250)), &[]);
    let sums = slices::Sums { added: 250, removed: 0, endpoints: 250, slices: 3, fewest_slices: 3 };
    assert_eq!(plan.sums, sums);
    let state = apply(&[], plan, &mut 0);
    let plan = slices::reconcile(&service, groups(&service, &many(251)[4..]), &state);
    let sums = slices::Sums { added: 1, removed: 4, endpoints: 247, slices: 3, fewest_slices: 3 };
    assert_eq!(plan.sums, sums);
    let plan = slices::reconcile(&service, groups(&service, &[]), &[]);
    assert_eq!((plan.sums.endpoints, plan.sums.slices, plan.sums.fewest_slices), (0, 1, 1), "a placeholder");
}

#[test]
fn pods_wait_until_their_node_is_known() {
    let mut service = service();
    let mut elsewhere = pod("b", "10.0.0.2", true, 80);
    elsewhere.spec.as_mut().unwrap().node_name = Some("n2".into());
    let pods = [pod("a", "10.0.0.1", true, 80), elsewhere, pod("no-ip", "", true, 80)].map(Arc::new);
    let parted = |service: &Service| {
        let (known, unknown) = model::on_known_nodes(service, &pods, |node| node == "n1");
        let names =
            |pods: Vec<Arc<CachedPod>>| pods.iter().map(|p| p.metadata.name.clone().unwrap()).collect::<Vec<_>>();
        (names(known), names(unknown))
    };
    let all = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    assert_eq!(parted(&service), (all(&["a", "no-ip"]), all(&["b"])));
    service.spec.as_mut().unwrap().publish_not_ready_addresses = Some(true);
    assert_eq!(parted(&service), (all(&["a", "b", "no-ip"]), all(&[])));
}
