"""Amounts are two cells: digits and the exponent of ten.
TestQuantityParse: text, amount, format; or text, `refused`. TestQuantityRoundUp: text, scale, amount, whether exact.
TestQuantityCmp: two texts, order. TestQuantityCmpInt64AndDec: two amounts, order. TestQuantityString: amount, format, text,
another text of it. TestQuantityParseEmit: text, canonical text. TestMilliNewSet, TestNewSet: thousandths or units, format, text.
TestNewScaledSet: digits, scale, text. TestScaledValue: scale of one, scale, value. TestJSONWhitespace: JSON, text.
TestAdd, TestSub: three amounts, each with its format. TestQuantityNeg: amount, text of its negation.
TestQuantityAsApproximateFloat64: amount, format, float. TestStringQuantityAsApproximateFloat64: text, float.
"""
from ..tests import dictionaries, get, Struct, Test

SOURCE = "staging/src/k8s.io/apimachinery/pkg/api/resource/quantity_test.go"
MAX = 2**63 - 1


def rows():
    amount = lambda digits, exponent, *kind: (int(digits), exponent, *kind)
    test = Test(SOURCE, {"decQuantity": amount, "intQuantity": amount, "maxAllowed": (MAX, 0)}, None)

    def of(value):
        if isinstance(value, Struct):
            return (*(get(value, "d") if value.fields.get("d") else (0, 0)), get(value, "Format"))
        return value

    columns = {
        "TestQuantityParse": ("table", lambda r: [r["input"], *of(r["expect"])]),
        "TestQuantityRoundUp": ("table", lambda r: [r["in"], r["scale"], *of(r["expect"])[:2], r["ok"]]),
        "TestQuantityCmp": ("table", lambda r: [r["x"], r["y"], r["expect"]]),
        "TestQuantityCmpInt64AndDec": ("table", lambda r: [*of(r["a"])[:2], *of(r["b"])[:2], r["cmp"]]),
        "TestQuantityString": ("table", lambda r: [*of(r["in"]), r["expect"], r["alternate"]]),
        "TestQuantityParseEmit": ("table", lambda r: [r["in"], r["expect"]]),
        "TestMilliNewSet": ("table", lambda r: [r["value"], r["format"], r["expect"]]),
        "TestNewSet": ("table", lambda r: [r["value"], r["format"], r["expect"]]),
        "TestNewScaledSet": ("table", lambda r: [r["value"], r["scale"], r["expect"]]),
        "TestScaledValue": ("table", lambda r: [r["fromScale"], r["toScale"], r["expected"]]),
        "TestJSONWhitespace": ("testCases", lambda r: [r["in"], r["expect"]]),
        "TestAdd": ("tests", lambda r: [*of(r["a"]), *of(r["b"]), *of(r["expected"])]),
        "TestSub": ("tests", lambda r: [*of(r["a"]), *of(r["b"]), *of(r["expected"])]),
        "TestQuantityNeg": ("table", lambda r: [*of(r["a"])[:2], r["out"]]),
        "TestQuantityAsApproximateFloat64": ("table", lambda r: [*of(r["in"]), float(r["out"])]),
        "TestStringQuantityAsApproximateFloat64": ("table", lambda r: [r["in"], float(r["out"])]),
    }
    for function, (table, row) in columns.items():
        for found in dictionaries(test.table(function, table)):
            yield [function, *row(found)]
    # The list of refusals comes after the first loop over the table.
    for text in ["", *test.assigned("TestQuantityParse", "invalid")]:
        yield ["TestQuantityParse", text, "refused"]
