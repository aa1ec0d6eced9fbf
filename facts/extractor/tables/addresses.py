"""TestIsValidIP, TestIsValidCIDR: text, then what is told of it in fields that must be canonical, in older fields, and in older
ones under strict validation; empty where it is good. TestGetWarningsForIP, TestGetWarningsForCIDR: field, text, warnings.
"""
from ..tests import dictionaries, Test

SOURCE = "staging/src/k8s.io/apimachinery/pkg/util/validation/ip_test.go"


class Path(str):
    """A path of fields, as its text."""


def rows():
    from ..natives import METHODS
    METHODS["Path", "Child"] = lambda path, *names: Path(".".join([path, *names]))
    METHODS["Path", "Index"] = lambda path, at: Path(f"{path}[{at}]")
    test = Test(SOURCE, {"k8s.io/apimachinery/pkg/util/validation/field.NewPath": lambda *names: Path(".".join(names))}, None)
    for function in ("TestIsValidIP", "TestIsValidCIDR"):
        for row in dictionaries(test.table(function, "testCases")):
            yield [function, row["in"], row["err"], row["legacyErr"], row["legacyStrictErr"]]
    for function in ("TestGetWarningsForIP", "TestGetWarningsForCIDR"):
        for row in dictionaries(test.table(function, "tests")):
            yield [function, str(row["fieldPath"]), row.get("address", row.get("cidr")), row["want"] or []]
