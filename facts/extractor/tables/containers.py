"""TestRestartCountByLogDir: names of log files, restarts. TestKillContainerGracePeriod: case, pod, probe that has failed (null: none),
grace period in seconds.
"""
from ..tests import dictionaries, get, Scope, Test, to_json

SOURCE = "pkg/kubelet/kuberuntime/kuberuntime_container_test.go"
PROBES = {"StartupProbe": "startup", "LivenessProbe": "liveness"}


def rows():
    test = Test(SOURCE, {"k8s.io/kubernetes/test/utils/ktesting.Init": lambda _: None}, None)
    loop = next(s for s in test.function("TestRestartCountByLogDir")[4] if s[0] == "each")
    for row in dictionaries(test.evaluator.value(loop[3], Scope())):
        yield ["TestRestartCountByLogDir", row["filenames"], row["restartCount"]]
    for row in dictionaries(test.table("TestKillContainerGracePeriod", "tests")):
        yield ["TestKillContainerGracePeriod", row["name"], to_json(row["pod"]), PROBES.get(row["reason"]), row["expectedGracePeriod"]]
