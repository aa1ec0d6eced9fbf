"""Output of a command (a long one by its length), its exit code (null: it is not known, and why), result, whether that is an error.
What is told of a failure is the output, or why.
"""
from ..model import Pointer
from ..tests import dictionaries, get, Test

SOURCE = "pkg/probe/exec/exec_test.go"


def rows():
    test = Test(SOURCE, {"k8s.io/cri-client/pkg.ErrCommandTimedOut": "command timed out"}, ["exec.go"])
    for row in dictionaries(test.table("TestExec", "tests")):
        error = row["err"]
        code = get(error, "statusCode") if isinstance(error, Pointer) else 0 if error is None else None
        output = row["output"] if code is not None else ""
        yield ["TestExec", output if len(output) < 1000 else len(output), code, error if code is None else None, row["expectedStatus"], row["expectError"]]
