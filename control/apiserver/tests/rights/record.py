#!/usr/bin/env python3
"""Asks a kube-apiserver (--authorization-mode=Node,RBAC, NodeRestriction on) what whom it lets do by which path.

usage: record.py URL PKI > answers.tsv      PKI holds admin.{crt,key} (system:masters); needs openssl

The control crate's tests put the same questions to the embedded API, in this order (src/apiserver/tests/rights.rs). A line
is: who asks (a user, and its group behind a space), further headers as NAME=VALUE with bytes in percent-encoding, method,
path, body, code, and the message of a 403. Everybody but the administrator is impersonated by him.
"""
import http.client, json, ssl, subprocess, sys, tempfile, base64, urllib.parse

url, pki = urllib.parse.urlsplit(sys.argv[1]), sys.argv[2]
context = ssl._create_unverified_context()
context.load_cert_chain(f"{pki}/admin.crt", f"{pki}/admin.key")


def ask(who, headers, method, path, body):
    connection = http.client.HTTPSConnection(url.hostname, url.port, context=context, timeout=30)
    connection.putrequest(method, path, skip_accept_encoding=True)
    kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
    sent = [("Content-Type", kind.encode()), ("Accept", b"application/json"), ("Content-Length", str(len(body)).encode())]
    if who != "admin":
        user, _, group = who.partition(" ")
        sent.append(("Impersonate-User", user.encode()))
        sent += [("Impersonate-Group", group.encode())] * bool(group)
    sent += [(name, urllib.parse.unquote_to_bytes(value)) for name, _, value in (h.partition("=") for h in headers.split(" ") if h)]
    for name, value in sent:
        connection.putheader(name, value)
    connection.endheaders(body.encode())
    answer = connection.getresponse()
    text = answer.read().decode()
    try:
        said = json.loads(text)
    except ValueError:
        said = {}
    return answer.status, said.get("message", "") if answer.status == 403 and isinstance(said, dict) else ""


def csr(subject):
    with tempfile.TemporaryDirectory() as d:
        made = ["openssl", "req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", f"{d}/k", "-subj", subject, "-utf8"]
        return base64.b64encode(subprocess.run(made, capture_output=True, check=True).stdout).decode()


CORE, RBAC = "/api/v1", "/apis/rbac.authorization.k8s.io/v1"
rows = []
add = lambda who, method, path, body=None, headers="": rows.append((who, headers, method, path, json.dumps(body) if body is not None else ""))
NODE = "system:node:n1 system:nodes"


def role(name, rules, **more):
    return {"metadata": {"name": name, **more.pop("metadata", {})}, "rules": rules, **more}


def rule(verbs, group, *resources, **more):
    return {"verbs": verbs, "apiGroups": [group], "resources": list(resources), **more}


def binding(name, of, user):
    ref = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": of}
    return {"metadata": {"name": name}, "roleRef": ref, "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}]}


# What there is. `bob` has all rights in the namespace n, `eve` writes roles of the cluster, `dan` only escalates one.
for name in ("n", "other"):
    add("admin", "POST", f"{CORE}/namespaces", {"metadata": {"name": name}})
for name in ("n", "n1", "n2"):
    add("admin", "POST", f"{CORE}/nodes", {"metadata": {"name": name}})
add("admin", "POST", f"{CORE}/namespaces/n/configmaps", {"metadata": {"name": "p"}})
ALL = [rule(["*"], "*", "*"), {"verbs": ["*"], "nonResourceURLs": ["*"]}]
GATHERS = {"clusterRoleSelectors": [{"matchLabels": {"to": "gathers"}}]}
READS = [rule(["get"], "", "configmaps")]
for made in (
    role("all", ALL),
    role("n", READS),
    role("weak", READS),
    role("eves", [rule(["get", "create", "patch", "update"], "rbac.authorization.k8s.io", "clusterroles", "clusterrolebindings"), *READS]),
    role("dans", [rule(["create", "patch"], "rbac.authorization.k8s.io", "clusterroles"), rule(["escalate"], "rbac.authorization.k8s.io", "clusterroles", resourceNames=["mine"])]),
    role("gathers", [], aggregationRule=GATHERS),
    role("of-nodes", [rule(["*"], "", "configmaps", "persistentvolumeclaims"), rule(["create"], "coordination.k8s.io", "leases")]),
):
    add("admin", "POST", f"{RBAC}/clusterroles", made)
add("admin", "POST", f"{RBAC}/namespaces/n/rolebindings", binding("bobs", "all", "bob"))
for user, of in (("eve", "eves"), ("dan", "dans"), ("root", "all"), ("system:node:n1", "of-nodes"), ("system:node:", "of-nodes")):
    add("admin", "POST", f"{RBAC}/clusterrolebindings", binding(f"of-{user.replace(':', '-')}x", of, user))

# Objects of the cluster below a namespace of their name.
OF_CLUSTER = [(CORE, r) for r in ("nodes", "persistentvolumes", "namespaces")]
OF_CLUSTER += [(RBAC, r) for r in ("clusterroles", "clusterrolebindings")]
OF_CLUSTER += [("/apis/storage.k8s.io/v1", r) for r in ("storageclasses", "csinodes", "csidrivers", "volumeattachments")]
OF_CLUSTER += [("/apis/certificates.k8s.io/v1", "certificatesigningrequests"), ("/apis/scheduling.k8s.io/v1", "priorityclasses")]
OF_CLUSTER += [("/apis/apiextensions.k8s.io/v1", "customresourcedefinitions"), ("/apis/apiregistration.k8s.io/v1", "apiservices")]
OF_CLUSTER += [("/apis/networking.k8s.io/v1", "ingressclasses"), ("/apis/node.k8s.io/v1", "runtimeclasses")]
for who in ("bob", "admin", "nobody"):
    for root, resource in OF_CLUSTER:
        for end in ("", "/n", "/n/status"):
            for method in ("GET", "POST", "PUT", "PATCH", "DELETE") if end == "/n" else ("GET", "POST"):
                add(who, method, f"{root}/namespaces/n/{resource}{end}", None if method == "GET" else {})
        add(who, "GET", f"{root}/watch/namespaces/n/{resource}/n?timeoutSeconds=1")
    for end in ("nodes/n/proxy", "nodes/n/proxy/pods", "nodes/n/metrics", "namespaces/n/finalize"):
        add(who, "GET", f"{CORE}/namespaces/n/{end}")

# Paths as nobody writes them.
for who in ("bob", "admin", "nobody"):
    for method, path in (
        ("GET", "/namespaces/n"), ("GET", "/namespaces/n/"), ("GET", "/namespaces/other"), ("GET", "/namespaces"), ("GET", "/namespaces/n/status"),
        ("GET", "/namespaces/n/configmaps"), ("GET", "/namespaces/n/configmaps/p"), ("GET", "/namespaces/n/configmaps/p?watch=true"),
        ("GET", "/namespaces/n/configmaps?watch=true&timeoutSeconds=1"), ("GET", "/namespaces/n/configmaps/p/more"), ("GET", "/namespaces/n/configmaps/p/status"),
        ("GET", "/namespaces/other/configmaps"), ("GET", "/configmaps"), ("GET", "/configmaps/p"), ("GET", "/configmaps?fieldSelector=metadata.namespace%3Dn"),
        ("GET", "/watch/namespaces/n/configmaps?timeoutSeconds=1"), ("GET", "/watch/namespaces/n/configmaps/p?timeoutSeconds=1"),
        ("GET", "/watch/namespaces/other/configmaps/p?timeoutSeconds=1"), ("GET", "/watch/configmaps?timeoutSeconds=1"),
        ("POST", "/watch/namespaces/n/configmaps"), ("DELETE", "/watch/namespaces/n/configmaps/p"), ("DELETE", "/watch/namespaces/n/configmaps"),
        ("GET", "/watch/namespaces/n/pods/p/log"), ("GET", "/watch/namespaces/n/pods/p/proxy"), ("GET", "/watch/namespaces/n/pods/p/proxy/x"),
        ("GET", "/proxy/namespaces/n/pods/p"), ("GET", "/proxy/nodes/n"), ("GET", "/namespaces/n/pods/p/proxy/more"), ("GET", "/nodes/n"), ("GET", "/nodes/n/proxy/pods"),
        ("GET", "/namespaces/n/namespaces/n"), ("GET", "/namespaces/n/nonsense"), ("GET", "/namespaces/n/nonsense/n"), ("GET", "/nonsense/n"),
        ("GET", "/namespaces/n/secrets/%2e%2e"), ("GET", "/namespaces%2Fn%2Fconfigmaps"), ("GET", "/namespaces/n%2Fconfigmaps%2Fp"),
        ("PUT", "/namespaces/n/configmaps"), ("PATCH", "/namespaces/n/configmaps"), ("POST", "/namespaces/n/configmaps/p"), ("POST", "/configmaps"),
        ("GET", "/namespaces/n/pods/p/exec"), ("GET", "/namespaces/n/services/s/proxy/"),
    ):
        add(who, method, CORE + path, None if method == "GET" else {})

# Roles: who changes which, and how.
label = {"metadata": {"labels": {"rbac.authorization.k8s.io/aggregate-to-edit": "true"}}}
for who in ("eve", "root"):
    for name, change in (
        ("all", label), ("weak", label), ("gathers", label), ("weak", {"aggregationRule": GATHERS}), ("gathers", {"aggregationRule": None, "rules": READS}),
        ("all", {"metadata": {"finalizers": ["a/b"]}}), ("all", {"metadata": {"finalizers": None}}), ("all", {"metadata": {"annotations": {"a": "b"}}}),
        ("weak", {"rules": [rule(["get", "delete"], "", "configmaps")]}), ("weak", {"rules": READS}),
    ):
        add(who, "PATCH", f"{RBAC}/clusterroles/{name}", change)
    add(who, "PATCH", f"{RBAC}/clusterrolebindings/of-rootx", label)
    for name, of in (("strong", "all"), ("less", "weak"), ("none", "missing")):
        add(who, "POST", f"{RBAC}/clusterrolebindings", binding(f"{who}-{name}", of, "zoe"))
add("dan", "POST", f"{RBAC}/clusterroles", role("mine", ALL))
add("admin", "POST", f"{RBAC}/clusterroles", role("mine", []))
add("dan", "PATCH", f"{RBAC}/clusterroles/mine", {"rules": ALL})
add("dan", "PATCH", f"{RBAC}/clusterroles/weak", {"rules": ALL})

# Headers with bytes.
me = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
review = {"spec": {"resourceAttributes": {"verb": "list", "resource": "secrets"}}}
for value in ("jürgen", "日本"):
    text = urllib.parse.quote(value)
    for headers in (f"Impersonate-User={text}", f"Impersonate-User=zoe Impersonate-Group={text}", f"Impersonate-User=zoe Impersonate-Extra-Scopes={text}", f"Impersonate-User=zoe Impersonate-Uid={text}"):
        add("admin", "GET", f"{CORE}/namespaces/n/secrets", headers=headers)
        add("admin", "POST", me, review, headers)
for name in ("Impersonate-User=zoe", "Impersonate-Group=dev", "Impersonate-Uid=1", "Impersonate-Extra-scopes=x", "Impersonate-Extra-other=x"):
    add("admin", "GET", f"{CORE}/namespaces/n/secrets", headers=name)

# Nodes: their own, another's, and none's.
CSI, LEASE = "/apis/storage.k8s.io/v1/csinodes", "/apis/coordination.k8s.io/v1/namespaces"
CSR = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
named = lambda name, **more: {"metadata": {"name": name}, **more}


def request(name, subject, signer):
    usages = ["digital signature", "server auth" if signer.endswith("serving") else "client auth"]
    return named(name, spec={"request": csr(subject), "signerName": f"kubernetes.io/{signer}", "usages": usages})


for number, subject in enumerate(("/O=system:nodes/CN=system:node:n1", "/O=system:nodes/CN=system:node:n2", "/O=dev/CN=ann", "/O=system:masters/CN=ann",
    "/O=system:nodes/CN=alice/CN=system:node:n1", "/O=system:nodes/CN=system:node:n1/CN=alice", "/O=system:nodes/CN=system:node:n1/CN=system:node:n2")):
    for signer in ("kubelet-serving", "kube-apiserver-client-kubelet", "kube-apiserver-client"):
        add(NODE, "POST", CSR, request(f"r{number}-{signer}", subject, signer))
for who in (NODE, "system:node: system:nodes"):
    for path, body in ((CSI, named("n2", spec={"drivers": []})), (CSI, named("n1", spec={"drivers": []})), (f"{LEASE}/kube-node-lease/leases", named("n2")),
        (f"{LEASE}/kube-system/leases", named("n1")), (f"{CORE}/nodes", named("n3")), (f"{CORE}/namespaces/n/configmaps", named(f"of{len(who)}")),
        (f"{CORE}/namespaces/n/persistentvolumeclaims", named("c")), (f"{CORE}/namespaces/n/secrets", named("c"))):
        add(who, "POST", path, body)
    for path in (f"{CORE}/nodes/n2", f"{CORE}/nodes/n2/status", f"{CSI}/n2", f"{CORE}/namespaces/n/configmaps/p"):
        add(who, "PATCH", path, label)
    for path in (f"{CORE}/nodes", f"{CORE}/nodes/n2", f"{CORE}/nodes/n1/proxy/pods", f"{CORE}/namespaces/n/nodes/n1", f"{CORE}/watch/nodes/n1?timeoutSeconds=1",
        f"{CORE}/watch/pods?fieldSelector=spec.nodeName%3Dn1&timeoutSeconds=1", f"{CORE}/pods?fieldSelector=spec.nodeName%3Dn1", f"{CORE}/secrets"):
        add(who, "GET", path)

print("# Recorded from kube-apiserver 1.36.2 by control/apiserver/tests/rights/record.py; do not edit.")
print("# who\theaders\tmethod\tpath\tbody\tcode\tmessage")
for row in rows:
    code, message = ask(*row)
    print("\t".join([*row, str(code), json.dumps(message, ensure_ascii=False)]), flush=True)
