//! ReplicationControllers and ReplicaSets.

use crate::{Case, case::name_of, cases};

cases![a_replication_controller_keeps_its_pods, a_replica_set_owns_what_its_selector_says];

fn controller(replicas: u32) -> String {
    format!(
        "apiVersion: v1\nkind: ReplicationController\nmetadata: {{name: nginx-server}}\nspec:\n  replicas: {replicas}\n  selector: {{app: nginx}}\n  \
         template:\n    metadata: {{name: nginx, labels: {{app: nginx, env: dev}}}}\n    spec:\n      terminationGracePeriodSeconds: 1\n      containers:\n      \
         - name: nginx-server\n        image: nginx\n        imagePullPolicy: IfNotPresent\n        ports: [{{containerPort: 80}}]\n        \
         volumeMounts: [{{mountPath: /var/log/nginx, name: nginx-logs}}]\n      \
         - name: log-output\n        image: busybox\n        imagePullPolicy: IfNotPresent\n        command: [bin/sh]\n        args: [-c, 'tail -F /logdir/access.log']\n        \
         volumeMounts: [{{mountPath: /logdir, name: nginx-logs}}]\n      volumes: [{{name: nginx-logs, emptyDir: {{}}}}]\n"
    )
}

/// Kept, scaled, released and adopted, left behind and removed.
fn a_replication_controller_keeps_its_pods(case: &mut Case<'_>) {
    case.applied(&controller(2));
    let pods = case.ready("app=nginx", 2);
    case.recording.show(&["rc", "pods"]);
    // One is deleted, and another comes in its place.
    let _ = case.kubectl.run(&["delete", "pod", &name_of(&pods[0])]);
    case.ready("app=nginx", 2);
    case.typed("scale --replicas=3 rc/nginx-server");
    case.ready("app=nginx", 3);
    case.recording.show(&["rc"]);
    case.typed("scale --replicas=2 rc/nginx-server");
    let pods = case.ready("app=nginx", 2);
    // Relabelled, it has no owner; labelled back, it is one too many.
    let released = name_of(&pods[0]);
    let _ = case.kubectl.run(&["label", "pod", &released, "app=other", "--overwrite"]);
    case.ready("app=nginx", 2);
    case.recording.show(&["pods -l app=other"]);
    let _ = case.kubectl.run(&["label", "pod", &released, "app=nginx", "--overwrite"]);
    case.ready("app=nginx", 2);
    case.recording.show(&["rc", "pods"]);
    case.recording.events(&["ReplicationController"]);
    // Its pods stay without it; it takes them back, and ends with them.
    case.typed("delete rc nginx-server --cascade=orphan");
    case.ready("app=nginx", 2);
    case.recording.show(&["pods"]);
    case.applied(&controller(2));
    case.until("has two", "rc/nginx-server", |rc| rc["status"]["readyReplicas"] == 2);
    case.recording.show(&["rc", "pods"]);
    case.typed("scale --replicas=0 rc/nginx-server");
    case.gone("pods");
    case.recording.show(&["rc"]);
    case.typed("delete rc nginx-server");
    // Only pods that are started again can be kept.
    case.applied(
        "apiVersion: v1\nkind: ReplicationController\nmetadata: {name: never}\nspec:\n  selector: {app: never}\n  template:\n    \
         metadata: {labels: {app: never}}\n    spec: {restartPolicy: Never, containers: [{name: c, image: busybox}]}\n",
    );
}

fn replica_set(selector: &str) -> String {
    format!(
        "apiVersion: apps/v1\nkind: ReplicaSet\nmetadata: {{name: nginx-rs}}\nspec:\n  replicas: 3\n  selector: {selector}\n  template:\n    \
         metadata: {{labels: {{app: nginx, track: stable}}}}\n    spec:\n      terminationGracePeriodSeconds: 1\n      containers: [{{name: nginx, image: nginx, \
         imagePullPolicy: IfNotPresent, ports: [{{containerPort: 80}}]}}]\n"
    )
}

fn a_replica_set_owns_what_its_selector_says(case: &mut Case<'_>) {
    case.applied(&replica_set("{matchLabels: {app: other}}"));
    // An existing pod is adopted.
    case.applied(
        "apiVersion: v1\nkind: Pod\nmetadata: {name: alone, labels: {app: nginx, track: stable}}\nspec: {terminationGracePeriodSeconds: 1, \
         containers: [{name: c, image: nginx, imagePullPolicy: IfNotPresent}]}\n",
    );
    case.ready("app=nginx", 1);
    case.applied(&replica_set(
        "{matchExpressions: [{key: app, operator: In, values: [nginx, httpd]}, {key: track, operator: NotIn, values: [canary]}, \
         {key: gone, operator: DoesNotExist}, {key: track, operator: Exists}]}",
    ));
    case.ready("app=nginx", 3);
    case.recording.show(&["rs", "pods"]);
    let _ = case.kubectl.run(&["label", "pod", "alone", "track=canary", "--overwrite"]);
    case.ready("track=stable", 3);
    case.recording.show(&["rs", "pods -l track=canary"]);
    case.recording.events(&["ReplicaSet"]);
    // A quota that is too small for it.
    let _ = case.kubectl.run(&["create", "quota", "few", "--hard=pods=5"]);
    case.typed("scale --replicas=8 rs/nginx-rs");
    case.until("cannot make all", "rs/nginx-rs", |rs| rs["status"]["conditions"][0]["type"] == "ReplicaFailure");
    let _ = case.kubectl.run(&["delete", "quota", "few"]);
    case.typed("scale --replicas=1 rs/nginx-rs");
    case.ready("track=stable", 1);
    case.recording.show(&["rs"]);
    case.typed("delete rs nginx-rs");
    case.gone("pods -l track=stable");
    case.recording.show(&["pods"]);
}
