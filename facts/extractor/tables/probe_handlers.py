"""TestGetURLParts: handler, host, port and path, or `bad`; the container has the port `found`, 93, its pod the address 127.0.0.1.
TestGetTCPAddrParts: handler, host and port, or `bad`; the pod has the address 1.2.3.4. TestProbe: probe (null: none), variables, result
of the command and whether it could be run, result, whether that is an error, the command as it is run.
"""
from ..tests import dictionaries, get, Test, to_json

SOURCE = "pkg/kubelet/prober/prober_test.go"


def rows():
    test = Test(SOURCE, {"k8s.io/kubernetes/test/utils/ktesting.Init": lambda _: None}, None)
    for function, cells in (("TestGetURLParts", ("host", "port", "path")), ("TestGetTCPAddrParts", ("host", "port"))):
        for row in dictionaries(test.table(function, "testCases")):
            yield [function, to_json(row["probe"]), *([row[cell] for cell in cells] if row["ok"] else ["bad"])]
    for row in dictionaries(test.table("TestProbe", "tests")):
        # A kind of probes that the API does not have.
        if not row["unsupported"]:
            variables = {get(variable, "Name"): get(variable, "Value") for variable in row["env"] or []}
            result = "success" if row["expectedResult"] == 0 else "failure"
            probe = to_json(row["probe"]) if row["probe"] else None
            yield ["TestProbe", probe, variables, row["execResult"] or None, not row["execError"], result, row["expectError"], row["expectCommand"] or []]
