"""Case, spec, states of containers (name, `running`, `started`, `waiting` or `exited`, exit code of this run or, of a waiting
one, of the last), whether the pod is terminal, whether it has run, phase.
"""
from ..tests import dictionaries, get, Test, to_json

SOURCE = "pkg/kubelet/kubelet_pods_test.go"


def told(status):
    state, last = get(status, "State"), get(status, "LastTerminationState")
    if get(state, "Running"):
        started = get(status, "Started")
        return [get(status, "Name"), "started" if started and started.value else "running", None]
    if get(state, "Terminated"):
        return [get(status, "Name"), "exited", get(get(state, "Terminated"), "ExitCode")]
    ended = get(last, "Terminated")
    return [get(status, "Name"), "waiting", get(ended, "ExitCode") if ended else None]


def rows():
    test = Test(SOURCE, beside=())
    for name in test.package.declared:
        if not name.startswith("TestPodPhase") or "RestartAllContainers" in name:
            continue
        for row in dictionaries(test.table(name, "tests")):
            pod = row.get("pod")
            statuses = row.get("statuses")
            if statuses is None and pod:
                status = get(pod, "Status")
                statuses = [*(get(status, "InitContainerStatuses") or []), *(get(status, "ContainerStatuses") or [])]
            spec = get(pod, "Spec") if pod else row["spec"]
            case = row.get("test", row.get("name"))
            phase = row.get("status", row.get("expectedPhase"))
            initialized = "podHasInitialized" in row and row["podHasInitialized"]
            yield [name, case, to_json(spec), [told(found) for found in statuses or []], bool(row.get("podIsTerminal")), bool(initialized), phase]
