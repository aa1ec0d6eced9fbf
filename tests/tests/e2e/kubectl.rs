//! The commands of kubectl on all served types.

use windlass_tests::{DEFAULT_TIMEOUT, Testbed, eventually};

use crate::{WEB, name_of};

#[test]
fn kubectl_verbs_work_on_served_types() {
    let testbed = Testbed::new();
    let mut windlass = testbed.windlass();
    let kubectl = windlass.up();

    for kind in [
        "namespaces",
        "nodes",
        "pods",
        "replicationcontrollers",
        "services",
        "endpoints",
        "endpointslices",
        "configmaps",
        "secrets",
        "serviceaccounts",
        "events",
        "leases",
    ] {
        for form in [&[][..], &["-o", "wide"], &["-o", "yaml"], &["-o", "json"]] {
            let mut args = vec!["get", kind, "-A"];
            args.extend(form);
            let _ = kubectl.run(&args);
        }
    }
    let resources = kubectl.run(&["api-resources", "-o", "name"]);
    for name in ["pods", "leases.coordination.k8s.io", "endpointslices.discovery.k8s.io"] {
        assert!(resources.lines().any(|l| l == name), "{name} is missing in {resources}");
    }
    assert!(kubectl.run(&["get", "node", "-o", "wide"]).contains("docker://"));
    assert!(kubectl.run(&["describe", "node", "node"]).contains("KubeletReady"));
    assert!(kubectl.run(&["version"]).contains("v1.36"));
    assert!(kubectl.run(&["explain", "pod.spec.containers.image"]).contains("<string>"));
    assert_eq!(kubectl.run(&["auth", "can-i", "delete", "pods"]).trim(), "yes");

    // create, get -w, apply, apply again, apply of a changed file
    let made = kubectl.output(&["create", "-f", "-"], WEB);
    assert!(made.ok && made.out.contains("replicationcontroller/web created"), "{made:?}");
    let again = kubectl.output(&["create", "-f", "-"], WEB);
    assert!(!again.ok && again.err.contains("AlreadyExists"), "{again:?}");
    let _ = kubectl.run(&["delete", "rc/web", "service/web"]);
    assert!(kubectl.apply(WEB).contains("service/web created"));
    assert!(kubectl.apply(WEB).contains("replicationcontroller/web unchanged"));
    assert!(kubectl.apply(&WEB.replace("replicas: 2", "replicas: 3")).contains("replicationcontroller/web configured"));
    eventually(DEFAULT_TIMEOUT, "three pods are Ready", || kubectl.ready_pods("app=web", 3));
    assert!(kubectl.apply(&WEB.replace("port: 80\n", "port: 8080\n")).contains("service/web configured"));
    assert_eq!(kubectl.json(&["service", "web"]).unwrap()["spec"]["ports"].as_array().unwrap().len(), 1);
    assert_eq!(kubectl.json(&["service", "web"]).unwrap()["spec"]["ports"][0]["port"], 8080);

    // scale, describe, events
    let _ = kubectl.run(&["scale", "rc", "web", "--replicas=1"]);
    let pod = eventually(DEFAULT_TIMEOUT, "one pod is left", || kubectl.ready_pods("app=web", 1)).remove(0);
    let described = kubectl.run(&["describe", "rc", "web"]);
    assert!(described.contains("1 current / 1 desired") && described.contains("Created pod: web-"), "{described}");
    let described = kubectl.run(&["describe", "pod", &name_of(&pod)]);
    for word in
        ["Scheduled", "Created", "Started", "Controlled By:  ReplicationController/web", "Ready            True"]
    {
        assert!(
            described.contains(word) || described.replace("  ", " ").contains(word),
            "{word} is missing in {described}"
        );
    }

    // label, annotate, the three patches, replace
    let _ = kubectl.run(&["label", "rc", "web", "tier=front"]);
    assert!(kubectl.run(&["get", "rc", "-l", "tier=front", "-o", "name"]).contains("web"));
    let _ = kubectl.run(&["annotate", "rc", "web", "note=x"]);
    for (kind, patch) in [
        ("strategic", r#"{"metadata":{"labels":{"a":"1"}}}"#),
        ("merge", r#"{"metadata":{"labels":{"b":"2"}}}"#),
        ("json", r#"[{"op":"add","path":"/metadata/labels/c","value":"3"}]"#),
    ] {
        let _ = kubectl.run(&["patch", "rc", "web", "--type", kind, "-p", patch]);
    }
    let labels = kubectl.json(&["rc", "web"]).unwrap()["metadata"]["labels"].clone();
    assert_eq!(
        (&labels["a"], &labels["b"], &labels["c"], &labels["tier"]),
        (&"1".into(), &"2".into(), &"3".into(), &"front".into())
    );
    let whole = kubectl.run(&["get", "rc", "web", "-o", "yaml"]).replace("tier: front", "tier: back");
    let replaced = kubectl.output(&["replace", "-f", "-"], &whole);
    assert!(replaced.ok, "{replaced:?}");
    let stale = kubectl.output(&["replace", "-f", "-"], &whole.replace("tier: back", "tier: other"));
    assert!(!stale.ok && stale.err.contains("the object has been modified"), "{stale:?}");

    // logs, current and previous
    kubectl.apply(&crate::shell_pod("talker", "Always", "echo one; echo two; exec sleep 1000"));
    eventually(DEFAULT_TIMEOUT, "the pod has spoken", || {
        let output = kubectl.try_run(&["logs", "talker"])?;
        anyhow::ensure!(output == "one\ntwo\n", "{output:?}");
        Ok(())
    });
    assert_eq!(kubectl.run(&["logs", "talker", "--tail=1"]), "two\n");

    // config maps, secrets, namespaces
    let _ = kubectl.run(&["create", "configmap", "settings", "--from-literal=a=b"]);
    let _ = kubectl.run(&["create", "secret", "generic", "hidden", "--from-literal=password=x"]);
    assert_eq!(kubectl.json(&["secret", "hidden"]).unwrap()["data"]["password"], "eA==");
    let _ = kubectl.run(&["create", "namespace", "other"]);
    eventually(DEFAULT_TIMEOUT, "the namespace has its service account", || {
        kubectl.try_run(&["-n", "other", "get", "serviceaccount", "default"])
    });
    let _ = kubectl.run(&["-n", "other", "create", "configmap", "inside", "--from-literal=a=b"]);
    let _ = kubectl.run(&["delete", "namespace", "other", "--timeout=60s"]);
    assert!(!kubectl.output(&["get", "namespace", "other"], "").ok);

    // delete removes the pods too
    let _ = kubectl.run(&["delete", "rc", "web"]);
    eventually(DEFAULT_TIMEOUT, "the pods are gone", || {
        let left = kubectl.pods("app=web")?;
        anyhow::ensure!(left.is_empty(), "{} are left", left.len());
        Ok(())
    });
}

#[test]
fn kubectl_get_watch_shows_changes() {
    let testbed = Testbed::new();
    let mut windlass = testbed.windlass();
    let kubectl = windlass.up();
    let log = testbed.dir().join("watch.log");
    let mut command = kubectl.command();
    command.args(["get", "pods", "-w"]);
    let watch = windlass_tests::Daemon::start("kubectl get -w", &mut command, &log).unwrap();
    kubectl.apply(&crate::shell_pod("seen", "Never", "sleep 1"));
    eventually(DEFAULT_TIMEOUT, "the watch has seen the pod's whole life", || {
        let text = watch.log();
        for word in ["Pending", "Running", "Completed"] {
            anyhow::ensure!(text.contains(word), "{word} is missing in:\n{text}");
        }
        Ok(())
    });
}
