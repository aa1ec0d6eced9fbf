"""doExpansionTest, of TestMapping and TestMappingDual: text, and what it becomes; the variables are in the first row.
"""
from ..tests import dictionaries, Test

SOURCE = "third_party/forked/golang/expansion/expand_test.go"


def rows():
    test = Test(SOURCE, beside=())
    yield ["variables", test.assigned("TestMapping", "context")]
    for row in dictionaries(test.table("doExpansionTest", "cases")):
        yield ["TestMapping", row["input"], row["expected"]]
