"""Case, pod, the pods that are on the node, the node, the node as it is when it is asked for again (null: it is not), and why the pod does
not fit: a predicate, or a resource with what is requested and used of it, and how much there is.
"""
from ..tests import dictionaries, get, Test, to_json

SOURCE = "pkg/kubelet/lifecycle/predicate_test.go"


def why(reason):
    if reason.value.of.name == "PredicateFailureError":
        return [get(reason, "PredicateName")]
    return [get(reason, field) for field in ("ResourceName", "Requested", "Used", "Capacity")]


def rows():
    natives = {"k8s.io/kubernetes/pkg/scheduler/framework.NewNodeInfo": lambda *pods: list(pods)}
    test = Test(SOURCE, natives, ["predicate.go"])
    for row in dictionaries(test.table("TestGeneralPredicates", "resourceTests")):
        yield [
            "TestGeneralPredicates", row["name"], to_json(row["pod"]), [to_json(pod) for pod in row["nodeInfo"] or []], to_json(row["cachedNode"]),
            row["syncNode"] and to_json(row["syncNode"]), [why(reason) for reason in row["reasons"] or []],
        ]
