use windlass_fixtures::facts::{json_of, rows};

use super::*;

const SYSTEM_PRIORITY: i32 = 2_000_000_000;

use crate::node::eviction::thresholds::Amount;

/// A pod of one container with these requests, and a priority.
fn pod(name: &str, priority: i32, requests: &str) -> Pod {
    serde_json::from_str(&format!(
        r#"{{"metadata":{{"name":"{name}"}},"spec":{{"priority":{priority},
            "containers":[{{"name":"c","resources":{{"requests":{requests}}}}}]}}}}"#
    ))
    .unwrap()
}

fn uses(used: ContainerStats) -> PodStats {
    PodStats { containers: [("c".to_owned(), used)].into(), ..PodStats::default() }
}

fn memory(bytes: u64) -> PodStats {
    uses(ContainerStats { memory: Some(bytes), ..ContainerStats::default() })
}

fn order(signal: Signal, all: &[(Pod, PodStats)]) -> Vec<String> {
    let candidates = all.iter().map(|(pod, usage)| Candidate { pod, usage });
    rank(signal, candidates).into_iter().map(|c| c.pod.metadata.name.clone().unwrap()).collect()
}

#[test]
fn what_a_container_left_to_its_pod_counts() {
    let left = PodStats { memory: Some(4 << 30), ..memory(10 << 20) };
    let all = [
        (pod("innocent", 0, r#"{"memory":"64Mi"}"#), memory(70 << 20)),
        (pod("filled-shm", 0, r#"{"memory":"64Mi"}"#), left),
    ];
    assert_eq!(order(Signal::Memory, &all), ["filled-shm", "innocent"]);
}

#[test]
fn memory_ranks_by_excess_then_priority_then_amount() {
    let all = [
        (pod("within", 0, r#"{"memory":"1000"}"#), memory(900)),
        (pod("within-much-less", 0, r#"{"memory":"1000"}"#), memory(10)),
        (pod("above-a-little", 0, r#"{"memory":"100"}"#), memory(150)),
        (pod("above-a-lot", 0, "{}"), memory(800)),
        (pod("above-but-dear", 10, "{}"), memory(5000)),
        (pod("within-but-cheap", -5, r#"{"memory":"1000"}"#), memory(1)),
    ];
    assert_eq!(
        order(Signal::Memory, &all),
        ["above-a-lot", "above-a-little", "above-but-dear", "within-but-cheap", "within", "within-much-less"]
    );
}

#[test]
fn pods_without_stats_rank_first() {
    let all = [(pod("known", 0, "{}"), memory(1)), (pod("unknown", 5, "{}"), PodStats::default())];
    assert_eq!(order(Signal::Memory, &all), ["unknown", "known"]);
}

#[test]
fn disk_counts_layers_logs_empty_dirs_and_messages() {
    let disk = |bytes, volume| PodStats {
        empty_dirs: [("v".to_owned(), volume)].into(),
        ..uses(ContainerStats { disk: Some(bytes), inodes: Some(1), ..ContainerStats::default() })
    };
    let all = [
        (pod("layer", 0, "{}"), disk(100, 0)),
        (pod("volume", 0, "{}"), disk(10, 200)),
        (pod("message", 0, "{}"), PodStats { node_files: 300, ..disk(10, 0) }),
        (pod("promised", 0, r#"{"ephemeral-storage":"1Gi"}"#), disk(1 << 20, 0)),
    ];
    assert_eq!(order(Signal::NodeFs, &all), ["message", "volume", "layer", "promised"]);
}

#[test]
fn inodes_and_processes_have_no_requests() {
    let with = |inodes, processes| {
        uses(ContainerStats { inodes: Some(inodes), processes: Some(processes), ..ContainerStats::default() })
    };
    let all = [
        (pod("few", 0, r#"{"memory":"1Gi"}"#), with(10, 3)),
        (pod("many", 0, "{}"), with(99, 2)),
        (pod("dear", 7, "{}"), with(999, 999)),
    ];
    assert_eq!(order(Signal::NodeFsInodes, &all), ["many", "few", "dear"]);
    assert_eq!(order(Signal::Pid, &all), ["few", "many", "dear"]);
}

#[test]
fn critical_pods_are_not_ranked() {
    let annotated = |name: &str, key: &str, value: &str| {
        let mut pod = pod(name, 0, "{}");
        pod.metadata.annotations = Some([(key.to_owned(), value.to_owned())].into());
        (pod, memory(1 << 30))
    };
    let all = [
        annotated("static", "kubernetes.io/config.source", "file"),
        annotated("mirror", "kubernetes.io/config.mirror", "hash"),
        (pod("system", SYSTEM_PRIORITY, "{}"), memory(1 << 30)),
        annotated("of-the-api", "kubernetes.io/config.source", "api"),
        (pod("user", SYSTEM_PRIORITY - 1, "{}"), memory(1)),
    ];
    assert_eq!(order(Signal::Memory, &all), ["of-the-api", "user"]);
}

#[test]
fn init_containers_count_as_the_scheduler_counts_them() {
    let pod: Pod = serde_json::from_str(
        r#"{"spec":{"overhead":{"memory":"1"},
            "initContainers":[{"name":"i","resources":{"requests":{"memory":"50"}}},
                              {"name":"s","restartPolicy":"Always","resources":{"requests":{"memory":"20"}}}],
            "containers":[{"name":"a","resources":{"requests":{"memory":"10"}}},
                          {"name":"b","resources":{"requests":{"memory":"15"}}}]}}"#,
    )
    .unwrap();
    assert_eq!(pod_request(&pod, "memory"), 51);
}

#[test]
fn eviction_messages_are_upstreams() {
    let threshold =
        Threshold { signal: Signal::Memory, amount: Amount::Of(100 << 20), soft: None, reclaim: Amount::Of(0) };
    let seen = Observation { available: 80 << 20, capacity: 4 << 30 };
    let (pod, usage) = (pod("p", 0, "{}"), memory(1 << 30));
    let (message, annotations) = eviction_message(&threshold, seen, Candidate { pod: &pod, usage: &usage });
    assert_eq!(
        message,
        "The node was low on resource: memory. Threshold quantity: 100Mi, available: 80Mi. \
         Container c was using 1Gi, request is 0, has larger consumption of memory. "
    );
    let get = |key: &str| annotations[key].as_str();
    assert_eq!(
        (get("offending_containers"), get("offending_containers_usage"), get("starved_resource")),
        ("c", "1Gi", "memory")
    );
    let pids = Threshold { signal: Signal::Pid, amount: Amount::Percent(10.0), ..threshold };
    let (message, annotations) =
        eviction_message(&pids, Observation { available: 9, capacity: 1000 }, Candidate { pod: &pod, usage: &usage });
    assert_eq!(message, "The node was low on resource: pids. Threshold quantity: 100, available: 9. ");
    assert_eq!(annotations["offending_containers"], "");
}

#[test]
fn local_storage_limits() {
    let pod: Pod = serde_json::from_str(
        r#"{"spec":{"volumes":[{"name":"v","emptyDir":{"sizeLimit":"1Gi"}},{"name":"free","emptyDir":{}}],
            "containers":[{"name":"a","resources":{"limits":{"ephemeral-storage":"1Gi"}}},
                          {"name":"b","resources":{"limits":{"ephemeral-storage":"1Gi"}}},{"name":"c"}]}}"#,
    )
    .unwrap();
    let gib = 1 << 30;
    let usage = |containers: &[(&str, u64)], volumes: &[(&str, u64)]| PodStats {
        containers: containers
            .iter()
            .map(|(name, disk)| ((*name).to_owned(), ContainerStats { disk: Some(*disk), ..ContainerStats::default() }))
            .collect(),
        empty_dirs: volumes.iter().map(|(name, bytes)| ((*name).to_owned(), *bytes)).collect(),
        empty_dir_inodes: 0,
        ..PodStats::default()
    };
    for (containers, volumes, said) in [
        (&[("a", gib), ("c", gib)][..], &[][..], None),
        (&[("a", 1)], &[("v", gib + 1)], Some("Usage of EmptyDir volume \"v\" exceeds the limit \"1Gi\". ")),
        (&[("a", gib + 1)], &[], Some("Container a exceeded its local ephemeral storage limit \"1Gi\". ")),
        (
            &[("c", gib + 1)],
            &[("free", gib)],
            Some("Pod ephemeral local storage usage exceeds the total limit of containers 2Gi. "),
        ),
        (&[], &[("free", 9 * gib)], None),
    ] {
        let found = exceeded_limit(&pod, &usage(containers, volumes)).map(|(_, why)| why);
        assert_eq!(found.as_deref(), said, "{containers:?} {volumes:?}");
    }
}

static RANKS: &str = include_str!("../../../../../facts/eviction_ranks.tsv");

fn units(value: &serde_json::Value) -> u64 {
    let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    u64::try_from(text.parse::<Quantity>().unwrap().units()).unwrap()
}

#[test]
fn pods_are_ranked_as_upstreams_tests_say() {
    let mut seen = 0;
    for row in rows(RANKS) {
        let listed = json_of(row[2]);
        let mut pods: Vec<(Pod, PodStats)> = Vec::new();
        for one in listed.as_array().unwrap() {
            let used: Vec<u64> = one[3].as_array().unwrap().iter().map(units).collect();
            let (first, second) = (used[0], used.get(1).copied().unwrap_or(0));
            let none = ContainerStats::default();
            let (of_container, of_volumes) = match row[1] {
                "memory" => (ContainerStats { memory: Some(first), ..none }, None),
                "pids" => (ContainerStats { processes: Some(first), ..none }, None),
                "inodes" => (ContainerStats { inodes: Some(first + second), ..none }, used.get(2)),
                _ => (ContainerStats { disk: Some(first + second), ..none }, used.get(2)),
            };
            let mut usage = uses(of_container);
            match (row[1], of_volumes) {
                ("inodes", Some(inodes)) => usage.empty_dir_inodes = *inodes,
                (_, Some(bytes)) => drop(usage.empty_dirs.insert("local-volume".into(), *bytes)),
                _ => {}
            }
            let priority = i32::try_from(one[1].as_i64().unwrap()).unwrap();
            pods.push((pod(one[0].as_str().unwrap(), priority, &one[2].to_string()), usage));
        }
        let expected: Vec<String> = pods.iter().map(|(pod, _)| pod.metadata.name.clone().unwrap()).collect();
        pods.reverse();
        let signal = match row[1] {
            "memory" => Signal::Memory,
            "pids" => Signal::Pid,
            "inodes" => Signal::NodeFsInodes,
            _ => Signal::NodeFs,
        };
        assert_eq!(order(signal, &pods), expected, "{}", row[0]);
        seen += 1;
    }
    assert_eq!(seen, 9);
}
