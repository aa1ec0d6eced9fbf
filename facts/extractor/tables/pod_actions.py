"""Case, pod, sandboxes (state, attempt, whether it has an address), containers in the order of their ends (name, state, exit
code, whether their spec has changed since), what probes say (kind, container, result), then whether the pod is killed and a
sandbox created, and the names of containers that are to be killed, of init containers, containers and ephemeral ones to start.
"""
from ..model import Type
from ..tests import dictionaries, get, Scope, Struct, Test, to_json, Unknown
from ..natives import METHODS

SOURCE = "pkg/kubelet/kuberuntime/kuberuntime_manager_test.go"
FUNCTIONS = ["TestComputePodActions"] + [
    f"TestComputePodActionsWith{which}" for which in ("InitContainers", "RestartableInitContainers", "InitAndEphemeralContainers", "ContainerRestartRules")
]
RESULTS = {-1: "unknown", 0: "success", 1: "failure"}


class Results:
    def __init__(self, kind):
        self.kind, self.held = kind, {}


METHODS["Results", "Set"] = lambda results, key, result, *_: results.held.__setitem__(get(key, "ID"), RESULTS[result])
METHODS["Results", "Remove"] = lambda results, key: results.held.pop(get(key, "ID"), None)


def fingerprint(container):
    """What stands for the hash of a container: what of it makes another one."""
    return f'{get(container, "Name")} {get(container, "Image")}'


def names(containers, indexes):
    return [get((containers or [])[at], "Name") for at in indexes or []]


def prepared(test, loop, scope, name, row):
    """The pod and its status as the test's loop makes them of a row, before it asks for the actions."""
    inner = Scope(scope)
    inner.names.update(desc=name, test=row)
    body = loop[4]
    if body[-1][0] == "expression" and body[-1][1][1] == ("member", ("name", "t"), "Run"):
        body = body[-1][1][2][1][2]
    for statement in body:
        if "computePodActions" in repr(statement):
            return inner.names["pod"], inner.names["status"]
        try:
            getattr(test.evaluator, f"do_{statement[0]}")(statement, inner)
        except Unknown:
            # Gates of features, contexts, and what was actuated of a resize.
            continue


def rows():
    results = [Results("liveness"), Results("startup")]
    test = Test(SOURCE, {"k8s.io/kubernetes/pkg/kubelet/container.HashContainer": fingerprint}, None)
    for function in FUNCTIONS:
        scope = test.scope(function)
        scope.names["m"] = Struct(Type(("struct", []), None), {f"{r.kind}Manager": r for r in results})
        loop = next(s for s in test.function(function)[4] if s[0] == "each")
        table = test.evaluator.value(loop[3], scope)
        for name, struct in table.items():
            row = dictionaries([struct])[0]
            pod, status = prepared(test, loop, scope, name, struct)
            held = [found for found in get(status, "ContainerStatuses") or []]
            ids = {get(get(found, "ID"), "ID"): get(found, "Name") for found in held}
            spec = get(pod, "Spec")
            wanted = {get(c, "Name"): fingerprint(c) for field in ("InitContainers", "Containers") for c in get(spec, field) or []}
            changed = lambda found: get(found, "Hash") not in (0, wanted.get(get(found, "Name")))
            containers = [[get(found, "Name"), get(found, "State"), get(found, "ExitCode"), changed(found)] for found in held]
            sandboxes = [
                ["ready" if get(found, "State") == 0 else "not ready", get(get(found, "Metadata"), "Attempt"), bool(get(found, "Network") and get(get(found, "Network"), "Ip"))]
                for found in get(status, "SandboxStatuses") or []
            ]
            probes = [[r.kind, ids[key], result] for r in results for key, result in r.held.items() if key in ids]
            for found in results:
                found.held.clear()
            actions = row["actions"]
            killed = sorted(ids[dict(key)["ID"]] for key in get(actions, "ContainersToKill") or {})
            ephemeral = [container for container in get(spec, "EphemeralContainers") or []]
            yield [
                function, name, to_json(pod), sandboxes, containers, probes, get(actions, "KillPod"), get(actions, "CreateSandbox"), killed,
                names(get(spec, "InitContainers"), get(actions, "InitContainersToStart")), names(get(spec, "Containers"), get(actions, "ContainersToStart")),
                names([get(e, "EphemeralContainerCommon") for e in ephemeral], get(actions, "EphemeralContainersToStart")),
            ]
