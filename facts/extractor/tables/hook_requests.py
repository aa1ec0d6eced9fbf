"""Case, address of the pod, handler, URL, headers. The container has the port `quux`, 8080.
"""
from ..tests import dictionaries, get, Test, to_json

SOURCE = "pkg/kubelet/lifecycle/handlers_test.go"


def rows():
    test = Test(SOURCE, beside=())
    for row in dictionaries(test.table("TestRunHTTPHandler", "tests")):
        expected = row["Expected"]
        yield ["TestRunHTTPHandler", row["Name"], row["PodIP"], to_json(row["HTTPGet"]), get(expected, "NewURL"), get(expected, "NewHeader")]
