//! StatefulSets: names, order and volumes.

use serde_json::Value;
use windlass_tests::{DEFAULT_TIMEOUT, cluster::Api, eventually};

use crate::{
    Case,
    case::{is_observed, name_of},
    cases,
};

cases![a_stateful_set_starts_in_order_and_keeps_its_volumes, pods_of_a_stateful_set_start_at_once];

const SERVICE: &str = "apiVersion: v1\nkind: Service\nmetadata: {name: nginx, labels: {app: nginx}}\nspec: {clusterIP: None, \
                       selector: {app: nginx}, ports: [{name: http, port: 80}]}\n---\n";

fn stateful_set(rest: &str, claims: &str) -> String {
    let mounts = if claims.is_empty() { "" } else { "volumeMounts: [{name: www, mountPath: /usr/share/nginx/html}], " };
    format!(
        "{SERVICE}apiVersion: apps/v1\nkind: StatefulSet\nmetadata: {{name: web}}\nspec:\n  serviceName: nginx\n  replicas: 2\n  \
         selector: {{matchLabels: {{app: nginx}}}}\n  {rest}\n  {claims}\n  template:\n    metadata: {{labels: {{app: nginx}}}}\n    spec:\n      \
         terminationGracePeriodSeconds: 1\n      containers: [{{name: nginx, image: 'nginx:1.7.9', imagePullPolicy: IfNotPresent, {mounts}\
         ports: [{{name: web, containerPort: 80}}]}}]\n"
    )
}

fn is_complete(set: &Value) -> bool {
    let (status, replicas) = (&set["status"], &set["spec"]["replicas"]);
    is_observed(set)
        && ["replicas", "readyReplicas", "availableReplicas", "updatedReplicas"]
            .iter()
            .all(|field| status[field] == *replicas)
        && status["currentRevision"] == status["updateRevision"]
}

fn a_stateful_set_starts_in_order_and_keeps_its_volumes(case: &mut Case<'_>) {
    let directory = case.directory();
    let volume = |name: &str| {
        format!(
            "apiVersion: v1\nkind: PersistentVolume\nmetadata: {{name: {name}}}\nspec: {{capacity: {{storage: 1Gi}}, accessModes: [ReadWriteOnce], \
             hostPath: {{path: '{}/{name}', type: DirectoryOrCreate}}}}\n---\n",
            directory.display()
        )
    };
    case.applied(&(volume("pv001") + &volume("pv002")));
    let claims = "volumeClaimTemplates: [{metadata: {name: www}, spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}]";
    case.applied(&stateful_set("", claims));
    case.until("is complete", "sts/web", is_complete);
    if Api::from_env() == Api::Embedded {
        // In order; upstream's controller takes any that fits.
        let bound = case.kubectl.run(&["get", "pvc", "-o", "jsonpath={.items[*].spec.volumeName}"]);
        assert_eq!(bound, "pv001 pv002");
    }
    case.recording.alias(&["pv001", "pv002"], "{volume}");
    let all = ["sts", "pods", "pvc"];
    case.recording.show(&all);
    case.recording.show(&["pv"]);
    case.recording.events(&["StatefulSet"]);
    // Each pod writes into the volume that is its own.
    for pod in ["web-0", "web-1"] {
        let _ = case.kubectl.run(&[
            "exec",
            pod,
            "--",
            "sh",
            "-c",
            "echo hello $(hostname) > /usr/share/nginx/html/index.html",
        ]);
    }
    let before = case.until("is there", "pod/web-0", |_| true);
    let _ = case.kubectl.run(&["delete", "pod", "web-0"]);
    case.until("is complete", "sts/web", is_complete);
    let after = case.until("is there", "pod/web-0", |_| true);
    assert_ne!(before["metadata"]["uid"], after["metadata"]["uid"]);
    for pod in ["web-0", "web-1"] {
        case.typed(&format!("exec {pod} -- cat /usr/share/nginx/html/index.html"));
    }
    // An update goes from the last to the first, above the partition only.
    let patch = r#"{"spec":{"updateStrategy":{"rollingUpdate":{"partition":1}},"template":{"metadata":{"annotations":{"version":"2"}}}}}"#;
    let _ = case.kubectl.run(&["patch", "sts/web", "-p", patch]);
    case.until("has updated one", "sts/web", |set| {
        is_observed(set) && set["status"]["updatedReplicas"] == 1 && set["status"]["readyReplicas"] == 2
    });
    case.recording.show(&["sts", "pods"]);
    let _ = case.kubectl.run(&[
        "patch",
        "sts/web",
        "-p",
        r#"{"spec":{"updateStrategy":{"rollingUpdate":{"partition":0}}}}"#,
    ]);
    case.until("is complete", "sts/web", is_complete);
    case.typed("rollout status sts/web");
    case.typed("rollout history sts/web");
    case.typed("rollout undo sts/web");
    case.until("is complete", "sts/web", is_complete);
    case.recording.show(&["sts", "controllerrevisions"]);
    // On deletion only.
    let patch = r#"{"spec":{"updateStrategy":{"type":"OnDelete","rollingUpdate":null},"template":{"metadata":{"annotations":{"version":"3"}}}}}"#;
    let _ = case.kubectl.run(&["patch", "sts/web", "-p", patch]);
    case.until("is seen", "sts/web", |set| {
        is_observed(set) && set["status"]["updateRevision"] != set["status"]["currentRevision"]
    });
    case.recording.show(&["sts", "pods"]);
    let _ = case.kubectl.run(&["delete", "pod", "web-0"]);
    case.until("has updated one", "sts/web", |set| {
        set["status"]["updatedReplicas"] == 1 && set["status"]["readyReplicas"] == 2
    });
    case.recording.show(&["sts"]);
    // The last is removed first; its claim stays.
    case.typed("scale sts web --replicas=1");
    case.until("has one", "sts/web", |set| is_observed(set) && set["status"]["replicas"] == 1);
    case.recording.show(&all);
    case.recording.events(&["StatefulSet"]);
    case.typed("delete sts web");
    case.gone("pods");
    case.typed("delete pvc www-web-0 www-web-1");
    case.recording.show(&["pv"]);
    case.typed("delete pv pv001 pv002");
}

fn pods_of_a_stateful_set_start_at_once(case: &mut Case<'_>) {
    case.applied(&stateful_set("podManagementPolicy: Parallel", "").replace("nginx:1.7.9", "nginx:no-such-version"));
    // None is ready, and both exist.
    eventually(DEFAULT_TIMEOUT, "both pods are there, without an image", || {
        let pods = case.kubectl.pods("app=nginx")?;
        let names: Vec<String> = pods.iter().map(name_of).collect();
        anyhow::ensure!(names == ["web-0", "web-1"], "{names:?}");
        // Before that it is not said how long a pod is shown to be created.
        let waits =
            |pod: &Value| pod["status"]["containerStatuses"][0]["state"]["waiting"]["reason"] == "ImagePullBackOff";
        anyhow::ensure!(pods.iter().all(waits), "the image is still pulled");
        Ok(())
    });
    case.recording.show(&["sts", "pods"]);
    // A broken first revision is left only when its pods are deleted.
    let _ = case.kubectl.run(&["set", "image", "sts/web", "nginx=nginx:1.7.9"]);
    case.until("is seen", "sts/web", is_observed);
    // The controller removes one by itself. Where it is gone before its turn comes, kubectl would wait for the end of the next
    // pod of that name: it has no UID of what it did not find.
    let _ = case.kubectl.run(&["delete", "pods", "--all", "--wait=false"]);
    case.until("is complete", "sts/web", is_complete);
    case.recording.show(&["sts"]);
    case.typed("delete sts web --cascade=orphan");
    case.ready("app=nginx", 2);
    case.recording.show(&["pods"]);
    // Taken back, and its claims with the set when it says so.
    case.applied(&stateful_set("podManagementPolicy: Parallel", ""));
    case.until("is complete", "sts/web", is_complete);
    case.recording.show(&["sts", "pods"]);
}
