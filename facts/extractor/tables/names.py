"""A text, `good` or `bad`, of each check."""
from ..tests import Test

SOURCE = "staging/src/k8s.io/apimachinery/pkg/util/validation/validation_test.go"
FUNCTIONS = """IsDNS1123Label IsDNS1123Subdomain IsDNS1035Label IsValidPortName IsQualifiedName IsValidLabelValue IsHTTPHeaderName
    IsValidPercent IsConfigMapKey IsWildcardDNS1123Subdomain IsFullyQualifiedDomainName IsFullyQualifiedName IsDomainPrefixedPath
    IsRelaxedEnvVarName IsDNS1123SubdomainWithUnderscore IsDomainPrefixedKey""".split()

VERDICTS = {"goodValues": "good", "successCases": "good", "badValues": "bad", "errorCases": "bad", "failureCases": "bad"}


def rows():
    test = Test(SOURCE, beside=None)
    for function in FUNCTIONS:
        for name, verdict in VERDICTS.items():
            for text in test.assigned(f"Test{function}", name) or []:
                yield [f"Test{function}", text, verdict]
