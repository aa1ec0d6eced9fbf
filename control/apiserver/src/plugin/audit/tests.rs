//! Rules of policies, the form of events, and the rotation of the file.

use std::{
    fs, io,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use serde_json::{Value, json};

use super::{policy::Policy, *};
use crate::apiserver::{AuditLevel, AuditStage, ObjectReference};

fn user(name: &str, groups: &[&str]) -> User {
    User { name: name.to_owned(), groups: groups.iter().map(|g| (*g).to_owned()).collect(), ..User::default() }
}

const POLICY: &str = "
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- {level: None, users: ['system:kube-proxy'], verbs: [watch], resources: [{group: '', resources: [endpoints, services]}]}
- {level: None, userGroups: ['system:authenticated'], nonResourceURLs: ['/api*', /version]}
- {level: Request, resources: [{group: '', resources: [configmaps], resourceNames: [one]}], namespaces: [kube-system], omitStages: [Panic]}
- {level: RequestResponse, resources: [{group: apps, resources: ['deployments/*', '*/status']}], omitManagedFields: true}
- {level: Metadata, namespaces: ['']}
- {level: Request, resources: [{group: batch}]}
";

#[test]
fn the_first_rule_that_fits_decides() {
    let policy = Policy::parse(POLICY.as_bytes()).unwrap();
    let resource = |verb, group, resource, subresource, namespace, name| Attributes {
        verb,
        is_resource: true,
        group,
        resource,
        subresource,
        namespace,
        name,
        ..Attributes::default()
    };
    let path = |path| Attributes { verb: "get", path, ..Attributes::default() };
    let proxy = user("system:kube-proxy", &[]);
    let someone = user("u", &["system:authenticated"]);
    for (user, attributes, level) in [
        (&proxy, resource("watch", "", "services", "", "n", ""), AuditLevel::None),
        (&someone, path("/apis/apps"), AuditLevel::None),
        (&someone, path("/version"), AuditLevel::None),
        (&someone, path("/metrics"), AuditLevel::None),
        (&someone, resource("get", "", "configmaps", "", "kube-system", "one"), AuditLevel::Request),
        (&someone, resource("get", "", "configmaps", "", "kube-system", "two"), AuditLevel::None),
        (&someone, resource("get", "apps", "deployments", "scale", "n", "d"), AuditLevel::None),
        (&someone, resource("get", "apps", "deployments", "", "n", "d"), AuditLevel::RequestResponse),
        (&someone, resource("get", "apps", "replicasets", "status", "n", "d"), AuditLevel::RequestResponse),
        (&someone, resource("get", "apps", "replicasets", "", "n", "d"), AuditLevel::None),
        (&someone, resource("list", "", "nodes", "", "", ""), AuditLevel::Metadata),
        (&someone, resource("list", "batch", "jobs", "status", "n", ""), AuditLevel::Request),
    ] {
        let rule = policy.rule(user, &attributes);
        // `deployments/*` fits the subresources too.
        let level = if attributes.subresource == "scale" { AuditLevel::RequestResponse } else { level };
        assert_eq!(rule.level, level, "{attributes:?}");
    }
    let rule = policy.rule(&someone, &resource("get", "", "configmaps", "", "kube-system", "one"));
    assert_eq!(
        (rule.omit_stages, rule.omit_managed_fields),
        (vec![AuditStage::Panic, AuditStage::RequestReceived], false)
    );
    assert_eq!(Policy::default().rule(&user("", &[]), &path("/x")).level, AuditLevel::Metadata);
}

#[test]
fn a_policy_that_is_wrong_is_refused() {
    for (text, words) in [
        ("kind: Policy", "is not of apiVersion audit.k8s.io/v1"),
        ("{apiVersion: audit.k8s.io/v1, kind: Policy}", "has no rules"),
        ("{apiVersion: audit.k8s.io/v1, kind: Policy, rules: [{level: All}]}", "rules[0].level must be None"),
        ("{apiVersion: audit.k8s.io/v1, kind: Policy, rules: [{level: None, user: x}]}", "rules[0].user is no field"),
        (
            "{apiVersion: audit.k8s.io/v1, kind: Policy, rules: [{level: None, users: x}]}",
            "rules[0].users must be a list",
        ),
        (
            "{apiVersion: audit.k8s.io/v1, kind: Policy, rules: [{level: None, nonResourceURLs: [/a], namespaces: [b]}]}",
            "cannot have nonResourceURLs and resources",
        ),
        (
            "{apiVersion: audit.k8s.io/v1, kind: Policy, rules: [{level: None, nonResourceURLs: ['/a*/b']}]}",
            "must begin with / and have *",
        ),
        (
            "{apiVersion: audit.k8s.io/v1, kind: Policy, rules: [{level: None, omitStages: [End]}]}",
            "rules[0].omitStages must be of RequestReceived",
        ),
        ("[", ""),
    ] {
        let why = Policy::parse(text.as_bytes()).unwrap_err();
        assert!(why.contains(words), "{text}: {why}");
    }
}

fn event() -> AuditEvent {
    let at = "2026-01-02T03:04:05.0067Z".parse().unwrap();
    AuditEvent {
        level: AuditLevel::RequestResponse,
        id: "i".to_owned(),
        stage: AuditStage::ResponseComplete,
        uri: "/api/v1/namespaces/n/configmaps?x=y".to_owned(),
        verb: "create".to_owned(),
        user: user("u", &["g"]),
        impersonated: Some(user("v", &[])),
        source_ips: vec!["10.0.0.1".parse().unwrap()],
        user_agent: "test".to_owned(),
        object: Some(ObjectReference {
            resource: "configmaps".to_owned(),
            version: "v1".to_owned(),
            namespace: "n".to_owned(),
            ..ObjectReference::default()
        }),
        code: Some(403),
        status: Some(json!({"status": "Failure", "message": "no", "reason": "Forbidden", "code": 403, "metadata": {}})),
        request_object: Some(Arc::new(json!({"metadata": {"managedFields": [], "name": "m"}}))),
        response_object: Some(br#"{"items": [{"metadata": {"managedFields": [1]}}]}"#.to_vec().into()),
        omit_managed_fields: true,
        received: at,
        at,
        annotations: [("k".to_owned(), "v".to_owned())].into(),
    }
}

#[test]
fn an_event_has_upstreams_form() {
    assert_eq!(
        event::to_json(&event()),
        json!({
            "kind": "Event", "apiVersion": "audit.k8s.io/v1", "level": "RequestResponse", "auditID": "i",
            "stage": "ResponseComplete", "requestURI": "/api/v1/namespaces/n/configmaps?x=y", "verb": "create",
            "user": {"username": "u", "groups": ["g"]}, "impersonatedUser": {"username": "v", "groups": []},
            "sourceIPs": ["10.0.0.1"], "userAgent": "test",
            "objectRef": {"resource": "configmaps", "namespace": "n", "apiVersion": "v1"},
            "responseStatus": {"metadata": {}, "status": "Failure", "message": "no", "reason": "Forbidden", "code": 403},
            "requestObject": {"metadata": {"name": "m"}}, "responseObject": {"items": [{"metadata": {}}]},
            "requestReceivedTimestamp": "2026-01-02T03:04:05.006700Z", "stageTimestamp": "2026-01-02T03:04:05.006700Z",
            "annotations": {"k": "v"},
        })
    );
}

fn newest(max_backups: usize) -> Retention {
    Retention { max_backups, max_age_days: 0 }
}

#[test]
fn a_file_that_is_full_is_replaced_and_few_are_kept() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("audit.log");
    fs::write(&path, "").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    fs::write(dir.path().join("audit-notes.log"), "kept").unwrap();
    let mut file = LogFile::open(&path, 10, newest(2)).unwrap();
    for line in 0..7 {
        file.append(format!("{line:04}\n").as_bytes()).unwrap();
        std::thread::sleep(Duration::from_millis(2));
    }
    let mut names: Vec<String> =
        fs::read_dir(&dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    assert_eq!(names.len(), 4, "{names:?}");
    assert_eq!(fs::read_to_string(&path).unwrap(), "0006\n");
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(fs::read_to_string(dir.path().join(&names[1])).unwrap(), "0004\n0005\n");
    assert!(names.contains(&"audit-notes.log".to_owned()), "{names:?}");
    // Opened again it is appended to.
    LogFile::open(&path, 100, newest(2)).unwrap().append(b"more\n").unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), "0006\nmore\n");
}

/// At the opening and with each rotation; what is no older file of this log stays, however old.
#[test]
fn old_files_are_removed_by_the_times_in_their_names() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("audit.log");
    let names = || -> Vec<String> {
        let entries = fs::read_dir(&dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> = entries.filter(|name| name.contains("-20")).collect();
        names.sort();
        names
    };
    let of_age = |days: i64| {
        let at = jiff::Timestamp::now() - jiff::SignedDuration::from_hours(24 * days + 1);
        at.strftime("audit-%Y-%m-%dT%H-%M-%S%.3f.log").to_string()
    };
    let ages = [400, 3, 1].map(of_age);
    let ([oldest, old, young], other) = (ages.each_ref().map(String::as_str), "other-2001-01-01T00-00-00.000.log");
    for name in [oldest, old, young, other] {
        fs::write(dir.path().join(name), "").unwrap();
    }
    let kept = |days: u32| {
        LogFile::open(&path, 10, Retention { max_backups: 9, max_age_days: days }).unwrap();
        names()
    };
    assert_eq!(kept(0), [oldest, old, young, other]);
    assert_eq!(kept(u32::MAX), [oldest, old, young, other]);
    assert_eq!(kept(4), [old, young, other]);
    let mut file = LogFile::open(&path, 10, Retention { max_backups: 9, max_age_days: 4 }).unwrap();
    fs::write(dir.path().join(oldest), "").unwrap();
    file.append(b"0000\n0000\n").unwrap();
    assert_eq!(names(), [oldest, old, young, other]);
    file.append(b"1111\n").unwrap();
    let left = names();
    assert_eq!((left.len(), left.iter().any(|name| name == oldest)), (4, false), "{left:?}");
}

/// Whatever hinders a rotation, every line is in one of the files, in order, and the next rotation is as ever.
#[test]
fn a_rotation_that_fails_loses_no_line() {
    type Fault = fn(&Path);
    let faults: [(&str, Fault); 5] = [
        ("moved away, as logrotate does", |path| fs::rename(path, path.with_file_name("elsewhere")).unwrap()),
        ("removed", |path| fs::remove_file(path).unwrap()),
        ("moved away, and a new one made", |path| {
            fs::rename(path, path.with_file_name("elsewhere")).unwrap();
            fs::write(path, "").unwrap();
        }),
        ("the directory is gone", |path| fs::remove_dir_all(path.parent().unwrap()).unwrap()),
        ("an old one cannot be removed", |path| {
            fs::create_dir_all(path.with_file_name("audit-2020-01-02T03-04-05.678.log/full")).unwrap();
        }),
    ];
    let lines = |path: &Path| -> String {
        let mut all: Vec<PathBuf> = fs::read_dir(path.parent().unwrap()).unwrap().map(|e| e.unwrap().path()).collect();
        // By time; the file itself is the youngest.
        all.sort_by_key(|one| (one == path, one.clone()));
        all.retain(|one| one.is_file());
        all.iter().map(|one| fs::read_to_string(one).unwrap()).collect()
    };
    for (what, fault) in faults {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log/audit.log");
        fs::create_dir(path.parent().unwrap()).unwrap();
        let mut file = LogFile::open(&path, 10, newest(1)).unwrap();
        file.append(b"one1\n").unwrap();
        fault(&path);
        for line in ["two2\n", "six6\n", "ten0\n"] {
            file.append(line.as_bytes()).unwrap_or_else(|e| panic!("{what}: {e}"));
        }
        assert!(lines(&path).ends_with("six6\nten0\n"), "{what}: {}", lines(&path));
        assert!(fs::metadata(&path).unwrap().len() <= 10, "{what}");
    }
    // The next file cannot be opened, once or for long.
    for failures in [1, 3] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit.log");
        let mut file = LogFile::open(&path, 10, newest(9)).unwrap();
        file.append(b"0000\n0000\n").unwrap();
        for line in 1..=failures {
            let full = |_: &Path| Err(io::Error::from_raw_os_error(24));
            file.append_with(format!("{line:04}\n").as_bytes(), full).unwrap();
            assert!(fs::read_to_string(&path).unwrap().ends_with(&format!("{line:04}\n")), "it has its name");
        }
        file.append(b"last\n").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "last\n");
        let wanted: String = (1..=failures).map(|line| format!("{line:04}\n")).collect();
        assert_eq!(lines(&path), format!("0000\n0000\n{wanted}last\n"));
    }
}

#[test]
fn what_cannot_be_queued_is_counted_and_nobody_waits() {
    let (sender, receiver) = mpsc::sync_channel(1);
    let log = AuditLog { policy: Policy::default(), sender, counts: Arc::default() };
    (0..3).for_each(|_| log.record(event()));
    assert_eq!(log.counts.lost.load(Ordering::Relaxed), 2);
    let registry = Registry::default();
    log.register_metrics(&registry);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("audit.log");
    let (counts, file) = (Arc::clone(&log.counts), LogFile::open(&path, 1 << 20, newest(1)).unwrap());
    drop(log);
    write_all(&receiver, file, &counts);
    assert_eq!((counts.written.load(Ordering::Relaxed), counts.queued_bytes.load(Ordering::Relaxed)), (1, 0));
    let line: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
    assert_eq!(line["auditID"], "i");
    let page = registry.page(windlass_kit::prometheus::Format::accepted(""));
    assert!(page.contains("apiserver_audit_error_total{plugin=\"log\"} 2"), "{page}");
}
