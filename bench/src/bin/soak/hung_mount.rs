//! A pod with a volume on a mount whose server stops answering for a while.

use windlass_tests::{HangingMount, Testbed, try_run};

/// The mount, and the name of the pod on it.
pub(crate) struct HungMount(HangingMount);

/// Exists for the whole run.
pub(crate) const POD: &str = "far";

impl HungMount {
    pub(crate) fn new(testbed: &Testbed) -> Self {
        Self(HangingMount::new(&testbed.dir().join("far-server"), &testbed.dir().join("far")))
    }

    /// A pod with a subdirectory of the mount.
    pub(crate) fn pod(&self) -> String {
        format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: {POD}, labels: {{app: {POD}}}}}\nspec:\n  terminationGracePeriodSeconds: 1\n  \
             containers:\n  - name: main\n    image: windlass/busybox:1\n    command: [sh, -c, 'exec sleep 100000']\n    \
             volumeMounts: [{{name: far, mountPath: /far, subPath: part}}]\n  \
             volumes: [{{name: far, hostPath: {{path: {}, type: Directory}}}}]\n",
            self.0.path().display()
        )
    }

    /// Stops the server and kills the pod's container, so that the node accesses the mount.
    pub(crate) fn hang(&self, testbed: &Testbed) {
        self.0.hang();
        let filter = format!("label=io.kubernetes.pod.name={POD}");
        let found = ["ps", "-q", "--filter", &filter, "--filter", "label=io.kubernetes.container.name=main"];
        let host = format!("unix://{}", testbed.docker_socket().display());
        for id in testbed.docker(&found).lines() {
            let _ = try_run("docker", &["-H", &host, "kill", id]);
        }
    }

    pub(crate) fn answer(&self) {
        self.0.answer();
    }
}
