"""TestSelectorParse: text, `good` or `bad`. TestSelectorMatches: text, labels, whether they match.
TestSetSelectorParser: text, `bad`, or its requirements: key, operator, values (null where upstream compares nothing).
TestRequirementSelectorMatching: labels, requirements, whether they match. TestRequirementConstructor: requirement that can be
written as a text, `good` or `bad`.
"""
from ..tests import dictionaries, Struct, Test

SOURCE = "staging/src/k8s.io/apimachinery/pkg/labels/selector_test.go"


def made(key, operator, values, *_):
    return [key, operator, sorted(values or {})]


def rows():
    matches = []
    note = lambda found: lambda _, text, labels: matches.append([text, labels, found])
    test = Test(SOURCE, {"getRequirement": made, "NewSelector": list, "expectMatch": note(True), "expectNoMatch": note(False)}, None)
    scope = test.scope("TestSelectorParse")
    for name, verdict in (("testGoodStrings", "good"), ("testBadStrings", "bad")):
        for text in scope.find(name):
            yield ["TestSelectorParse", text, verdict]
    test.scope("TestSelectorMatches", quiet=False)
    for row in matches:
        yield ["TestSelectorMatches", *row]
    for row in dictionaries(test.table("TestSetSelectorParser", "setSelectorParserTests")):
        yield ["TestSetSelectorParser", row["In"], (row["Out"] if row["Match"] else None) if row["Valid"] else "bad"]
    for row in dictionaries(test.table("TestRequirementSelectorMatching", "labelSelectorMatchingTests")):
        requirements = row["Sel"].value
        # A requirement without anything cannot be written.
        if not any(isinstance(requirement, Struct) for requirement in requirements):
            yield ["TestRequirementSelectorMatching", row["Set"], requirements, row["Match"]]
    for row in dictionaries(test.table("TestRequirementConstructor", "requirementConstructorTests")):
        requirement = made(row["Key"], row["Op"], row["Vals"])
        one = len(requirement[2]) == 1 and " " not in requirement[2][0]
        if {"exists": not requirement[2], "in": requirement[2], "notin": requirement[2], "=": one, "gt": one, "lt": one}.get(row["Op"]):
            yield ["TestRequirementConstructor", requirement, "bad" if row["WantErr"] else "good"]
