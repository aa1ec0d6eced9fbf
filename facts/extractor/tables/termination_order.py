"""Spec of a pod, for each container the grace period that it may wait in and how long it takes to end once it is stopped, in
seconds, and for how many whole seconds each waits before it is.
"""
from ..natives import SECOND
from ..tests import get, Scope, Test, to_json, within

SOURCE = "pkg/kubelet/kuberuntime/kuberuntime_termination_order_test.go"


def is_call(tree, name):
    return tree[0] == "call" and tree[1][0] == "member" and tree[1][2] == name


def runs(test, body, scope):
    """What each container does: functions of one have its name, one for all has it as its parameter."""
    for function in within(body, "lambda"):
        waits = [call for call in within(function, "call") if is_call(call, "waitForTurn")]
        if waits:
            name, grace = waits[0][2]
            sleeps = [call[2][0] for call in within(function, "call") if is_call(call, "Sleep")]
            lasts = test.evaluator.value(sleeps[0], scope) / SECOND if sleeps else 0
            yield name[1] if name[0] == "literal" else None, grace[1], lasts


def waits(test, body, scope):
    """How long each container waits: a table, or comparisons of variables that hold it."""
    for loop in within(body, "each"):
        if loop[3][0] == "composite":
            return {get(row, "containerName"): get(row, "expectedDelay") for row in test.evaluator.value(loop[3], scope)}
    names = {}
    for assigned in within(body, "assign"):
        calls = [call for call in within(assigned[3], "call") if is_call(call, "waitForTurn")] if assigned[1][0][0] == "name" else []
        if calls and calls[0][2][0][0] == "literal":
            names[assigned[1][0][1]] = calls[0][2][0][1]
    compared = [tree for tree in within(body, "binary") if tree[1] == "!=" and tree[2][0] == "name" and tree[2][1] in names]
    return {names[tree[2][1]]: tree[3][1] for tree in compared}


def rows():
    test = Test(SOURCE, beside=())
    for name in test.package.declared:
        if name.startswith("TestTermination"):
            scope, body = test.scope(name), test.function(name)[4]
            pod = to_json(scope.find("pod"))
            all_containers = [c["name"] for field in ("initContainers", "containers") for c in pod["spec"][field]]
            found = {}
            for of, grace, lasts in runs(test, body, Scope()):
                found.update({container: [grace, lasts] for container in ([of] if of else all_containers)})
            yield [name, pod["spec"], found, waits(test, body, Scope())]
