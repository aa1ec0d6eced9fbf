"""Whether somebody listens at the port, result.
"""
from ..tests import dictionaries, Scope, Test

SOURCE = "pkg/probe/tcp/tcp_test.go"


def rows():
    test = Test(SOURCE, {"tHost": "127.0.0.1", "tPort": 1}, ["tcp.go"])
    declared = next(s for s in test.function("TestTcpHealthChecker")[4] if s[0] == "assign" and s[1] == [("name", "tests")])
    scope = Scope()
    scope.names.update(tHost="127.0.0.1", tPort=1)
    for row in dictionaries(test.evaluator.value(declared[3][0], scope)):
        yield ["TestTcpHealthChecker", row["port"] > 0, row["expectedStatus"]]
