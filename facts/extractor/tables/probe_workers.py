"""TestDoProbe: probe, its initial delay, phase (null: there is no status), name, state and start of the container, whether the pod is
being deleted, whether it is probed on, and result (null: none). Other functions with `TestDoProbe`: probe, case, spec, states of
containers (name, state, exit code), whether it is probed on. All others: probe, its spec, steps: container, for how many seconds it
has run, whether it has started, what the probe says, and the result then; a first step of two cells is the result before.
"""
from ..natives import METHODS, NOW, pointer, SECOND
from ..tests import dictionaries, get, Scope, Struct, Test, to_json

SOURCE = "pkg/kubelet/prober/worker_test.go"
SEQUENCES = (
    "TestInitialDelay", "TestFailureThreshold", "TestSuccessThreshold", "TestStartupProbeSuccessThreshold", "TestStartupProbeFailureThreshold",
    "TestOnHoldOnLivenessOrStartupCheckFailure", "TestResultRunOnLivenessCheckFailure", "TestResultRunOnStartupCheckFailure",
    "TestLivenessProbeDisabledByStarted", "TestStartupProbeDisabledByStarted",
)
KINDS = ("liveness", "readiness", "startup")
RESULTS = {-1: "unknown", 0: "success", 1: "failure"}
METHODS["int", "String"] = lambda number: KINDS[number]


class Statuses:
    """The manager of statuses, and what it was told last."""

    status = None


class Results:
    pass


def struct(name, **fields):
    """A value with fields that are not those of a type."""
    of = type("", (), {"name": name, "package": None, "file": None, "tree": ("struct", [(field, None, "", False) for field in fields])})
    return Struct(of, fields)


workers = []


def worker(test):
    defaults = test.assigned("setTestProbe", "defaults")

    def new(manager, kind, spec):
        known = {**to_json(spec)}
        probe = {name[0].lower() + name[1:]: known.get(name[0].lower() + name[1:], value) for name, value in defaults.items()}
        made = struct("worker", kind=KINDS[kind], probe=known | probe, manager=manager, pod=struct("pod", UID=""), onHold=False, resultRun=0,
                      containerID=None, resultsManager=Results(), steps=[])
        workers.append(made)
        return made

    return new


def probed(held, _):
    status = get(get(held, "manager"), "statusManager").status
    container = get(status, "ContainerStatuses")[0]
    since = (NOW - get(get(get(container, "State"), "Running").value, "StartedAt").nanos) // SECOND
    says = get(get(get(get(held, "manager"), "prober"), "exec"), "result")
    get(held, "steps").append([get(container, "ContainerID"), since, get(container, "Started").value, says, None])
    return True


def expect(_, held, result, *__):
    get(held, "steps")[-1][-1] = RESULTS[result]


def started(statuses, _, __, ___, value):
    get(statuses.status, "ContainerStatuses")[0].fields["Started"].value = value


METHODS.update({
    ("worker", "doProbe"): probed,
    ("Results", "Set"): lambda _, __, result, ___: get(workers[-1], "steps").append(["before", RESULTS[result]]),
    ("Statuses", "SetPodStatus"): lambda statuses, _, __, status: setattr(statuses, "status", status),
    ("Statuses", "SetContainerStartup"): started,
})


def sequences(test):
    for function in SEQUENCES:
        workers.clear()
        test.run(function)
        for held in workers:
            yield [function, get(held, "kind"), get(held, "probe"), get(held, "steps")]


def state(container):
    held = to_json(get(container, "State"))
    name = next(iter(held), None)
    return [get(container, "Name"), name, held[name].get("exitCode", 0) if name == "terminated" else None]


def each_kind(test, function):
    """The names in a loop over all probes."""
    scope = test.scope(function)
    loop = next(s for s in test.function(function)[4] if s[0] == "each")
    for kind in range(3):
        inner = Scope(scope)
        inner.names[loop[1][1][1]] = kind
        test.run_block([s for s in loop[4] if s[0] != "each"], inner)
        yield kind, inner


def rows():
    natives = {
        "newTestManager": lambda: pointer(struct("manager", prober=struct("prober", exec=struct("exec", result="success")), statusManager=Statuses())),
        "setTestProbe": lambda *_: None, "expectResult": expect, "expectContinue": lambda *_: None,
        "k8s.io/kubernetes/test/utils/ktesting.NewTestContext": lambda _: [None, None],
        "k8s.io/apiserver/pkg/util/feature.DefaultFeatureGate": None,
        "k8s.io/component-base/featuregate/testing.SetFeatureGatesDuringTest": lambda *_: None, "TestDoProbe": lambda _: None,
        "TestDoProbeWithContainerRestartRules": lambda _: None,
    }
    test = Test(SOURCE, natives, None)
    natives["newTestWorker"] = worker(test)
    for kind, scope in each_kind(test, "TestDoProbe"):
        for row in dictionaries(scope.find("tests")):
            status = row["podStatus"]
            found = [None] * 4
            if status:
                container = get(status.value, "ContainerStatuses")[0]
                found = [get(status.value, "Phase"), *state(container)[:2], get(container, "Started").value]
            goes_on = bool((row["expectContinue"] or {}).get(KINDS[kind]))
            result = RESULTS[row["expectedResult"]] if row["expectSet"] else None
            yield ["TestDoProbe", KINDS[kind], get(row["probe"], "InitialDelaySeconds"), *found, row["setDeletionTimestamp"], goes_on, result]
    function = "TestDoProbeWithContainerRestartRules"
    for kind, scope in each_kind(test, function):
        for row in dictionaries(scope.find("testcases")):
            pod = test.call(test.evaluator.name("getTestPod", Scope()))
            spec = to_json(get(pod, "Spec"))
            spec["containers"][0].update(to_json(row["container"]) | {"name": spec["containers"][0]["name"]})
            states = [state(one) for one in get(row["podStatus"], "ContainerStatuses")]
            yield [function, KINDS[kind], row["name"], spec, states, row["expectContinue"]]
    function = "TestDoProbeWithContainerRestartAllContainers"
    for kind, scope in each_kind(test, function):
        for row in dictionaries(scope.find("testcases")):
            spec, status = to_json(get(test.call(row["pod"]), "Spec")), test.call(row["podStatus"])
            yield [function, KINDS[kind], row["name"], spec, [state(one) for one in get(status, "ContainerStatuses")], row["expectContinue"]]
    yield from sequences(test)
