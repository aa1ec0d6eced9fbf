"""Resource that is low, and the pods in the order in which they are evicted: name, priority, requests of the container, usage.
"""
from ..tests import get, Test, to_json

SOURCE = "pkg/kubelet/eviction/helpers_test.go"
RESOURCES = {
    "TestOrderedByExceedsRequestMemory": "memory", "TestOrderedByExceedsRequestDisk": "ephemeral-storage", "TestOrderedbyDisk": "ephemeral-storage",
    "TestOrderedbyInodes": "inodes", "TestOrderedByPriorityDisk": "ephemeral-storage", "TestOrderedByPriorityInodes": "inodes",
    "TestOrderedByMemory": "memory", "TestOrderedByPriorityMemory": "memory", "TestOrderedByPriorityProcess": "pids",
}


def rows():
    amounts = lambda pod, *all: [to_json(amount) for amount in all]
    natives = {f"newPod{kind}Stats": amounts for kind in ("Memory", "Disk", "Inode", "Process")} | {"orderedBy": lambda *_: None}
    test = Test(SOURCE, natives, None)
    for function, resource in RESOURCES.items():
        scope = test.scope(function)
        # The first loop may be over `expected` itself.
        pods = []
        for pod in scope.find("expected"):
            requests = {}
            for container in get(get(pod, "Spec"), "Containers") or []:
                requests.update(to_json(get(get(container, "Resources"), "Requests") or {}))
            priority = get(get(pod, "Spec"), "Priority")
            pods.append([get(pod, "Name"), priority.value if priority else 0, requests, scope.find("stats")[pod]])
        yield [function, resource, pods]
