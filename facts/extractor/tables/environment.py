"""TestMakeEnvironmentVariables: case, namespace, whether links to services are made, container, ConfigMap, Secret, addresses of the
pod, and variables by names, or `refused`. Services are in the first row, those with an address that gives them variables. Cases
about a kubelet that has no list of services, or does not have it yet, are left out.
"""
from ..tests import dictionaries, get, Test, to_json

SOURCE = "pkg/kubelet/kubelet_pods_test.go"


def rows():
    # Secrets hold bytes, which are texts here.
    test = Test(SOURCE, beside=["kubelet_test.go"])
    scope = test.scope("TestMakeEnvironmentVariables", "testCases")
    services = [to_json(service) for service in scope.find("services")]
    yield ["services", [service for service in services if service["spec"].get("clusterIP") not in (None, "None")]]
    for row in dictionaries(scope.find("testCases")):
        if row["nilLister"] or row["unsyncedServices"]:
            continue
        links = row["enableServiceLinks"]
        expected = {get(variable, "Name"): get(variable, "Value") for variable in row["expectedEnvs"] or []}
        objects = [to_json(row[name]) for name in ("container", "configMap", "secret")]
        yield [
            "TestMakeEnvironmentVariables", row["name"], row["ns"], links is None or links.value, *objects, row["podIPs"] or [],
            "refused" if row["expectedError"] else expected,
        ]
