"""Case, toleration, taint, whether it is tolerated. Cases with operators of numbers, whose gate is off, are left out.
"""
from ..tests import dictionaries, Test, to_json

SOURCE = "staging/src/k8s.io/api/core/v1/toleration_test.go"


def rows():
    test = Test(SOURCE, beside=["types.go", "toleration.go"])
    for row in dictionaries(test.table("TestTolerationToleratesTaint", "testCases")):
        if not row["enableTaintTolerationComparisonOperatorsFG"]:
            yield ["TestTolerationToleratesTaint", row["description"], to_json(row["toleration"]), to_json(row["taint"]), row["expectTolerated"]]
