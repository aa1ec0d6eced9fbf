"""TestSelectorParse: text, `good` or `bad`. TestSelectorMatches: text, fields, whether they match. TestSplitTerms: text, terms.
TestSplitTerm: term, field, operator and value, or `bad`. TestEscapeValue: escaped value, value, or `bad`.
"""
from ..tests import dictionaries, Test

SOURCE = "staging/src/k8s.io/apimachinery/pkg/fields/selector_test.go"


def rows():
    matches = []
    note = lambda found: lambda _, text, fields: matches.append([text, fields, found])
    test = Test(SOURCE, {"expectMatch": note(True), "expectNoMatch": note(False)}, None)
    scope = test.scope("TestSelectorParse")
    for name, verdict in (("testGoodStrings", "good"), ("testBadStrings", "bad")):
        for text in scope.find(name):
            yield ["TestSelectorParse", text, verdict]
    test.scope("TestSelectorMatches", quiet=False)
    for row in matches:
        yield ["TestSelectorMatches", *row]
    for text, terms in test.table("TestSplitTerms", "testcases").items():
        yield ["TestSplitTerms", text, terms or []]
    for term, row in dictionaries(test.table("TestSplitTerm", "testcases")).items():
        yield ["TestSplitTerm", term, *([row["lhs"], row["op"], row["rhs"]] if row["ok"] else ["bad"])]
    for value, escaped in test.table("TestEscapeValue", "testcases").items():
        yield ["TestEscapeValue", escaped, value]
    for escaped in test.assigned("TestEscapeValue", "invalidTestcases"):
        yield ["TestEscapeValue", escaped, "bad"]
