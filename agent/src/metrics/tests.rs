use super::*;

#[test]
fn image_size_labels() {
    assert_eq!(image_size_label(0), "0-10MB");
    assert_eq!(image_size_label(10 << 20), "0-10MB");
    assert_eq!(image_size_label((10 << 20) + 1), "10MB-100MB");
    assert_eq!(image_size_label(21 << 30), "GT20GB");
}

#[test]
fn a_write_that_leaves_the_version_as_it_was_is_empty() {
    let metrics = Metrics::default();
    for (before, after) in [(None, Some("1")), (Some("1"), Some("2")), (None, None)] {
        metrics.record_write(WriteKind::Lease, "n", before, after);
    }
    metrics.record_write(WriteKind::NodeStatus, "n", Some("2"), Some("2"));
    let mut page = Text::new();
    metrics.write(&mut page);
    let page = page.finish();
    let counted: Vec<&str> = page.lines().filter(|l| l.starts_with("windlass_empty_writes_total{")).collect();
    assert_eq!(counted, [r#"windlass_empty_writes_total{kind="node_status"} 1"#]);
}

#[test]
fn families_are_upstreams() {
    let metrics = Metrics::default();
    for counter in [
        &metrics.operations,
        &metrics.operation_errors,
        &metrics.sandbox_errors,
        &metrics.started_containers,
        &metrics.evictions,
        &metrics.preemptions,
        &metrics.rejections,
        &metrics.images_collected,
        &metrics.infeasible_resizes,
        &metrics.streams,
    ] {
        counter.add(["x"]);
    }
    metrics.started_container_errors.add(["x", "x"]);
    metrics.terminated_containers.add(["x", "x", "x"]);
    metrics.requests.add(["x"; 4]);
    metrics.requests_in_flight.add(["x"; 4], 1);
    for histogram in [
        &metrics.operation_seconds,
        &metrics.sandbox_seconds,
        &metrics.worker_seconds,
        &metrics.cgroup_seconds,
        &metrics.pulls,
    ] {
        histogram.observe(["x"], 0.0);
    }
    for histogram in [&metrics.storage_seconds, &metrics.request_seconds] {
        histogram.observe(["x"; 4], 0.0);
    }
    let mut page = Text::new();
    metrics.write(&mut page);
    assert_eq!(windlass_tests::metrics_table::unlike("node", &page.finish()), [""; 0]);
}

#[test]
fn every_family_is_written_once() {
    let mut page = Text::new();
    Metrics::default().write(&mut page);
    let page = page.finish();
    let mut names: Vec<&str> = page.lines().filter_map(|l| l.strip_prefix("# TYPE ")).collect();
    let all = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), all);
    assert_eq!(all, page.matches("# HELP ").count());
}
