"""TestTerminatePod and its kin: case, spec, status, and of containers what they end as: `unknown`, `waiting`, `kept` or an exit code.
TestTerminatePod_EnsurePodPhaseIsTerminal: case, phase, phase once the pod has ended. TestStatusNormalizationEnforcesMaxBytes: bytes of
the messages of init containers, containers and ephemeral ones, and the least and the most that may be left of one.
TestUpdateLastTransitionTime: case, status of a condition before and now (null: there is none), whether its time is another one.
TestMergePodStatus: case, whether containers may run, status before, status of the node's own making, and what becomes of both.
"""
from ..tests import dictionaries, get, Scope, Struct, Test, to_json, within

SOURCE = "pkg/kubelet/status/status_manager_test.go"
LISTS = ("InitContainerStatuses", "ContainerStatuses")


def marked(status):
    """A status whose states are the names of their containers, so that they are known wherever a test passes them on."""
    made = Struct(status.of, dict(status.fields))
    for field in LISTS:
        made.fields[field] = [
            Struct(one.of, {**one.fields, "State": Struct(get(one, "State").of, {"Waiting": get(one, "Name")})}) for one in get(status, field) or []
        ]
    return made


def ended(test, function):
    """What is expected of containers by functions, which are called with their states."""
    scope = test.scope(function, "testCases")
    for at, row in enumerate(dictionaries(scope.find("testCases"))):
        if not row["expectFn"]:
            continue
        found = []
        note = lambda what: lambda _, state, *code: found.append([get(state, "Waiting"), code[0] if code else what])
        outer = row["expectFn"].scope
        outer.names.update(expectTerminatedUnknown=note("unknown"), expectTerminated=note(None), expectWaiting=note("waiting"))
        pod = row["pod"].value
        test.run_block(row["expectFn"].body, inner(outer, status=marked(get(pod, "Status"))))
        if found:
            yield [function, row["name"], to_json(get(pod, "Spec")), to_json(get(pod, "Status")), found]


def inner(outer, **names):
    scope = Scope(outer)
    scope.names.update(t=None, **names)
    return scope


def compared(test, function):
    """What is expected of containers by comparisons with what was there before."""
    scope = test.run(function)
    first, found = scope.find("firstStatus"), []
    for call in within(test.function(function)[4], "call"):
        if call[1] != ("member", ("name", "reflect"), "DeepEqual"):
            continue
        (_, (_, (_, _, field), (_, at)), _), expected = call[2]
        name = get(get(first, field)[at], "Name")
        found.append([name, "unknown" if expected == ("name", "expectUnknownState") else "kept"])
    status = {key: value for key, value in to_json(first).items() if key.endswith("tatuses")}
    yield [function, "", to_json(get(scope.find("testPod").value, "Spec")), status, found]


def rows():
    natives = {"k8s.io/kubernetes/test/utils/ktesting.NewTestContext": lambda _: [None, None], "math/rand.Int": lambda: 0}
    test = Test(SOURCE, natives, None)
    for function in ("TestTerminatePod", "TestTerminatePodWaiting"):
        yield from compared(test, function)
    yield from ended(test, "TestTerminatePod_DefaultUnknownStatus")
    function = "TestTerminatePod_EnsurePodPhaseIsTerminal"
    for case, row in dictionaries(test.table(function, "testCases")).items():
        yield [function, case, get(row["status"], "Phase"), get(row["wantStatus"], "Phase")]
    function = "TestStatusNormalizationEnforcesMaxBytes"
    status = test.run(function).find("podStatus")
    length = lambda one: len(get(get(get(one, "LastTerminationState"), "Terminated"), "Message"))
    lengths = [[length(one) for one in get(status, field)] for field in (*LISTS, "EphemeralContainerStatuses")]
    bounds = next(tree for tree in within(test.function(function)[4], "binary") if tree[1] == "||")
    yield [function, *lengths, bounds[2][3][1], bounds[3][3][1]]
    function = "TestUpdateLastTransitionTime"
    scope = test.scope(function)
    loop = next(s for s in test.function(function)[4] if s[0] == "each")
    for case, row in dictionaries(test.evaluator.value(loop[3], scope)).items():
        before, now = [row[field] and get(row[field], "Status") for field in ("oldCondition", "condition")]
        yield [function, case, before, now, row["expectUpdate"]]
    function = "TestMergePodStatus"
    for row in dictionaries(test.table(function, "useCases")):
        one = lambda: test.call(test.evaluator.name("getPodStatus", Scope()))
        before, own = test.call(row["oldPodStatus"], one()), test.call(row["newPodStatus"], one())
        yield [function, row["desc"], row["hasRunningContainers"], to_json(before), to_json(own), to_json(row["expectPodStatus"])]
