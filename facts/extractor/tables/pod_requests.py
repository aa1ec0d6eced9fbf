"""TestPodResourceRequests, TestPodLevelResourceRequests: case, spec of a pod, its requests. TestAggregateContainerRequestsAndLimits:
case, spec, requests and limits of its containers. Cases with options, or with what is allocated in a status, are left out.
"""
from ..tests import dictionaries, get, Test, to_json

SOURCE = "staging/src/k8s.io/component-helpers/resource/helpers_test.go"


def is_plain(options, *statuses):
    return not any(options.fields.values()) and not any(statuses)


def spec(row):
    made = {"containers": [to_json(c) for c in row["containers"] or []], "initContainers": [to_json(c) for c in row["initContainers"] or []]}
    for name, field in (("overhead", "overhead"), ("podResources", "resources")):
        if row.get(name) and to_json(row[name]):
            made[field] = to_json(row[name])
    for at, container in enumerate(made["containers"] + made["initContainers"]):
        container.setdefault("name", f"c{at}")
    return made


def rows():
    test = Test(SOURCE, beside=None)
    for row in dictionaries(test.table("TestPodResourceRequests", "testCases")):
        if is_plain(row["options"], row["podResizeStatus"], row["initContainerStatuses"], row["containerStatus"]):
            yield ["TestPodResourceRequests", row["description"], spec(row), to_json(row["expectedRequests"] or {})]
    for row in dictionaries(test.table("TestPodLevelResourceRequests", "testCases")):
        if is_plain(row["opts"]):
            yield ["TestPodLevelResourceRequests", row["name"], spec(row), to_json(row["expectedRequests"] or {})]
    for row in dictionaries(test.table("TestAggregateContainerRequestsAndLimits", "cases")):
        if is_plain(row["options"], row["containerStatuses"], row["initContainerStatuses"]):
            yield ["TestAggregateContainerRequestsAndLimits", row["name"], spec(row), to_json(row["expectedRequests"] or {}), to_json(row["expectedLimits"] or {})]
