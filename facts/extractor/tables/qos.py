"""Pod's spec, its class, whether resources of whole pods count.
"""
from ..tests import dictionaries, get, Test, to_json

SOURCE = "pkg/apis/core/v1/helper/qos/qos_test.go"


def rows():
    test = Test(SOURCE, beside=())
    for row in dictionaries(test.table("TestComputePodQOS", "testCases")):
        yield ["TestComputePodQOS", to_json(get(row["pod"], "Spec")), row["expected"], row["podLevelResourcesEnabled"]]
