"""TestGetIntFromIntOrString: value, number, or `refused`. TestGetIntFromIntOrPercent: value, the whole, whether it is rounded up,
number, or `refused`.
"""
from ..tests import dictionaries, Test, to_json

SOURCE = "staging/src/k8s.io/apimachinery/pkg/util/intstr/intstr_test.go"


def rows():
    test = Test(SOURCE, beside=["intstr.go"])
    for row in dictionaries(test.table("TestGetIntFromIntOrString", "tests")):
        # Of a text that is no percentage there is no number.
        value = to_json(row["input"])
        yield ["TestGetIntFromIntOrString", value if isinstance(value, int) else f'"{value}"', "refused" if row["expectErr"] else row["expectVal"]]
    for row in dictionaries(test.table("TestGetIntFromIntOrPercent", "tests")):
        value = to_json(row["input"])
        cells = [row["total"], row["roundUp"], "refused" if row["expectErr"] else row["expectVal"]]
        yield ["TestGetIntFromIntOrPercent", value if isinstance(value, int) else f'"{value}"', *cells]
