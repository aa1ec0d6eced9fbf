#!/usr/bin/env python3
"""Asks a kube-apiserver (--authorization-mode=Node,RBAC, NodeRestriction on) what a node may do, and writes its answers.

usage: record.py URL PKI > answers.json      PKI holds admin.{crt,key} (system:masters) and node.{crt,key} (system:node:n1)

The control crate's tests put the same questions to the embedded API (src/api/node_authorizer/tests.rs). `setup` is done
as the administrator, `reviews` are SubjectAccessReviews, `requests` are made one after the other as the node n1, or as
the administrator where `as` says so. `${uid:PATH}` stands for the uid of the object with that path.
"""
import json, re, ssl, sys, time, urllib.error, urllib.request

url, pki = sys.argv[1], sys.argv[2]
NODE = "system:node:n1"


def context(who):
    c = ssl._create_unverified_context()
    c.load_cert_chain(f"{pki}/{who}.crt", f"{pki}/{who}.key")
    return c


contexts = {who: context(who) for who in ("admin", "node")}
uids = {}


def ask(who, method, path, body=None, kind="application/json"):
    data = None if body is None else json.dumps(body)
    if data:
        data = re.sub(r"\$\{uid:([^}]*)\}", lambda m: uid(m[1]), data)
    request = urllib.request.Request(url + path, data and data.encode(), {"Content-Type": kind}, method=method)
    try:
        with urllib.request.urlopen(request, context=contexts[who]) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as answer:
        return answer.code, json.load(answer)


def uid(path):
    if path not in uids:
        uids[path] = ask("admin", "GET", path)[1]["metadata"]["uid"]
    return uids[path]


def told(text):
    for path, value in uids.items():
        text = text.replace(value, "${uid:%s}" % path)
    return text


CORE, APPS = "/api/v1", "/api/v1/namespaces/apps"
ref = lambda name: {"name": name}


def pod(name, node=None, **spec):
    spec.setdefault("containers", [{"name": "c", "image": "i"}])
    if node:
        spec["nodeName"] = node
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


web = pod(
    "web", "n1", serviceAccountName="web", imagePullSecrets=[ref("pull")],
    initContainers=[{"name": "i", "image": "i", "envFrom": [{"secretRef": ref("init")}, {"configMapRef": ref("init")}]}],
    containers=[{"name": "c", "image": "i",
                 "env": [{"name": "S", "valueFrom": {"secretKeyRef": {"name": "env", "key": "k"}}},
                         {"name": "C", "valueFrom": {"configMapKeyRef": {"name": "env", "key": "k"}}}],
                 "envFrom": [{"secretRef": ref("env-from")}, {"configMapRef": ref("env-from")}]}],
    volumes=[{"name": "s", "secret": {"secretName": "volume"}}, {"name": "c", "configMap": ref("volume")},
             {"name": "p", "projected": {"sources": [
                 {"secret": ref("projected")}, {"configMap": ref("projected")},
                 {"serviceAccountToken": {"path": "token"}}, {"serviceAccountToken": {"path": "vault", "audience": "vault"}}]}},
             {"name": "d", "persistentVolumeClaim": {"claimName": "data"}},
             {"name": "scratch", "ephemeral": {"volumeClaimTemplate": {"spec": {
                 "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}}}}])
volume = {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "pv-data"}, "spec": {
    "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "storageClassName": "",
    "claimRef": {"namespace": "apps", "name": "data"},
    "csi": {"driver": "csi.example.com", "volumeHandle": "v",
            "nodePublishSecretRef": {"namespace": "storage", "name": "publish"},
            "nodeStageSecretRef": {"namespace": "storage", "name": "stage"},
            "controllerPublishSecretRef": {"namespace": "storage", "name": "controller"}}}}
claim = lambda name: {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name}, "spec": {
    "accessModes": ["ReadWriteOnce"], "storageClassName": "", "resources": {"requests": {"storage": "1Gi"}}}}
node = lambda name, labels=None: {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels or {}}}
account = lambda name: {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}}

setup = [
    ["POST", CORE + "/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "apps"}}],
    ["POST", CORE + "/nodes", node("n1")],
    ["POST", CORE + "/nodes", node("n2")],
    ["POST", APPS + "/serviceaccounts", account("web")],
    ["POST", APPS + "/serviceaccounts", account("other")],
    ["POST", APPS + "/persistentvolumeclaims", claim("data")],
    ["POST", CORE + "/persistentvolumes", volume],
    ["POST", APPS + "/pods", web],
    ["POST", APPS + "/pods", pod("other", "n2", serviceAccountName="other", imagePullSecrets=[ref("other")])],
    ["POST", APPS + "/pods", pod("pending", imagePullSecrets=[ref("pending")])],
    ["POST", APPS + "/pods", pod("over", "n1", imagePullSecrets=[ref("over")])],
    ["POST", APPS + "/pods", pod("bare", "n1", automountServiceAccountToken=False)],
    ["PATCH", APPS + "/pods/over/status", {"status": {"phase": "Succeeded"}}],
    ["PATCH", APPS + "/pods/web/ephemeralcontainers", {"spec": {"ephemeralContainers": [
        {"name": "e", "image": "i", "envFrom": [{"secretRef": ref("debug")}]}]}}],
    ["POST", "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases",
     {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "n2"}}],
]

READ = ["get", "list", "watch"]
reviews = []


def review(verbs, resource, group="", sub="", namespace="", name="", fields=None, user=NODE, groups=("system:nodes",)):
    for verb in verbs if isinstance(verbs, list) else [verbs]:
        reviews.append({"user": user, "groups": list(groups), "verb": verb, "group": group, "resource": resource, "subresource": sub,
                        "namespace": namespace, "name": name, "fieldSelector": fields or {}})


for resource in ["secrets", "configmaps"]:
    for name in ["pull", "init", "env", "env-from", "volume", "projected", "other", "pending", "over", "debug", "unknown", ""]:
        review(READ, resource, namespace="apps", name=name)
    review(["get"], resource, name="env")
    review(["list", "watch"], resource)
    review(["create", "update", "patch", "delete", "deletecollection"], resource, namespace="apps", name="env")
    review(["get"], resource, sub="status", namespace="apps", name="env")
for name in ["publish", "stage", "controller"]:
    review("get", "secrets", namespace="storage", name=name)
for name in ["data", "web-scratch", "other", ""]:
    review(READ + ["create", "update", "patch", "delete"], "persistentvolumeclaims", namespace="apps", name=name)
    review(["get", "update", "patch"], "persistentvolumeclaims", sub="status", namespace="apps", name=name)
for name in ["pv-data", "other", ""]:
    review(READ + ["create", "update", "patch", "delete"], "persistentvolumes", name=name)
review("get", "persistentvolumes", sub="status", name="pv-data")
for name in ["web", "other", "default", ""]:
    review(READ + ["create", "delete"], "serviceaccounts", namespace="apps", name=name)
    review(["create", "get", "update"], "serviceaccounts", sub="token", namespace="apps", name=name)
for name in ["web", "other", "pending", "over", "unknown", ""]:
    review(["get", "create", "update", "patch", "delete", "deletecollection"], "pods", namespace="apps", name=name)
    review(["list", "watch"], "pods", namespace="apps", name=name)
    for sub in ["status", "eviction", "log", "exec", "binding", "ephemeralcontainers", "resize"]:
        review(["get", "create", "update", "patch"], "pods", sub=sub, namespace="apps", name=name)
for fields in [{"spec.nodeName": "n1"}, {"spec.nodeName": "n2"}, {"spec.nodeName": "n1", "status.phase": "Running"},
               {"metadata.name": "web"}, {"status.phase": "Running"}]:
    review(["list", "watch", "deletecollection", "get"], "pods", fields=fields)
    review(["list", "watch"], "pods", namespace="apps", fields=fields)
for name in ["n1", "n2", ""]:
    review(READ + ["create", "update", "patch", "delete"], "nodes", name=name)
    review(["get", "update", "patch", "delete"], "nodes", sub="status", name=name)
    for namespace in ["kube-node-lease", "default", ""]:
        review(READ + ["create", "update", "patch", "delete", "deletecollection"], "leases", "coordination.k8s.io",
               namespace=namespace, name=name)
    review(READ + ["create", "update", "patch", "delete"], "csinodes", "storage.k8s.io", name=name)
review(["get"], "leases", "coordination.k8s.io", sub="status", namespace="kube-node-lease", name="n1")
review(["list", "watch"], "nodes", fields={"metadata.name": "n1"})
for group, resource, namespace in [
        ("", "services", "apps"), ("", "services", ""), ("", "endpoints", "apps"), ("discovery.k8s.io", "endpointslices", "apps"),
        ("", "namespaces", ""), ("node.k8s.io", "runtimeclasses", ""), ("storage.k8s.io", "csidrivers", ""),
        ("storage.k8s.io", "storageclasses", ""), ("storage.k8s.io", "volumeattachments", ""), ("networking.k8s.io", "networkpolicies", "apps"),
        ("", "replicationcontrollers", "apps"), ("apps", "deployments", "apps"), ("", "limitranges", "apps"), ("resource.k8s.io", "resourceclaims", "apps"),
        ("resource.k8s.io", "resourceslices", ""), ("certificates.k8s.io", "certificatesigningrequests", ""), ("", "events", "apps"),
        ("events.k8s.io", "events", "apps"), ("authentication.k8s.io", "tokenreviews", ""), ("authorization.k8s.io", "subjectaccessreviews", ""),
        ("authorization.k8s.io", "localsubjectaccessreviews", "apps"), ("rbac.authorization.k8s.io", "clusterroles", ""),
        ("certificates.k8s.io", "podcertificaterequests", "apps"), ("certificates.k8s.io", "clustertrustbundles", "")]:
    review(READ + ["create", "update", "patch", "delete", "deletecollection"], resource, group, namespace=namespace, name="x")
    review(["list", "watch", "create"], resource, group, namespace=namespace)
review(["list", "watch", "deletecollection"], "resourceslices", "resource.k8s.io", fields={"spec.nodeName": "n1"})
# The name without the group, and the group without a node's name.
for user, groups in [(NODE, ["system:authenticated"]), ("system:node:", ["system:nodes"]), ("n1", ["system:nodes"]), ("eve", []),
                     ("system:node:n2", ["system:nodes"])]:
    review("get", "secrets", namespace="apps", name="env", user=user, groups=groups)
    review("get", "nodes", name="n1", user=user, groups=groups)
# kube-proxy, whose rights are a role's.
for group, resource in [("", "services"), ("", "endpoints"), ("discovery.k8s.io", "endpointslices"), ("", "nodes"), ("", "events"),
                        ("events.k8s.io", "events"), ("", "pods"), ("", "secrets"), ("networking.k8s.io", "servicecidrs"), ("", "namespaces")]:
    review(READ + ["create", "update", "patch", "delete"], resource, group, namespace="", name="", user="system:kube-proxy", groups=[])

MIRROR = "kubernetes.io/config.mirror"
requests = []


def request(method, path, body=None, kind=None, who="node"):
    requests.append({"as": who, "method": method, "path": path, "body": body,
                     "type": kind or ("application/merge-patch+json" if method == "PATCH" else "application/json")})


def owner(**changes):
    return {"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "${uid:/api/v1/nodes/n1}", "controller": True, **changes}


def mirror(name, owners=None, nodeName="n1", annotations={MIRROR: "hash"}, **spec):
    made = pod(name, nodeName, **spec)
    made["metadata"]["annotations"] = annotations
    made["metadata"]["ownerReferences"] = [owner()] if owners is None else owners
    return made


def create(made):
    request("POST", APPS + "/pods", made)


create(mirror("m"))
create(mirror("plain", annotations={}))
create(mirror("far", nodeName="n2"))
create(mirror("nowhere", nodeName=None))
create(mirror("orphan", owners=[]))
create(mirror("two", owners=[owner(), owner(kind="Pod", controller=False)]))
create(mirror("foreign", owners=[owner(name="n2")]))
create(mirror("kind", owners=[owner(kind="Pod")]))
create(mirror("version", owners=[owner(apiVersion="v2")]))
create(mirror("control", owners=[owner(controller=False)]))
create(mirror("block", owners=[owner(blockOwnerDeletion=True)]))
create(mirror("noblock", owners=[owner(blockOwnerDeletion=False)]))
create(mirror("uid", owners=[owner(uid="00000000-0000-4000-8000-000000000000")]))
create(mirror("account", serviceAccountName="web"))
create(mirror("pull", imagePullSecrets=[ref("env")]))
create(mirror("secret", volumes=[{"name": "v", "secret": {"secretName": "env"}}]))
create(mirror("env", containers=[{"name": "c", "image": "i", "envFrom": [{"secretRef": ref("env")}]}]))
create(mirror("map", containers=[{"name": "c", "image": "i", "envFrom": [{"configMapRef": ref("env")}]}]))
create(mirror("mapvol", volumes=[{"name": "v", "configMap": ref("env")}]))
create(mirror("claim", volumes=[{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]))
create(mirror("ephemeral", volumes=[{"name": "scratch", "ephemeral": {"volumeClaimTemplate": {"spec": {
    "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}}}}]))
create(mirror("token", volumes=[{"name": "v", "projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}}]))
create(mirror("projected", volumes=[{"name": "v", "projected": {"sources": [{"secret": ref("env")}]}}]))
create(mirror("downward", volumes=[{"name": "v", "downwardAPI": {"items": [{"path": "n", "fieldRef": {"fieldPath": "metadata.name"}}]}}]))
create(mirror("host", volumes=[{"name": "v", "hostPath": {"path": "/"}}]))
request("GET", APPS + "/pods/m")
request("GET", APPS + "/pods/other")
request("GET", APPS + "/pods/gone")
request("PATCH", APPS + "/pods/m", {"metadata": {"labels": {"a": "b"}}})
request("PUT", APPS + "/pods/m", mirror("m"))
request("PATCH", APPS + "/pods/web/status", {"status": {"phase": "Running"}})
request("PATCH", APPS + "/pods/web/status", {"metadata": {"labels": {"a": "b"}}, "status": {"phase": "Running"}})
request("PATCH", APPS + "/pods/web/status", {"metadata": {"annotations": {"a": "b"}}})
request("PATCH", APPS + "/pods/other/status", {"status": {"phase": "Running"}})
request("PATCH", APPS + "/pods/pending/status", {"status": {"phase": "Running"}})
request("PATCH", APPS + "/pods/gone/status", {"status": {"phase": "Running"}})
request("DELETE", APPS + "/pods/gone")
request("DELETE", APPS + "/pods/other")
request("DELETE", APPS + "/pods/pending")
request("DELETE", APPS + "/pods")
evict = lambda name, inner=None: {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": inner or name, "namespace": "apps"}}
request("POST", APPS + "/pods/other/eviction", evict("other"))
request("POST", APPS + "/pods/gone/eviction", evict("gone"))
request("POST", APPS + "/pods/web/eviction", evict("web", "other"))
request("POST", APPS + "/pods/over/eviction", evict("over"))
request("GET", APPS + "/pods/over/log")
request("PATCH", APPS + "/pods/web/ephemeralcontainers", {"spec": {"ephemeralContainers": [{"name": "x", "image": "i"}]}})
request("POST", APPS + "/pods/pending/binding", {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "pending"}, "target": {"kind": "Node", "name": "n1"}})

request("POST", CORE + "/nodes", node("n3"))
request("POST", CORE + "/nodes", node("n1"))
request("GET", CORE + "/nodes/n2")
request("GET", CORE + "/nodes")
request("GET", CORE + "/nodes?fieldSelector=metadata.name%3Dn1")
request("GET", CORE + "/nodes?fieldSelector=metadata.name%3Dn2")
request("GET", CORE + "/pods")
request("GET", CORE + "/pods?fieldSelector=spec.nodeName%3Dn1")
request("GET", CORE + "/pods?fieldSelector=spec.nodeName%3Dn2")
request("GET", APPS + "/secrets?fieldSelector=metadata.name%3Denv")
request("GET", APPS + "/secrets?fieldSelector=metadata.name%3Dother")
request("GET", APPS + "/secrets?fieldSelector=metadata.name!%3Dother")
request("GET", APPS + "/configmaps?fieldSelector=metadata.name%3Dvolume%2Cmetadata.namespace%3Dapps")
patch = lambda name, body, sub="": request("PATCH", f"{CORE}/nodes/{name}{sub}", body)
patch("n2", {"metadata": {"annotations": {"a": "b"}}})
patch("n2", {"status": {"phase": "Running"}}, "/status")
patch("n1", {"metadata": {"annotations": {"a": "b"}}})
patch("n1", {"status": {"phase": "Running"}}, "/status")
patch("n1", {"spec": {"taints": [{"key": "k", "effect": "NoSchedule"}]}})
patch("n1", {"spec": {"unschedulable": True}})
patch("n1", {"spec": {"unschedulable": None}})
patch("n1", {"metadata": {"ownerReferences": [owner(kind="Node", name="n2", uid="${uid:/api/v1/nodes/n2}")]}})
patch("n1", {"spec": {"configSource": {"configMap": {"namespace": "a", "name": "b", "kubeletConfigKey": "c"}}}})
LABELS = ["kubernetes.io/hostname", "kubernetes.io/os", "kubernetes.io/arch", "beta.kubernetes.io/os", "beta.kubernetes.io/instance-type",
          "node.kubernetes.io/instance-type", "topology.kubernetes.io/region", "failure-domain.beta.kubernetes.io/zone",
          "kubelet.kubernetes.io/x", "sub.kubelet.kubernetes.io/x", "node.kubernetes.io/x", "sub.node.kubernetes.io/x", "example.com/x", "plain",
          "kubernetes.io/x", "k8s.io/x", "sub.k8s.io/x", "sub.kubernetes.io/x", "node-role.kubernetes.io/worker", "node-restriction.kubernetes.io/x",
          "sub.node-restriction.kubernetes.io/x", "topology.kubernetes.io/x", "xkubernetes.io/x"]
for label in LABELS:
    patch("n1", {"metadata": {"labels": {label: "v"}}})
    patch("n1", {"metadata": {"labels": {label: "w"}}}, "/status")
request("PATCH", CORE + "/nodes/n1", {"metadata": {"labels": {"node-role.kubernetes.io/control-plane": ""}}}, who="admin")
patch("n1", {"metadata": {"labels": {"node-role.kubernetes.io/control-plane": None}}})
patch("n1", {"metadata": {"labels": {"node-restriction.kubernetes.io/a": "", "node-role.kubernetes.io/b": ""}}})
request("DELETE", CORE + "/nodes/n1")
request("DELETE", CORE + "/nodes/n1", who="admin")
request("POST", CORE + "/nodes", node("n1", {"sub.k8s.io/x": "", "kubernetes.io/x": "", "example.com/x": ""}))
request("POST", CORE + "/nodes", {**node("n1"), "spec": {"configSource": {"configMap": {"namespace": "a", "name": "b", "kubeletConfigKey": "c"}}}})
request("POST", CORE + "/nodes", {**node("n1", {"kubernetes.io/os": "linux"}), "spec": {"taints": [{"key": "k", "effect": "NoSchedule"}]}})

LEASES = "/apis/coordination.k8s.io/v1/namespaces/%s/leases"
lease = lambda name: {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": name}}
request("POST", LEASES % "kube-node-lease", lease("n3"))
request("POST", LEASES % "kube-system", lease("n1"))
request("POST", LEASES % "kube-node-lease", lease("n1"))
request("PATCH", LEASES % "kube-node-lease" + "/n1", {"spec": {"holderIdentity": "n1"}})
request("PATCH", LEASES % "kube-node-lease" + "/n2", {"spec": {"holderIdentity": "n1"}})
request("GET", LEASES % "kube-node-lease")
request("DELETE", LEASES % "kube-node-lease" + "/n2")
request("DELETE", LEASES % "kube-node-lease" + "/n1")

request("PATCH", APPS + "/persistentvolumeclaims/data/status", {"status": {"capacity": {"storage": "1Gi"}}})
request("PATCH", APPS + "/persistentvolumeclaims/data/status", {"status": {"accessModes": ["ReadOnlyMany"]}})
request("PATCH", APPS + "/persistentvolumeclaims/data/status", {"metadata": {"labels": {"a": "b"}}})
request("PATCH", APPS + "/persistentvolumeclaims/data", {"metadata": {"labels": {"a": "b"}}})
request("GET", APPS + "/persistentvolumeclaims/data")


def token(account, ref=None, audiences=None):
    spec = {"audiences": audiences} if audiences is not None else {}
    if ref:
        spec["boundObjectRef"] = ref
    request("POST", f"{APPS}/serviceaccounts/{account}/token", {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec})


bound = {"apiVersion": "v1", "kind": "Pod", "name": "web", "uid": "${uid:/api/v1/namespaces/apps/pods/web}"}
token("web", bound)
token("web", bound, [])
token("web", bound, ["vault"])
token("web", bound, ["https://kubernetes.default.svc"])
token("web", bound, ["other"])
token("web", bound, ["vault", "other"])
token("web", bound, [""])
token("web")
token("web", {**bound, "kind": "Secret"})
token("web", {**bound, "apiVersion": "v2"})
token("web", {**bound, "name": ""})
token("web", {**bound, "name": "gone"})
token("web", {**bound, "uid": ""})
token("web", {k: v for k, v in bound.items() if k != "uid"})
token("web", {**bound, "uid": "00000000-0000-4000-8000-000000000000"})
token("web", {**bound, "name": "other", "uid": "${uid:/api/v1/namespaces/apps/pods/other}"})
token("other", bound)
token("default", bound)
bare = {**bound, "name": "bare", "uid": "${uid:/api/v1/namespaces/apps/pods/bare}"}
token("default", bare)
token("default", bare, ["other"])
token("web", bare, ["other"])
request("DELETE", APPS + "/pods/m?gracePeriodSeconds=0")
request("GET", APPS + "/secrets/env")
request("DELETE", APPS + "/pods/web?gracePeriodSeconds=0")
request("GET", APPS + "/secrets/env")
request("GET", APPS + "/pods/web")
request("DELETE", APPS + "/pods/web")

for method, path, body in setup:
    kind = "application/strategic-merge-patch+json" if method == "PATCH" else "application/json"
    if "/pods" in path and method == "POST":
        time.sleep(0.5)  # the controller makes the namespace's default account
    code, answer = ask("admin", method, path, body, kind)
    assert code in (200, 201), (path, answer)
time.sleep(2)  # the authorizer follows its informers
for one in reviews:
    selector = {"requirements": [{"key": k, "operator": "In", "values": [v]} for k, v in one["fieldSelector"].items()]}
    attributes = {k: one[k] for k in ("verb", "group", "resource", "subresource", "namespace", "name")}
    if one["fieldSelector"]:
        attributes["fieldSelector"] = selector
    code, answer = ask("admin", "POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", {
        "apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview",
        "spec": {"user": one["user"], "groups": one["groups"], "resourceAttributes": attributes}})
    assert code == 201, answer
    one["allowed"], one["reason"] = answer["status"]["allowed"], answer["status"].get("reason", "")
for one in requests:
    code, answer = ask(one["as"], one["method"], one["path"], one["body"], one["type"])
    one["code"], one["message"] = code, told(answer.get("message", "")) if code >= 400 else ""
    if one["method"] in ("POST", "DELETE") and "/nodes" in one["path"] and one["as"] + one["method"] != "node":
        uids.pop("/api/v1/nodes/n1", None) if code < 300 and one["method"] == "POST" else None
    time.sleep(0.05 if code >= 400 else 0.4)  # NodeRestriction looks at its informers too
    # What follows is a difference as Go prints it.
    one["message"] = one["message"].split(": @@")[0]


def line(item):
    kept = item if isinstance(item, list) else {k: v for k, v in item.items() if v not in ("", None, {}, NODE, ["system:nodes"])}
    return json.dumps(kept, sort_keys=True, separators=(",", ":"))


lines = lambda items: "[\n" + ",\n".join(line(i) for i in items) + "\n]"
print('{"setup": %s,\n"reviews": %s,\n"requests": %s}' % (lines(setup), lines(reviews), lines(requests)))
