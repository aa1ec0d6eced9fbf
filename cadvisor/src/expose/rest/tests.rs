//! The REST API over a recorded tree.

use super::*;
use crate::{
    expose::tests::{at, view},
    parse::oom::Kill,
    source::tests::{CONTAINER, Tree},
};

fn get_with(path: &str, query: &str, body: &str, events: &[Event]) -> Result<Value, RestError> {
    let view = view(Tree::V2);
    let point = |second: i64| Point {
        at_ms: at(second).as_millisecond(),
        mono_ns: u64::try_from(second + 1000).unwrap() * 1_000_000_000,
        cpu_ns: u64::try_from(second + 1000).unwrap() * 250_000_000,
        usage_bytes: 9,
        working_set_bytes: 7,
        ..Point::default()
    };
    let past: Vec<Point> = (-90..=0).step_by(10).map(point).collect();
    let request = Request::read(path, query, body.as_bytes())?;
    let pasts = request.history_ids(&view)?.into_iter().map(|id| (id, past.clone())).collect();
    request.answer(&view, &pasts, events)
}

fn get(path: &str, query: &str) -> Result<Value, RestError> {
    get_with(path, query, "", &[])
}

fn cgroup() -> String {
    let view = view(Tree::V2);
    view.snapshot.rows[1].cgroup.to_string()
}

#[test]
fn machine_and_attributes() {
    for path in ["/api/v1.0/machine", "/api/v1.3/machine", "/api/v2.1/machine"] {
        let machine = get(path, "").unwrap();
        assert_eq!(
            (machine["num_cores"].as_u64(), machine["filesystems"][0]["capacity"].as_u64()),
            (Some(2), Some(100 << 30))
        );
        assert!(machine["memory_capacity"].as_u64().is_some_and(|bytes| bytes > 1 << 30));
    }
    let attributes = get("/api/v2.1/attributes", "").unwrap();
    assert!(attributes["kernel_version"].as_str().is_some_and(|v| v.split('.').count() >= 3), "{attributes}");
    assert_eq!(get("/api/v2.0/storage/", "label=docker-images").unwrap()[0]["available"], 40_u64 << 30);
    let stats = get("/api/v2.1/machinestats", "count=1").unwrap();
    assert_eq!(stats.as_array().map(Vec::len), Some(1));
    assert!(
        stats[0]["cpu"]["usage"]["total"].as_u64().is_some_and(|ns| ns > 0) && stats[0]["filesystem"][0].is_object()
    );
}

#[test]
fn containers_are_found_by_path_name_and_beginning_of_the_id() {
    let path = cgroup();
    let one = get_with(&format!("/api/v1.3/containers{path}"), "", r#"{"num_stats":1}"#, &[]).unwrap();
    assert_eq!((one["name"].as_str(), one["stats"].as_array().map(Vec::len)), (Some(path.as_str()), Some(1)));
    assert_eq!(one["aliases"][1], CONTAINER);
    assert_eq!(one["spec"]["memory"]["limit"], 83_886_080);
    assert_eq!(one["stats"][0]["memory"]["working_set"], 5_832_704 - 5_242_880);
    let many = get(&format!("/api/v1.3/containers{path}"), "").unwrap();
    let stats = many["stats"].as_array().unwrap();
    assert_eq!((stats.len(), stats[0]["memory"]["usage"].as_u64()), (10, Some(9)));
    for name in [&CONTAINER[..12], one["aliases"][0].as_str().unwrap()] {
        let found = get(&format!("/api/v1.3/docker/{name}"), "").unwrap();
        assert_eq!(found.as_object().unwrap().keys().collect::<Vec<_>>(), [&path]);
        let found = get(&format!("/api/v2.1/stats/{name}"), "type=docker&count=2").unwrap();
        assert_eq!(found[&path]["stats"].as_array().map(Vec::len), Some(2));
        assert_eq!(found[&path]["spec"]["labels"]["io.kubernetes.pod.name"], "web");
        assert!(found[&path]["spec"]["cpu"]["quota"].is_null());
        assert_eq!(found[&path]["stats"][1]["cpu_inst"]["usage"]["total"], 499_000_000);
        assert_eq!(found[&path]["stats"][1]["filesystem"]["containter_inode_usage"], 7);
    }
    assert_eq!(get("/api/v1.3/docker", "").unwrap().as_object().map(Map::len), Some(2));
    let all = get("/api/v1.1/subcontainers/", "").unwrap();
    let names: Vec<&str> = all.as_array().unwrap().iter().filter_map(|c| c["name"].as_str()).collect();
    assert!(names.contains(&"/") && names.contains(&path.as_str()), "{names:?}");
    assert_eq!(all[0]["subcontainers"][0]["name"], "/kubepods.slice");
    let root = get("/api/v2.1/stats/", "recursive=true").unwrap();
    assert!(root.get("/").is_none() && root.get(&path).is_some(), "the machine has a page of its own");
    assert!(get("/api/v2.0/stats/", "").unwrap()["/"].is_array());
    assert_eq!(get(&format!("/api/v2.1/spec{path}"), "").unwrap()[&path]["image"], "busybox:1");
}

#[test]
fn usage_of_the_past_is_summed_up() {
    let path = cgroup();
    let found = get(&format!("/api/v2.1/summary{path}"), "").unwrap();
    let (minute, hour) = (&found[&path]["minute_usage"], &found[&path]["hour_usage"]);
    assert_eq!((minute["percent_complete"].as_u64(), hour["percent_complete"].as_u64()), (Some(100), Some(2)));
    assert_eq!((minute["cpu"]["mean"].as_u64(), minute["cpu"]["count"].as_u64()), (Some(250), Some(6)));
    assert_eq!((hour["memory"]["ninetyfive"].as_u64(), hour["memory"]["std"].as_u64()), (Some(7), Some(0)));
    assert_eq!(found[&path]["latest_usage"]["cpu"], 250);
}

#[test]
fn events_are_filtered() {
    let event = |second, cgroup: &str, kind| Event { at: at(second), cgroup: cgroup.to_owned(), kind, container: None };
    let kill = Kill {
        limited: "/docker/a".into(),
        pid: 9,
        name: "dd".into(),
        constraint: "CONSTRAINT_MEMCG".into(),
        ..Kill::default()
    };
    let events = [
        event(0, "/docker/a", EventType::Created),
        event(1, "/docker/a", EventType::Killed(kill)),
        event(2, "/docker/a", EventType::Deleted),
        event(3, "/docker/b", EventType::Created),
    ];
    let kinds = |query: &str| -> Vec<String> {
        let found = get_with("/api/v1.3/events/docker/a", query, "", &events).unwrap();
        found.as_array().unwrap().iter().map(|e| e["event_type"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(kinds("all_events=true"), ["containerCreation", "oom", "oomKill", "containerDeletion"]);
    assert_eq!(kinds("oom_kill_events=true"), ["oomKill"]);
    assert_eq!(kinds("all_events=true&max_events=1"), ["containerDeletion"]);
    assert!(kinds("").is_empty());
    let all = get_with("/api/v2.1/events/", "creation_events=true&subcontainers=true", "", &events).unwrap();
    assert_eq!(all.as_array().map(Vec::len), Some(2));
    let late = format!("creation_events=true&subcontainers=true&start_time={}", at(3));
    assert_eq!(get_with("/api/v2.1/events/", &late, "", &events).unwrap().as_array().map(Vec::len), Some(1));
}

#[test]
fn events_to_come_are_told_as_they_happen() {
    let request = |query: &str| Request::read("/api/v1.3/events/docker/a", query, b"").unwrap();
    let created = |cgroup: &str| Event::now(cgroup, EventType::Created);
    assert!(!request("creation_events=true").is_stream());
    let all = request("stream=true&creation_events=true");
    assert!(all.is_stream());
    let line = all.stream_event(&created("/docker/a")).unwrap();
    assert_eq!(line.last(), Some(&b'\n'));
    assert_eq!(serde_json::from_slice::<Value>(&line).unwrap()["event_type"], "containerCreation");
    // Of another container, or of a kind that was not requested.
    assert_eq!(all.stream_event(&created("/docker/b")), Some(Vec::new()));
    assert_eq!(request("stream=true&oom_events=true").stream_event(&created("/docker/a")), Some(Vec::new()));
}

#[test]
fn processes_of_a_cgroup() {
    let process = |pid, cgroup: &str| Process {
        user: "root".into(),
        pid,
        parent: 1,
        started: "12:34".into(),
        cpu_percent: 1.5,
        memory_percent: 0.1,
        rss_bytes: 4096,
        virtual_bytes: 8192,
        state: "S".into(),
        running_time: "00:00:01".into(),
        cgroup: cgroup.into(),
        command: "sh".into(),
        files: 3,
        processor: 1,
    };
    let all = [process(7, "/docker/a"), process(8, "/")];
    let get = |path: &str| {
        let request = Request::read(path, "", b"").unwrap();
        assert!(request.needs_processes());
        request.processes(&all)
    };
    let one = get("/api/v2.0/ps/docker/a");
    assert_eq!(one.as_array().map(Vec::len), Some(1));
    assert_eq!(
        (one[0]["pid"].as_i64(), one[0]["cmd"].as_str(), one[0]["psr"].as_i64()),
        (Some(7), Some("sh"), Some(1))
    );
    assert_eq!(get("/api/v2.1/ps/").as_array().map(Vec::len), Some(2));
}

#[test]
fn what_cannot_be_answered_is_refused_with_reasons() {
    for (path, query, body, code, word) in [
        ("/api/", "", "", 400, "v2.1"),
        ("/api/v9.0/machine", "", "", 400, "v9.0"),
        ("/api/v1.0/docker/x", "", "", 500, "docker"),
        ("/api/v1.3/containers/nowhere", "", "", 500, "/nowhere"),
        ("/api/v1.3/docker/nobody", "", "", 500, "nobody"),
        ("/api/v1.3/containers/", "", "{", 500, "json"),
        ("/api/v2.1/stats/x", "type=docker&recursive=true", "", 500, "recursive"),
        ("/api/v2.1/stats/x", "type=rkt", "", 500, "rkt"),
        ("/api/v2.1/stats/", "count=many", "", 500, "many"),
        ("/api/v2.1/stats/", "max_age=5", "", 500, "max_age"),
    ] {
        let (found, why) = get_with(path, query, body, &[]).unwrap_err();
        assert!(found == code && why.contains(word), "{path}: {found} {why}");
    }
    assert_eq!(duration::parse("1m30.5s"), Some(Duration::from_millis(90_500)));
    assert_eq!(unescaped("a%2Fb%zz+", true), "a/b%zz ");
}
