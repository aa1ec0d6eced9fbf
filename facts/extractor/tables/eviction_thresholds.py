"""TestParseThresholdConfig: case, whether memory of pods is enforced, hard, soft, grace periods and minimum reclaim by signals, and
the thresholds (signal, amount, nanoseconds of grace, reclaim; amounts are quantities or parts of the whole), or `refused`.
TestParsePercentage: text, part, or `refused`.
"""
from ..tests import dictionaries, get, Test, to_json

SOURCE = "pkg/kubelet/eviction/helpers_test.go"


def amount(value):
    held = get(value, "Quantity")
    return to_json(held) if held else get(value, "Percentage")


def rows():
    from ..natives import Quantity, pointer
    # Its result is a pointer to the quantity.
    test = Test(SOURCE, {"quantityMustParse": lambda text: pointer(Quantity(text)), "time.ParseDuration": lambda text: [int(text[:-1]) * 10**9, None]}, None)
    for name, row in dictionaries(test.table("TestParseThresholdConfig", "testCases")).items():
        thresholds = [
            [get(t, "Signal"), amount(get(t, "Value")), get(t, "GracePeriod"), amount(get(t, "MinReclaim"))] for t in row["expectThresholds"]
        ]
        settings = [row[key] for key in ("evictionHard", "evictionSoft", "evictionSoftGracePeriod", "evictionMinReclaim")]
        yield ["TestParseThresholdConfig", name, bool(row["allocatableConfig"]), *settings, "refused" if row["expectErr"] else thresholds]
    for text, row in dictionaries(test.table("TestParsePercentage", "testCases")).items():
        yield ["TestParsePercentage", text, "refused" if row["hasError"] else row["value"]]
