//! The API used from pods: by the service's address with the account's token, as in-cluster clients do; and by users
//! who are not administrators.

use windlass_tests::{DEFAULT_TIMEOUT, Kubectl, Testbed, eventually};

/// One pod in the pod network and one in the host network, both with curl.
const CLIENTS: &str = r"
apiVersion: v1
kind: List
items:
- apiVersion: v1
  kind: Pod
  metadata: {name: routed, labels: {test: client}}
  spec: &spec
    terminationGracePeriodSeconds: 0
    containers:
    - name: main
      image: windlass/curl:1
      command: [sh, -c, 'sleep 3600']
      env:
      - {name: NODE_IP, valueFrom: {fieldRef: {fieldPath: status.hostIP}}}
- apiVersion: v1
  kind: Pod
  metadata: {name: host, labels: {test: client}}
  spec:
    <<: *spec
    hostNetwork: true
";

/// A shell function for requests from a pod: `ask PATH [ARGUMENTS]` prints the code and the body.
const ASK: &str = r#"
account=/var/run/secrets/kubernetes.io/serviceaccount
api=https://$KUBERNETES_SERVICE_HOST:$KUBERNETES_SERVICE_PORT
raw() { curl -sS --max-time 10 --cacert $account/ca.crt -w '\n%{http_code}\n' "$@"; }
ask() { path=$1; shift; raw -H "Authorization: Bearer $(cat $account/token)" "$@" "$api$path"; }
"#;

fn shell(kubectl: &Kubectl<'_>, pod: &str, line: &str) -> anyhow::Result<String> {
    kubectl.try_run(&["exec", pod, "--", "sh", "-c", &format!("{ASK}{line}")])
}

#[test]
fn pods_use_the_api_with_their_own_token_and_no_more_than_it_allows() {
    let testbed = Testbed::new();
    testbed.load("curl");
    let mut windlass = testbed.windlass();
    let kubectl = windlass.up();
    kubectl.apply(CLIENTS);
    eventually(DEFAULT_TIMEOUT, "both pods are Ready", || kubectl.ready_pods("test=client", 2));
    for pod in ["routed", "host"] {
        // The service's rules may be written a moment after the pod starts.
        let version = eventually(DEFAULT_TIMEOUT, "the API answers", || shell(&kubectl, pod, "ask /version"));
        assert!(version.contains("gitVersion") && version.ends_with("200\n"), "{pod}: {version}");
        // By each name that clients use, and at the node's address: the certificate contains them all.
        for name in ["kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"] {
            let line = format!(
                "raw --resolve {name}:443:$KUBERNETES_SERVICE_HOST -H \"Authorization: Bearer $(cat $account/token)\" https://{name}/api"
            );
            let printed = shell(&kubectl, pod, &line).unwrap();
            assert!(printed.contains("APIVersions") && printed.ends_with("200\n"), "{pod} {name}: {printed}");
        }
        let printed = shell(&kubectl, pod, "api=https://$NODE_IP:6443; ask /api").unwrap();
        assert!(printed.ends_with("200\n"), "{pod}: {printed}");
        // It is authenticated as its service account, which is bound to no role of its own.
        let review = "-H 'Content-Type: application/json' -d '{}'";
        let printed =
            shell(&kubectl, pod, &format!("ask /apis/authentication.k8s.io/v1/selfsubjectreviews {review}")).unwrap();
        assert!(
            printed.contains("system:serviceaccount:default:default") && printed.ends_with("201\n"),
            "{pod}: {printed}"
        );
        for path in ["/api/v1/namespaces/default/secrets", "/api/v1/namespaces/default/pods", "/api/v1/nodes"] {
            let printed = shell(&kubectl, pod, &format!("ask {path}")).unwrap();
            assert!(printed.ends_with("403\n"), "{pod} {path}: {printed}");
        }
        // Without a token: only health and version.
        for (path, code) in [("/livez", 200), ("/version", 200), ("/api", 401), ("/api/v1/namespaces", 401)] {
            let printed = shell(&kubectl, pod, &format!("raw $api{path}")).unwrap();
            assert!(printed.ends_with(&format!("{code}\n")), "{pod} {path}: {printed}");
        }
        let printed = shell(&kubectl, pod, "raw -H 'Authorization: Bearer x' $api/version").unwrap();
        assert!(printed.ends_with("401\n"), "{pod}: {printed}");
        // With another CA the client rejects the server.
        let printed = shell(&kubectl, pod, "echo > /tmp/none; curl -sS --cacert /tmp/none $api/version; echo $?")
            .unwrap_or_default();
        assert!(!printed.contains("gitVersion"), "{pod}: {printed}");
    }

    // Who may impersonate has the rights of the other, and no more.
    let refused = kubectl.output(&["--as=nobody", "delete", "pod", "host"], "");
    assert!(!refused.ok && refused.err.contains("User \"nobody\" cannot delete resource \"pods\""), "{}", refused.err);
    let may = kubectl.output(&["--as=nobody", "auth", "can-i", "delete", "pods"], "");
    assert!(!may.ok && may.out.trim() == "no", "{may:?}");
    assert!(kubectl.run(&["--as=nobody", "--as-group=system:masters", "get", "pods"]).contains("host"));
    eventually(DEFAULT_TIMEOUT, "nothing was deleted", || kubectl.ready_pods("test=client", 2));

    roles_give_rights(&kubectl);

    // The node's credentials give access only to objects that its pods reference.
    let _ = kubectl.run(&["create", "secret", "generic", "mine", "--from-literal=a=b"]);
    let config = testbed.dir().join("data/pki/node.kubeconfig").display().to_string();
    let as_node = |args: &[&str], stdin: &str| {
        let output = kubectl.output(&[&["--kubeconfig", &config], args].concat(), stdin);
        (output.ok, output.err)
    };
    let hostile = "apiVersion: v1\nkind: Pod\nmetadata: {name: hostile}\nspec: {nodeName: node, containers: [{name: c, image: i}]}\n";
    for (args, stdin, words) in [
        (&["get", "secret", "mine"][..], "", "no relationship found between node 'node' and this object"),
        (&["get", "secrets", "-A"], "", "can only read namespaced object of this type"),
        (&["get", "pods", "-A"], "", "can only list/watch pods with spec.nodeName field selector"),
        (&["create", "-f", "-"], hostile, "node \"node\" can only create mirror pods"),
        (&["label", "node", "node", "node-role.kubernetes.io/worker="], "", "is not allowed to modify labels"),
        (&["taint", "node", "node", "a=b:NoSchedule"], "", "is not allowed to modify taints"),
        (&["create", "token", "default"], "", "node requested token not bound to a pod"),
        (&["delete", "node", "node"], "", "cannot delete resource \"nodes\""),
        (&["--as=admin", "get", "pods"], "", "cannot impersonate resource \"users\""),
    ] {
        let (done, printed) = as_node(args, stdin);
        assert!(!done && printed.contains(words), "{args:?}: {printed}");
    }
    kubectl.apply(
        "apiVersion: v1\nkind: Pod\nmetadata: {name: names}\nspec:\n  containers:\n  - name: c\n    image: windlass/busybox:1\n    \
         command: [sleep, '3600']\n    envFrom: [{secretRef: {name: mine}}]\n",
    );
    let read = eventually(DEFAULT_TIMEOUT, "the pod is on the node", || {
        let (done, printed) = as_node(&["get", "secret", "mine"], "");
        anyhow::ensure!(done, "{printed}");
        Ok(done)
    });
    assert!(read);
}

/// Rights by roles and bindings: of a pod's account, of users, and of who hands them on.
fn roles_give_rights(kubectl: &Kubectl<'_>) {
    let bind = ["create", "rolebinding", "viewers", "--clusterrole=view", "--serviceaccount=default:default"];
    let _ = kubectl.run(&bind);
    // The rules of `view` come from other roles.
    eventually(DEFAULT_TIMEOUT, "the account may list pods", || {
        let printed = shell(kubectl, "host", "ask /api/v1/namespaces/default/pods | tail -n 1")?;
        anyhow::ensure!(printed == "200\n", "{printed}");
        Ok(())
    });
    for path in ["/api/v1/namespaces/default/secrets", "/api/v1/namespaces/kube-system/pods", "/api/v1/nodes"] {
        let printed = shell(kubectl, "host", &format!("ask {path}")).expect("an answer");
        assert!(printed.ends_with("403\n"), "{path}: {printed}");
    }
    let _ = kubectl.run(&["create", "rolebinding", "ada", "--clusterrole=admin", "--user=ada"]);
    let grant = |role: &str| {
        let role = format!("--clusterrole={role}");
        kubectl.output(&["--as=ada", "create", "rolebinding", "bob", &role, "--user=bob"], "")
    };
    eventually(DEFAULT_TIMEOUT, "the administrator of a namespace hands on what it holds", || {
        let granted = grant("edit");
        anyhow::ensure!(granted.ok, "{granted:?}");
        Ok(())
    });
    assert_eq!(kubectl.run(&["--as=bob", "auth", "can-i", "create", "pods"]).trim(), "yes");
    let refused = grant("cluster-admin");
    let words = "is attempting to grant RBAC permissions not currently held";
    assert!(!refused.ok && refused.err.contains(words), "{refused:?}");
    // A role that is made later counts for those that aggregate it.
    let _ = kubectl.run(&["create", "clusterrole", "more", "--verb=get", "--resource=nodes"]);
    let _ = kubectl.run(&["label", "clusterrole", "more", "rbac.authorization.k8s.io/aggregate-to-view=true"]);
    let _ = kubectl.run(&["create", "clusterrolebinding", "vera", "--clusterrole=view", "--user=vera"]);
    eventually(DEFAULT_TIMEOUT, "the role is aggregated", || {
        let may = kubectl.output(&["--as=vera", "auth", "can-i", "get", "nodes"], "");
        anyhow::ensure!(may.out.trim() == "yes", "{may:?}");
        Ok(())
    });
}
