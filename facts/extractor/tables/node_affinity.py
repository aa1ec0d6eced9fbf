"""TestNodeSelectorMatch: case, selector, node, whether it matches, or `refused`. TestPodMatchesNodeSelectorAndAffinityTerms: case,
spec of a pod, node, whether they match, or `refused`.
"""
from ..natives import METHODS
from ..tests import dictionaries, get, Test, to_json

SOURCE = "staging/src/k8s.io/component-helpers/scheduling/corev1/nodeaffinity/nodeaffinity_test.go"


def node(found):
    return to_json(found) if found else None


def rows():
    METHODS["list", "ToAggregate"] = list
    test = Test(SOURCE, beside=None)
    for row in dictionaries(test.table("TestNodeSelectorMatch", "tests")):
        if row["node"]:
            yield ["TestNodeSelectorMatch", row["name"], to_json(row["nodeSelector"]), node(row["node"]), "refused" if row["wantErr"] else row["wantMatch"]]
    for row in dictionaries(test.table("TestPodMatchesNodeSelectorAndAffinityTerms", "tests")):
        spec = to_json(get(row["pod"], "Spec"))
        yield ["TestPodMatchesNodeSelectorAndAffinityTerms", row["name"], spec, {"metadata": {"name": row["nodeName"], "labels": row["labels"] or {}}}, row["want"]]
