"""Spec, phase, statuses of containers (null: unknown; name, whether it is ready and has started, and its state), earlier conditions,
and type, status, reason and message of the condition; where a test does not look at a part, null.
TestGeneratePodReadyToStartContainersCondition: case, state of the sandbox, whether it has an address, status.
TestGenerateAllContainersRestartingCondition: case, spec, phase, states of containers (name, `running` or exit code), whether the
condition was true before, status, reason, message.
"""
from ..tests import dictionaries, get, Test, to_json

SOURCE = "pkg/kubelet/status/generate_test.go"


def status(found):
    state = to_json(get(found, "State"))
    started = get(found, "Started")
    return [get(found, "Name"), get(found, "Ready"), started.value if started else None, next(iter(state), None)]


def statuses(found):
    return None if found is None else [status(one) for one in found]


def loop_of(test, name):
    return next(s for s in test.function(name)[4] if s[0] == "each")


def rows():
    test = Test(SOURCE, beside=None)
    for name in ("TestGenerateContainersReadyCondition", "TestGeneratePodReadyCondition", "TestGeneratePodInitializedCondition"):
        for row in dictionaries(test.table(name, "tests")):
            expected = row.get("expectReady") or row["expected"]
            of_initialized = name == "TestGeneratePodInitializedCondition"
            told = [get(expected, field) for field in ("Type", "Status", "Reason", "Message")]
            if of_initialized:
                # Its type is set by the loop, which does not look at the message.
                told = ["Initialized", told[1], told[2], None]
            spec, before = to_json(row["spec"]), [to_json(one) for one in row.get("conditions") or []]
            yield [name, spec, row["podPhase"], statuses(row["containerStatuses"]), before, *told]
    name = "TestGeneratePodReadyToStartContainersCondition"
    scope = test.scope(name)
    for case, row in dictionaries(test.evaluator.value(loop_of(test, name)[3], scope)).items():
        sandboxes = get(row["status"], "SandboxStatuses") or []
        network = get(sandboxes[0], "Network") if sandboxes else None
        state = "none" if not sandboxes else "ready" if get(sandboxes[0], "State") == 0 else "not ready"
        yield [name, case, state, bool(network and get(network, "Ip")), get(row["expected"], "Status")]
    name = "TestGenerateAllContainersRestartingCondition"
    scope = test.scope(name)
    spec = to_json(get(scope.find("defaultPod"), "Spec"))
    for case, row in dictionaries(test.evaluator.value(loop_of(test, name)[3], scope)).items():
        found = get(row["podStatus"], "ContainerStatuses") if row["podStatus"] else []
        states = [[get(one, "Name"), "running" if get(one, "State") == "running" else get(one, "ExitCode")] for one in found or []]
        before = bool(row["oldAPIStatus"] and get(row["oldAPIStatus"], "Conditions"))
        yield [name, case, spec, row["phase"], states, before, *(get(row["expected"], field) for field in ("Status", "Reason", "Message"))]
