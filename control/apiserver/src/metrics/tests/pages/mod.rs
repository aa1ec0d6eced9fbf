//! Pages of nodes: `kubelet-*.txt` are two that kubelet 1.36's own collector (`pkg/kubelet/metrics/collectors`) has
//! written, fifteen seconds apart; ours is the golden file of the crate that writes it.

use jiff::Timestamp;

use super::super::{
    Reading, SampledAt,
    resource_page::{ContainerName, read},
};

pub(crate) const KUBELET: [&str; 2] = [include_str!("kubelet-0.txt"), include_str!("kubelet-1.txt")];
const OURS: &str = include_str!("../../../../../../cadvisor/tests/golden/v2.resource.txt");

fn name(namespace: &str, pod: &str, name: &str) -> ContainerName {
    ContainerName { namespace: namespace.into(), pod: pod.into(), name: name.into() }
}

fn there(milliseconds: i64, cpu_ns: u64, memory_bytes: u64) -> Reading {
    Reading { at: SampledAt::There(Timestamp::from_millisecond(milliseconds).unwrap()), cpu_ns, memory_bytes }
}

#[test]
fn a_kubelet_s_page_is_read() {
    let page = read(KUBELET[1], Timestamp::UNIX_EPOCH);
    assert_eq!(page.machine, Some(there(1_770_000_015_000, 7_678_321_123_456, 1_834_590_208)));
    assert_eq!(page.containers.len(), 8);
    let web = page.containers[&name("n", "web-3", "c")];
    assert_eq!(web.reading, there(1_770_000_015_021, 15_000_000_051, 12_304_384));
    // As exact as a float of this size is.
    let start: Timestamp = "2026-02-01T08:30:03.123456789Z".parse().unwrap();
    assert!(web.started.unwrap().duration_since(start).unsigned_abs().as_micros() < 1, "{:?}", web.started);
}

#[test]
fn our_own_page_is_read() {
    let page = read(OURS, Timestamp::UNIX_EPOCH);
    assert!(page.machine.is_some_and(|machine| machine.cpu_ns > 0 && machine.memory_bytes > 1 << 20), "{page:?}");
    assert!(!page.containers.is_empty());
    for (name, container) in &page.containers {
        assert!(container.started.is_some() && container.reading.cpu_ns > 0, "{name:?}");
        assert!(matches!(container.reading.at, SampledAt::There(at) if at > Timestamp::UNIX_EPOCH), "{name:?}");
    }
}

#[test]
fn what_is_no_sample_is_skipped() {
    let asked_at = Timestamp::from_second(7).unwrap();
    let page = "# TYPE node_cpu_usage_seconds_total counter
node_cpu_usage_seconds_total 1.5e+00
node_memory_working_set_bytes{} 4096
node_cpu_usage_seconds_total_more 9
container_cpu_usage_seconds_total{ pod=\"a\\\"b\\\\\" , namespace=\"n\",container=\"c\",} 2 3000
container_memory_working_set_bytes{container=\"c\",namespace=\"n\",pod=\"a\\\"b\\\\\"} 8192 3000
container_memory_working_set_bytes{container=\"idle\",namespace=\"n\",pod=\"p\"} NaN
container_cpu_usage_seconds_total{container=\"c\",pod=\"without namespace\"} 1
container_cpu_usage_seconds_total{container=\"c\",namespace=\"n\",pod=\"broken} 1
container_cpu_usage_seconds_total{container=\"c\",namespace=\"n\",pod=\"x\"}
pod_cpu_usage_seconds_total{namespace=\"n\",pod=\"p\"} 12
";
    let page = read(page, asked_at);
    assert_eq!(page.machine, Some(there(7_000, 1_500_000_000, 4096)), "without a time it is that of the request");
    let found: Vec<_> = page.containers.iter().map(|(name, of)| (&*name.pod, &*name.name, of.reading)).collect();
    assert_eq!(
        found,
        [("a\"b\\", "c", there(3_000, 2_000_000_000, 8192)), ("p", "idle", there(7_000, 0, 0))],
        "one that is not told is 0, which hides its pod"
    );
    assert_eq!(read("node_cpu_usage_seconds_total 5\n", asked_at).machine, None);
    assert_eq!(read("<html>not found</html>", asked_at), Default::default());
}
